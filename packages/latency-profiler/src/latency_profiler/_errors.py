"""Everything that can go wrong, as one small family: each error says what, the rule, and the next step."""


class ProfilerError(Exception):
    """Base of all errors of this package: one line, made of what is wrong and a hint what to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str) -> None:
        message = " ".join(message.splitlines())  # names out of a file may hold anything
        super().__init__(f"{message}; {hint}")
        self.message = message
        self.hint = hint


class OptionError(ProfilerError, ValueError):
    """An argument is outside its range, or does not go with another one."""

    exit_code = 2


class SizeError(ProfilerError, ValueError):
    """A list of sizes is not usable, or a size lies outside a curve."""

    exit_code = 2


class FactoryError(ProfilerError):
    """A factory cannot be found, raises, or does not return a callable."""


class OutputError(ProfilerError):
    """A callable raises when it is called, or returns values that are not finite."""


class EngineError(ProfilerError):
    """An engine cannot prepare or run a module here."""


class TableError(ProfilerError, ValueError):
    """A table or its file is corrupt, foreign, or of another version."""


class EnvironmentMismatch(ProfilerError):
    """A table was measured elsewhere and its use here was not agreed to."""


def one_line(error: BaseException) -> str:
    """The type and the first line of the message of somebody else's exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def require(condition: bool, message: str, hint: str) -> None:
    """Raise OptionError unless the condition holds."""
    if not condition:
        raise OptionError(message, hint)
