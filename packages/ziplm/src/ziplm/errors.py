"""Errors that reach a user: what is wrong, what is allowed and the next step, in one line."""

LONGEST = 500  # characters of an error, because values from files may have any length


class ZipLMError(Exception):
    """Base class of all errors raised by ziplm.

    Attributes:
        message: what is wrong.
        hint: what to do about it.
        exit_code: exit code of the command line for this kind of error.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str) -> None:
        hint = shortened(hint, LONGEST // 2)
        message = shortened(message, LONGEST - len(hint) - 2)
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


def shortened(text: str, longest: int) -> str:
    """Return a text on one line of printable characters; the middle of a long one is left out."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    rest = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[: longest - 3 - rest]} … {text[len(text) - rest :]}"


def one_line(error: BaseException) -> str:
    """Return the first line of another library's error message, or the error's type if it has none.

    A first line that ends with a colon is completed by the next one.
    """
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return f"{lines[0]} {lines[1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
