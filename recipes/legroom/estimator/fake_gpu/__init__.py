"""A device that computes nothing: a training step runs on it as on a GPU."""
