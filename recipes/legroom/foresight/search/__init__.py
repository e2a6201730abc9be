"""The search for the fastest configuration that fits."""
