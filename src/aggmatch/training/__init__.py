"""Training: settings, state, loop, checkpoints."""
