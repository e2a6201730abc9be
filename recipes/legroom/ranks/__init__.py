"""The ranks of one job: which one this process is, what they exchange, and which of them failed first."""
