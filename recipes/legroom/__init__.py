"""Legroom: recipes that fit a bigger model and train it faster."""

__version__ = "0.1.0"
