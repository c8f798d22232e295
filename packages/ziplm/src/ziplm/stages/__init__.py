"""The stages of compression, one file each. They know nothing of the run folder."""
