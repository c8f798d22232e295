"""Pipelines: the stages in order, for one-shot and for gradual compression."""
