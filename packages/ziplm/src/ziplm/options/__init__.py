"""The options of a run: definitions, validation and files, presets, and targets."""
