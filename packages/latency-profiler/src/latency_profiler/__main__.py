"""Run the ``latency-profiler`` command with ``python -m latency_profiler``."""

from latency_profiler.cli import main

if __name__ == "__main__":
    main(prog_name="latency-profiler")
