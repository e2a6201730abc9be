"""Every tensor of a step: its bytes, what it is, what made it, from its allocation to its free."""
