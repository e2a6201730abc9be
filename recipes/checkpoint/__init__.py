"""Checkpoints: a training's state, when it is saved, and how it is restored."""
