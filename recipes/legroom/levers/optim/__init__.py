"""optim: the optimizer."""
