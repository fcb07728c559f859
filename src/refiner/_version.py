"""The version, in a file of its own so that it is known without an installation."""

__version__ = "0.1.0"
