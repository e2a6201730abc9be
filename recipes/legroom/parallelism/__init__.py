"""How weights are spread over ranks: FSDP2, tensor parallelism, ZeRO."""
