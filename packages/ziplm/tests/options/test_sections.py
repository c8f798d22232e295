"""Every option is described once; help page, typed signature and reference page follow that description."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
import rich_click as click
from click.testing import CliRunner
from token_distill import DistillationLoss
from ziplm.cli import main
from ziplm.cli.compress import compress
from ziplm.options.fields import SECTIONS, shown
from ziplm.options.options import Options
from ziplm.options.presets import PRESETS, LossWeights
from ziplm.options.reference import reference_page
from ziplm.options.typed import CompressOptions
from ziplm.pipelines.inputs import FILES

REFERENCE = Path(__file__).parents[4] / "docs" / "options.md"
SIGNATURE = ("model", "task", "output", *FILES)  # named in the signature of `compress` itself


def panels() -> dict[str, list[str]]:
    """Return the lines of each panel of ``ziplm compress --help``, by its title."""
    result = CliRunner().invoke(main, ["compress", "--help"], env={"COLUMNS": "110"})
    assert result.exit_code == 0, result.output
    found: dict[str, list[str]] = {}
    for line in result.output.splitlines():
        if title := re.match(r"╭─ (.+?) ─+╮$", line):
            lines = found.setdefault(title[1], [])
        elif line.startswith("│"):
            lines.append(line[2:])
    return found


def flags_in(lines: Sequence[str]) -> list[str]:
    """Return the flags of a panel, which start its lines; lines that continue a text are indented."""
    return [line.split()[0].split("/")[0] for line in lines if line.startswith("--")]


@pytest.mark.parametrize("name", Options.model_fields)
def test_every_option_has_a_section_and_a_help_text_of_whole_sentences(name: str) -> None:
    field = Options.model_fields[name]
    assert shown(field).section in SECTIONS
    text = field.description
    assert text
    assert text[0].isupper()
    assert text.endswith(".")
    assert "  " not in text


def test_every_section_has_options() -> None:
    assert {shown(field).section for field in Options.model_fields.values()} == set(SECTIONS)


def test_every_option_is_on_the_help_page_once_under_the_title_of_its_section() -> None:
    found = panels()
    assert list(found) == [*SECTIONS.values(), "Options"]
    for section, title in SECTIONS.items():
        names = [name for name, field in Options.model_fields.items() if shown(field).section == section]
        wanted = [f"--{name.replace('_', '-')}" for name in names if name != "model"]
        own = {"essential": ["--dry-run"], "run": ["--config", "--json", "--quiet", "--verbose"]}.get(
            section, []
        )
        assert flags_in(found[title]) == [*wanted, *own]
    every = [flag for lines in found.values() for flag in flags_in(lines)]
    assert len(every) == len(set(every))
    assert "--sequence-length" not in every


def test_the_command_has_the_help_texts_of_all_options() -> None:
    texts = {option.name: option.help for option in compress.params if isinstance(option, click.Option)}
    for name, field in Options.model_fields.items():
        assert name == "model" or str(texts[name]).split("  [default")[0] == field.description


def test_the_typed_options_have_the_names_of_all_options() -> None:
    assert set(get_type_hints(CompressOptions)) == set(Options.model_fields) - set(SIGNATURE)
    assert not CompressOptions.__required_keys__


@pytest.mark.parametrize("name", sorted(set(Options.model_fields) - set(SIGNATURE)))
def test_the_typed_options_have_the_types_of_all_options(name: str) -> None:
    """A repeatable option takes a single value or a sequence."""
    kind = get_type_hints(Options)[name]  # without the annotations of pydantic
    if get_origin(kind) is tuple:
        single: Any = get_args(kind)[0]
        kind = single | Sequence[single]
    assert alternatives(get_type_hints(CompressOptions)[name]) == alternatives(kind)


def alternatives(kind: Any) -> set[Any]:
    """Return the members of a union, or the type itself."""
    return set(get_args(kind)) if get_origin(kind) in (Union, type(int | str)) else {kind}


def test_the_reference_page_is_up_to_date() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == reference_page(), "python -m ziplm.options.reference"


def test_the_reference_page_has_one_row_for_every_option() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", reference_page(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(Options.model_fields)


@pytest.mark.parametrize(
    ("preset", "data"),
    [
        ("bert-base-glue", "glue"),
        ("bert-base-squad", "squad"),
        ("bert-large-squad", "squad"),
        ("gpt2-openwebtext", "gpt2"),
    ],
)
def test_presets_have_the_loss_weights_of_token_distill(preset: str, data: str) -> None:
    loss = DistillationLoss.preset(data)
    assert PRESETS[preset].loss == LossWeights(loss.task, loss.logit, loss.token, loss.temperature)


def test_every_preset_has_known_loss_weights() -> None:
    assert len(PRESETS) == 4
    weights = {preset.loss for preset in PRESETS.values()}
    known = [DistillationLoss.preset(name) for name in ("squad", "glue", "gpt2")]
    assert weights == {LossWeights(k.task, k.logit, k.token, k.temperature) for k in known}
