"""The reference page of all options, made from their definitions: ``python -m ziplm.options.reference``."""

from typing import Any, Literal, get_args, get_origin

from ziplm.options.fields import SECTIONS, shown
from ziplm.options.options import Options

HEAD = """# Options

All options of `ziplm compress`, of its TOML files (`--config`) and of `ziplm.compress` in Python. On the
command line an option is written `--like-this`, in TOML and Python `like_this`. Repeatable options take lists
in TOML and Python. This page is generated: `python -m ziplm.options.reference > docs/options.md`.
"""


def reference_page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for section, title in SECTIONS.items():
        rows = [
            f"| `{name}` | {_values(field.annotation)} | {_default(field)} | {field.description} |"
            for name, field in Options.model_fields.items()
            if shown(field).section == section
        ]
        head = ["| option | values | default | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([f"## {title}", "", *head, *rows, ""]))
    return "\n".join(parts)


def _values(annotation: Any) -> str:
    """Describe the values of an option."""
    names = {bool: "on or off", int: "whole number", float: "number", str: "text"}
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"{_values(get_args(annotation)[0])}, repeatable"
    inner = [part for part in get_args(annotation) if part is not type(None)]
    return _values(inner[0]) if inner else names[annotation]


def _default(field: Any) -> str:
    """Describe the default of an option."""
    if unset := shown(field).unset:
        return unset
    if field.default in (None, (), ""):
        return ""
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference_page())
