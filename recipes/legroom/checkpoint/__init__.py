"""Checkpoints: the state of a training, when it is saved, and how it is restored."""
