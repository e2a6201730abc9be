"""What this machine's GPU or CPU reaches, measured in a minute for the estimates that are made on it."""
