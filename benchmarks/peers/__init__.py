"""The systems that the project is compared with, each in a virtual environment of its own."""
