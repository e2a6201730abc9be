"""train.ema: a running mean of the weights."""
