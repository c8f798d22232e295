"""Model architectures: where their parts are, how they are resized, and how checkpoints are stored."""
