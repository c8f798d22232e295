"""An exported file is not trusted more than a checkpoint: a damaged one is a bad checkpoint, exit code 4."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import ziplm
from click.testing import CliRunner
from ziplm import BadCheckpoint
from ziplm.architectures.exported import load_exported
from ziplm.cli import main
from ziplm_models import tiny_model
from ziplm_text import letter_rows, letter_tokenizer, write_rows

IDS = torch.tensor([[2, 5, 3], [2, 6, 3]])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a classifier."""
    folder = tmp_path_factory.mktemp("made")
    model = tiny_model("BertForSequenceClassification", num_labels=2)
    ziplm.save(model, folder / "model", letter_tokenizer())
    ziplm.export(folder / "model", "onnx", output=folder / "exported")
    return folder / "exported"


@pytest.fixture
def file(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the exported file."""
    return Path(shutil.copytree(made, tmp_path / "exported")) / "onnx" / "model.onnx"


def rename(values: Any, old: str, new: str, graph: Any) -> None:
    """Rename an input or an output, and its uses."""
    next(value for value in values if value.name == old).name = new
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def fix_batch(graph: Any) -> None:
    for value in graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 7


DAMAGES: dict[str, Callable[[Any], None]] = {
    "an unknown input": lambda graph: rename(graph.input, "attention_mask", "mask", graph),
    "a cache without positions": lambda graph: rename(
        graph.input, "attention_mask", "past_key_values.0.key", graph
    ),
    "no tokens": lambda graph: rename(graph.input, "input_ids", "token_ids", graph),
    "an unknown output": lambda graph: rename(graph.output, "logits", "scores", graph),
    "another batch": fix_batch,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_with_another_graph_is_a_bad_checkpoint(file: Path, damage: str) -> None:
    load_exported(file)(IDS)  # control
    model = onnx.load(file)
    DAMAGES[damage](model.graph)
    onnx.save(model, file)
    with pytest.raises(BadCheckpoint, match=r"model.onnx") as caught:
        load_exported(file)(IDS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"half"], ids=["empty", "other", "half"])
def test_damaged_bytes_are_exit_code_4(file: Path, tmp_path: Path, data: bytes) -> None:
    file.write_bytes(data if data != b"half" else file.read_bytes()[:5000])
    rows = write_rows(tmp_path / "valid.csv", letter_rows()[:4])
    line = ["evaluate", str(file), "--task", "classification", "--validation-file", rows]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 4, result.stderr
    assert len(result.stderr.splitlines()[-1]) <= 500


@pytest.mark.parametrize("weights", ["missing", "a link to itself", "a folder"])
def test_openvino_does_not_see_weights_that_are_no_file(made: Path, tmp_path: Path, weights: str) -> None:
    """A link to itself would end the process, with an exception of C++ that nobody catches."""
    shutil.copyfile(made / "config.json", tmp_path / "config.json")
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    if weights == "a link to itself":
        (tmp_path / "openvino_model.bin").symlink_to("openvino_model.bin")
    elif weights == "a folder":
        (tmp_path / "openvino_model.bin").mkdir()
    with pytest.raises(BadCheckpoint, match=r"openvino_model.bin"):
        load_exported(tmp_path / "openvino_model.xml")


def test_names_of_classes_in_its_config_are_checked(made: Path, tmp_path: Path) -> None:
    """There are no weights to compare the config with."""
    from ziplm.tasks.columns import model_labels

    model = load_exported(made / "onnx" / "model.onnx")
    model.config.label2id = "LABEL_0"
    with pytest.raises(BadCheckpoint, match="label2id"):
        model_labels(model)
