"""Somebody's own training script, unmodified: `legroom check` plays a GPU for it, `legroom measure` observes it."""
