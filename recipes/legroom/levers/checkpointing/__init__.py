"""checkpointing: activations that are computed again."""
