"""`legroom check`: somebody's script, in its own environment, without anything outside being changed."""
