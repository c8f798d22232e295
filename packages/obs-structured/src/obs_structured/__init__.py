"""Structured Optimal Brain Surgeon pruning on plain weight and Hessian tensors."""

from importlib.metadata import version

from obs_structured._moments import Moments
from obs_structured._prune import prune
from obs_structured._trace import Trace

__version__ = version("obs-structured")

__all__ = ["Moments", "Trace", "prune"]
