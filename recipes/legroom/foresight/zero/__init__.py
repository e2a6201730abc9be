"""DeepSpeed's ZeRO on the fake device, without DeepSpeed."""
