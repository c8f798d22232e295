"""Errors that reach a user: what is wrong, what is allowed and the next step, in one line."""


class ZipLMError(Exception):
    """Base class of all errors raised by ziplm.

    Attributes:
        message: what is wrong.
        hint: what to do about it.
        exit_code: exit code of the command line for this kind of error.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}; {hint}")
        self.message = message
        self.hint = hint


class UsageError(ZipLMError, ValueError):
    """An option or argument is out of range, or contradicts another one."""

    exit_code = 2


class UnsupportedModel(ZipLMError):
    """The model's architecture, or this variant of it, cannot be pruned."""

    exit_code = 3


class BadCheckpoint(ZipLMError):
    """A checkpoint is missing, damaged, or in an unknown format."""

    exit_code = 4


class BadRun(ZipLMError):
    """A run folder is damaged, in use, or belongs to a different run."""

    exit_code = 5


class UnreachableTarget(ZipLMError, ValueError):
    """A target that cannot be met even when everything prunable is removed."""

    exit_code = 6


class MissingExtra(ZipLMError):
    """An optional package, such as an engine, is needed and not installed."""

    exit_code = 7


class NotFinite(ZipLMError):
    """A model computes values that are not finite."""

    exit_code = 8


def one_line(error: BaseException) -> str:
    """Return the first line of another library's error message, or the error's type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
