"""The version of the package, which the files that it writes name."""

__version__ = "0.1.0"
SCHEMA = 1  # of the reports in JSON: schema.json says what is in them
