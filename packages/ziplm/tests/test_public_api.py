"""The public names of ziplm, the names of version 0.1, and the family that `compress` returns."""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import ziplm
from click.testing import CliRunner
from ziplm.architectures.base import Architecture, Branch
from ziplm.architectures.inspection import Inspection
from ziplm.cli import main
from ziplm_compressed import LENGTH, options_for, write_files
from ziplm_models import HEADS, tiny_model

PUBLIC = {
    "BadCheckpoint",
    "BadRun",
    "Family",
    "Member",
    "MissingExtra",
    "NotFinite",
    "Options",
    "UnreachableTarget",
    "UnsupportedModel",
    "UsageError",
    "ZipLMError",
    "compress",
    "evaluate",
    "export",
    "finetune",
    "inspect",
    "load",
    "mask",
    "register",
    "save",
    "shrink",
}
OLD_NAMES = {
    "Adapter": "ziplm.architectures.base.Architecture",
    "Compressed": "ziplm.Member",
    "Config": "ziplm.Options",
    "Inspection": "ziplm.architectures.inspection.Inspection",
    "Module": "ziplm.architectures.base.Branch",
    "adapter_for": "ziplm.architectures.registry.architecture_of",
    "inspect_checkpoint": "ziplm.inspect",
    "inspect_model": "ziplm.inspect",
}
BASIC: dict[str, Any] = {"model": "m", "task": "sst2", "output": "o"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def families(files: Path) -> dict[str, ziplm.Family]:
    """Return a family of two members for each architecture."""
    return {
        name: ziplm.compress(**options_for(files, name, files / f"{name}-run", speedup=[2, 1.5]))
        for name in ("bert", "gpt2")
    }


@pytest.fixture
def family(families: dict[str, ziplm.Family]) -> ziplm.Family:
    return families["bert"]


def test_the_public_names_are_exactly_these() -> None:
    assert set(ziplm.__all__) == PUBLIC
    assert len(ziplm.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_can_be_imported_and_is_listed(name: str) -> None:
    imported: dict[str, Any] = {}
    exec(f"from ziplm import {name}", imported)
    assert imported[name] is getattr(ziplm, name)
    assert imported[name].__name__ == name
    assert imported[name].__doc__
    assert name in dir(ziplm)


def test_a_star_import_gives_the_public_names() -> None:
    imported: dict[str, Any] = {}
    exec("from ziplm import *", imported)
    assert imported.keys() >= PUBLIC


@pytest.mark.parametrize("name", sorted(OLD_NAMES))
def test_an_old_name_warns_and_names_its_replacement(name: str) -> None:
    message = f"ziplm.{name} is deprecated; use {OLD_NAMES[name]}"
    with pytest.warns(DeprecationWarning, match=f"^{re.escape(message)}$") as warned:
        getattr(ziplm, name)
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=name):
        exec(f"from ziplm import {name}")
    assert name not in ziplm.__all__
    assert name not in dir(ziplm)


@pytest.mark.filterwarnings("ignore:ziplm:DeprecationWarning")
def test_old_names_give_working_objects(files: Path, family: ziplm.Family) -> None:
    assert ziplm.Config(**BASIC, speedup=2) == ziplm.Options(**BASIC, speedup=(2.0,))
    assert isinstance(family[0], ziplm.Compressed)
    model = tiny_model("BertModel")
    architecture = ziplm.adapter_for(model)
    assert isinstance(architecture, ziplm.Adapter)
    assert ziplm.Adapter is Architecture
    assert ziplm.Module is Branch
    assert all(isinstance(branch, ziplm.Module) for branch in architecture.branches(model))
    assert ziplm.Inspection is Inspection
    for found in (ziplm.inspect_model(model), ziplm.inspect_checkpoint(files / "bert")):
        assert isinstance(found, Inspection)
        assert found.heads == [HEADS] * 3


def test_compress_takes_options_and_the_old_argument_config(files: Path, family: ziplm.Family) -> None:
    values = options_for(files, "bert", files / "bert-run", speedup=[2, 1.5])
    options = ziplm.Options(**values)
    assert ziplm.compress(options=options) == family
    with pytest.warns(DeprecationWarning, match=r"compress\(config=…\) is deprecated; use compress\(options"):
        assert ziplm.compress(config=options) == family


@pytest.mark.parametrize("name", ["nothing", "Familiy", "pipeline", "_said"])
def test_unknown_names_are_attribute_errors(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'ziplm' has no attribute '{name}'"):
        getattr(ziplm, name)
    with pytest.raises(ImportError, match=name):
        exec(f"from ziplm import {name}")


def test_a_family_is_a_sequence_of_members(family: ziplm.Family) -> None:
    assert isinstance(family, Sequence)
    assert [member.target for member in family] == ["1.5x", "2x"]
    assert all(isinstance(member, ziplm.Member) for member in family)
    first, second = family
    assert (len(family), family[0], family[-1]) == (2, first, second)
    assert list(reversed(family)) == [second, first]
    assert second in family
    assert (family.index(second), family.count(first)) == (1, 1)
    assert family
    assert not family[2:]
    with pytest.raises(IndexError):
        family[2]


def test_a_slice_of_a_family_is_a_family(family: ziplm.Family) -> None:
    assert isinstance(family[:1], ziplm.Family)
    assert list(family[:1]) == [family[0]]
    assert list(family[::-1]) == [family[1], family[0]]


def test_families_are_equal_if_their_members_are(family: ziplm.Family) -> None:
    assert family[:] == family == ziplm.Family(family.members)
    assert family[:1] != family
    assert family[::-1] != family
    changed = dataclasses.replace(family[0], target="other")
    assert ziplm.Family((changed, family[1])) != family


def test_the_repr_of_a_family_is_short(family: ziplm.Family) -> None:
    metric = family[1].metrics["metric"]["compressed"]
    speedup = family[1].metrics["predicted"]["speedup"]
    assert repr(family[1]) == f"Member('2x', {speedup:.2f}x, accuracy {metric:.4g})"
    assert repr(family) == f"Family({family[0]!r}, {family[1]!r})"
    assert len(repr(family)) < 100


def test_a_family_can_be_written_as_json(family: ziplm.Family) -> None:
    read = json.loads(json.dumps(family.to_dict(), allow_nan=False))
    assert json.loads(json.dumps(family[0].to_dict())) == read["members"][0]
    assert [member["target"] for member in read["members"]] == ["1.5x", "2x"]
    for member, written in zip(family, read["members"], strict=True):
        assert Path(written["folder"]) == member.folder
        assert written["metrics"] == member.metrics
        assert written["metrics"] == json.loads((member.folder / "metrics.json").read_text())


@pytest.mark.parametrize(
    ("architecture", "task", "ending"), [("bert", "classification", "csv"), ("gpt2", "causal-lm", "txt")]
)
def test_evaluate_agrees_with_the_report_and_the_command(
    files: Path, families: dict[str, ziplm.Family], architecture: str, task: str, ending: str
) -> None:
    member = families[architecture][1]
    file = files / f"valid.{ending}"
    found = ziplm.evaluate(member.folder, task, validation_file=file, max_length=LENGTH)
    reported = member.metrics["metrics"]["compressed"]
    assert found.keys() == reported.keys()
    for split, metrics in found.items():
        assert metrics == pytest.approx(reported[split], rel=1e-5)
    command = ["evaluate", member.folder, "--task", task, "--validation-file", file]
    result = CliRunner().invoke(main, [*map(str, command), "--max-length", str(LENGTH), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == found
    dense = ziplm.evaluate(files / architecture, task, validation_file=str(file), max_length=LENGTH)
    for split, metrics in dense.items():
        assert metrics == pytest.approx(member.metrics["metrics"]["dense"][split], rel=1e-5)


def test_options_beside_other_arguments_are_refused() -> None:
    """Silently ignored arguments would surprise: everything is in `options`, or nothing."""
    options = ziplm.Options(model="a", task="sst2", output="b", speedup=2)
    for other in ({"model": "c"}, {"speedup": [4]}, {"train_file": [{"text": "a"}]}):
        with pytest.raises(ziplm.UsageError, match="is given beside options"):
            ziplm.compress(options=options, **other)
