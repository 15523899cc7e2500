"""The version of the package, and of the wheel that is built of it."""

__version__ = "0.1.0"
