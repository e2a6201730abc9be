"""Several samples in one row, none of which sees another."""
