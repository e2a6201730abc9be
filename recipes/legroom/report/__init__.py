"""Records to rows, tables and pictures."""
