"""Exceptions of this package. Each message states the problem, then what to do about it."""

LONGEST_TEXT = 500  # characters of an error's text
LONGEST_HINT = 250


class ProfilerError(Exception):
    """Base class of all errors of this package. Its text is one line: the message, then the hint.

    Attributes:
        message: Description of the problem.
        hint: What to do about it.
        exit_code: Exit code of the command line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str) -> None:
        # Names read from a file may contain line breaks, be very long, or not be text that can be printed.
        hint = shortened(hint, LONGEST_HINT)
        message = shortened(message, LONGEST_TEXT - len(hint) - len("; "))
        super().__init__(f"{message}; {hint}")
        self.message = message
        self.hint = hint


class OptionError(ProfilerError, ValueError):
    """An argument is out of range, or cannot be combined with another argument."""

    exit_code = 2


class SizeError(ProfilerError, ValueError):
    """A list of sizes is invalid, or a size lies outside a curve."""

    exit_code = 2


class FactoryError(ProfilerError):
    """A factory cannot be found, raises an exception, or does not return a callable."""


class OutputError(ProfilerError):
    """A callable raises an exception when called, or returns non-finite values."""


class NotFinite(OutputError):
    """A callable returns NaN or infinite values."""

    exit_code = 8


class EngineError(ProfilerError):
    """An engine cannot prepare or run a module on this machine, or cannot read a file."""


class MissingExtra(ProfilerError):
    """A package that an engine or a figure needs is not installed; the hint has the pip command."""

    exit_code = 7


class OutputFileError(ProfilerError, OSError):
    """A file cannot be written, for example because the disk is full."""


class TableError(ProfilerError, ValueError):
    """A table is invalid, or its file is corrupt, not a latency table, or of another version."""

    exit_code = 2


class UnreadableTable(TableError):
    """The file of a table does not exist, or cannot be read."""

    exit_code = 1


class EnvironmentMismatch(ProfilerError):
    """A table was measured in another environment, and using it here was not allowed explicitly."""

    exit_code = 2


def one_line(error: BaseException) -> str:
    """Summarise an exception as its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def shortened(value: object, longest: int = 200) -> str:
    """Return the value as one printable line of limited length; a longer one is cut in the middle."""
    text = " ".join(str(value).split())
    if len(text) > longest:
        head = (longest - 1) * 2 // 3
        text = f"{text[:head]}…{text[head + 1 - longest :]}"
    # Control characters would act on the terminal, and lone surrogates cannot be printed at all.
    return "".join(character if character.isprintable() else "?" for character in text)


def require(condition: bool, message: str, hint: str) -> None:
    """Raise OptionError unless the condition holds."""
    if not condition:
        raise OptionError(message, hint)
