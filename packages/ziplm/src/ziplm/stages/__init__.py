"""The stages of compression, one file each. They take plain values and return plain values."""
