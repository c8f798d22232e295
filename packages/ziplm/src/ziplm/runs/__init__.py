"""The run folder: its files and lock, progress reports, and the processes of a torchrun."""
