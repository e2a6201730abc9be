"""Models from transformers: built from sizes, or loaded."""
