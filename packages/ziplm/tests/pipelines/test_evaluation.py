"""Evaluation of a checkpoint by the command."""

from pathlib import Path

import pytest
import torch
import ziplm
from click.testing import CliRunner, Result
from ziplm.cli import main
from ziplm_models import tiny_model
from ziplm_text import letter_rows, letter_tokenizer, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny classifier and its data."""
    folder = tmp_path_factory.mktemp("evaluation")
    ziplm.save(tiny_model("BertForSequenceClassification"), folder / "classifier", letter_tokenizer())
    write_rows(folder / "train.csv", letter_rows())
    return folder


def evaluate(folder: Path, *more: object) -> Result:
    arguments = ("evaluate", folder / "classifier", "--validation-file", folder / "train.csv", *more)
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("device", ["cuda", "foo"])
def test_a_device_that_does_not_exist_is_refused_in_one_line(folder: Path, device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        device = "cuda:99"
    result = evaluate(folder, "--task", "classification", "--device", device)
    assert result.exit_code in (1, 2)
    assert len(result.stderr.strip().splitlines()) == 1


def test_predictions_are_written_for_a_validation_file(folder: Path, tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.tsv", [{"sentence": "a b"}, {"sentence": "c"}])
    more = ("--validation-file", test, "--predictions", tmp_path / "out")
    result = evaluate(folder, "--task", "sst2", "--max-length", 16, *more)
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "out/SST-2.tsv").read_text().splitlines()) == 3
