"""loss: how a language model computes its loss."""
