"""accumulation: forward and backward passes in one optimizer step."""
