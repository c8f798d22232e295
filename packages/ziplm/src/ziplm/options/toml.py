"""Options as TOML files."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ziplm.errors import UsageError, one_line
from ziplm.files import written_whole
from ziplm.options.options import PAPER, TARGETS, Options
from ziplm.options.presets import find_preset
from ziplm.options.rules import UNUSED


def save_options(options: Options, path: Path) -> None:
    """Write all options as TOML, except for those that are None or that the regime does not use."""
    values = options.model_dump(exclude=set(UNUSED[options.regime]), exclude_none=True)
    lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
    with written_whole(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_options(path: Path) -> Options:
    """Read a TOML file that holds all required options."""
    return Options.of(read_options(path))


def read_options(path: Path) -> dict[str, Any]:
    """Read the options in a TOML file by name; raise UsageError if a name is unknown."""
    if path.exists() and not path.is_file():  # reading a pipe would wait for a writer
        raise UsageError(f"{path} is not a file", "check the path")
    try:
        text = path.read_text(encoding="utf-8")
        # A key of n parts takes tomllib memory of n² bytes; options have keys of one part.
        if any(line.partition("=")[0].count(".") > 100 for line in text.splitlines()):
            raise RecursionError
        values = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except RecursionError as error:
        raise UsageError(f"{path} is not TOML: it is nested too deeply", "correct it") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"{path} is not TOML: {one_line(error)}", "correct it") from error
    values = _renamed({name.replace("-", "_"): value for name, value in values.items()})
    known = Options.model_fields
    if large := [name for name, value in values.items() if _is_too_large(value)]:
        raise UsageError(f"{large[0]} in {path} has more than 64 bits", "give a smaller number")
    if unknown := [name for name in values if name not in known]:
        raise UsageError(f"{path} has an unknown option {unknown[0]!r}", "see ziplm compress --help")
    return values


def _is_too_large(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return any(isinstance(number, int) and abs(number) >= 2**63 for number in numbers)


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Translate options of version 0.1, whose files also hold lengths that the regime does not use."""
    if "sequence_length" not in values:
        return values
    regime = values.get("regime", "throughput")
    lengths = {"throughput": "sequence_length", "latency": "prompt_length"}
    length = values.get(lengths.get(regime, ""), ())
    unused = {"sequence_length", *UNUSED.get(regime, ())}
    kept = {name: value for name, value in values.items() if name not in unused}
    return kept if regime == "generate" else {"input_length": length, **kept}


def merged(file: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Combine the options of a file with those of the command line, which take precedence.

    The file of a run holds all options, also those that its method or preset has set. If the command line
    names another method or preset, the options that either of them sets are dropped from the file;
    otherwise the file's values would override the new method or preset.
    """
    stale: set[str] = set()
    if said.get("method", file.get("method")) != file.get("method"):
        stale |= set(PAPER)
    if said.get("preset", file.get("preset")) != file.get("preset"):
        # The file also holds targets that are empty. If they were kept, they would count as given, and the
        # preset would bring none of its own.
        stale |= {name for name in TARGETS if not file.get(name)}
        for name in (said["preset"], file.get("preset")):
            stale |= set(find_preset(name).as_options()) if name else set()
    return {**{name: value for name, value in file.items() if name not in stale}, **said}


def _toml(value: Any) -> str:
    """Format a value as TOML: JSON without surrogate escapes, which TOML forbids, but with DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
