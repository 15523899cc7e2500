"""The version of the package and of its wheel."""

__version__ = "0.1.0"
