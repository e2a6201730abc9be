"""What a GPU would do: its allocator, its kernels' memory and speed, and a step run on tensors that do not exist."""
