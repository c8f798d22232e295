"""Checking and parsing values of options."""

from collections.abc import Sequence
from typing import Any

from ziplm.errors import UsageError


def require(condition: bool, message: str, hint: str) -> None:
    """Raise UsageError unless a condition holds."""
    if not condition:
        raise UsageError(message, hint)


def parsed_settings(options: Sequence[str]) -> dict[str, Any]:
    """Parse ``["stride=64"]`` into ``{"stride": 64}``; digits become whole numbers."""
    settings: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        require(bool(name and equals), f"the task option {option!r}", "write NAME=VALUE")
        settings[name] = int(value) if value.isdigit() else value
    return settings
