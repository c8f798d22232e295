"""Records of a search: a single evaluation, and the progress so far."""

from dataclasses import dataclass

from ._brief import brief_levels


@dataclass(frozen=True)
class Evaluation:
    """One full evaluation of the loss.

    Attributes:
        levels: The assignment.
        loss: Its loss; infinity if the evaluation failed, that is, if the loss was not a finite number.
        seconds: Seconds from the start of the search to the end of the evaluation, excluding interruptions.
    """

    levels: tuple[int, ...]
    loss: float
    seconds: float

    def __repr__(self) -> str:
        levels = brief_levels(self.levels)
        return f"Evaluation(levels={levels}, loss={self.loss:.6g}, seconds={self.seconds:.3g})"


@dataclass(frozen=True)
class Progress:
    """State of a search, for a progress bar.

    Attributes:
        best: Smallest loss so far; infinity if all evaluations have failed.
        evaluations: Number of full evaluations done.
        total: Largest number of full evaluations.
        seconds: Seconds since the start of the search, excluding interruptions.
        levels: The best assignment so far.
    """

    best: float
    evaluations: int
    total: int
    seconds: float
    levels: tuple[int, ...]
