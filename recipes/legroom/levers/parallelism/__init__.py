"""parallelism: what ranks share."""
