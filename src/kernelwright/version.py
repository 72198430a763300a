"""The version of the package, which the files that it writes name."""

__version__ = "0.1.0"
