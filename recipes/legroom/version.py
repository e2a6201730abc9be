"""This package's version, which a checkout that is not installed has too."""

VERSION = "0.1.0"
