"""What a run leaves behind on disk: its folder, log, checkpoints and results, written and read back."""
