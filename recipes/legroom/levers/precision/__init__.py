"""precision: the floating-point types."""
