"""What is true of any run: its memory, its time, its FLOPs. Measuring stands around the step, never inside."""
