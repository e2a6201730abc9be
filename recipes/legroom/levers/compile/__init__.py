"""compile: torch.compile."""
