"""What a run leaves: its record, its folder, its checkpoints' files."""
