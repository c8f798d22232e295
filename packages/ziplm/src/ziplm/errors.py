"""Everything that can go wrong for a user: what, what is allowed, and the next step, in one line."""


class ZipLMError(Exception):
    """Base of all errors of this package.

    Attributes:
        message: what is wrong.
        hint: what to do about it.
        exit_code: of the command line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}; {hint}")
        self.message = message
        self.hint = hint


class UsageError(ZipLMError, ValueError):
    """An argument is outside its range, or does not go with another one."""

    exit_code = 2


class UnsupportedModel(ZipLMError):
    """A model of a kind that cannot be shrunk."""

    exit_code = 3


class BadCheckpoint(ZipLMError):
    """A checkpoint that is missing, damaged, or made by something else."""

    exit_code = 4


class BadRun(ZipLMError):
    """A run folder that is damaged, in use, or belongs to another command."""

    exit_code = 5


class UnreachableTarget(ZipLMError, ValueError):
    """A target beyond what removing everything would bring."""

    exit_code = 6


def one_line(error: BaseException) -> str:
    """The first line of somebody else's message, or the kind of error if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
