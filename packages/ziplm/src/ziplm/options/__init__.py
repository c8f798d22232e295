"""What a run is asked for: options, their validation and files, presets, and targets."""
