"""Structured Optimal Brain Surgeon pruning, and narrower attention heads, on plain tensors."""

from importlib.metadata import version

from obs_structured._moments import Moments
from obs_structured._narrow import narrow_heads
from obs_structured._prune import prune
from obs_structured._scores import ScoreTrace, narrow_scores
from obs_structured._trace import Trace
from obs_structured._width_trace import WidthTrace

__version__ = version("obs-structured")

__all__ = ["Moments", "ScoreTrace", "Trace", "WidthTrace", "narrow_heads", "narrow_scores", "prune"]
