"""GLUE: published files, metrics of known predictions, the model's order of labels, prediction files."""

import math
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from ziplm import UsageError, save
from ziplm.tasks import Source, make_task
from ziplm.tasks.glue import SPECS
from ziplm_models import tiny_model
from ziplm_text import KnownModel, bare_tokenizer, by_first_letter, letter, letter_tokenizer, write_rows

# Training and test files in the published formats. The model of these tests looks at the first letter only.
PUBLISHED = {
    "cola": ("gj04\t1\t\tb ok.\ngj04\t0\t*\ta bad\n", "index\tsentence\n0\tb x\n1\ta y\n"),
    "sst2": ("sentence\tlabel\nb 's fine \t1\na \" bad \t0\n", "index\tsentence\n0\tb x\n1\ta y\n"),
    "mrpc": (
        'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tb " x\t" y\n0\t3\t4\ta said\tz\n',
        'index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tb "x\ty\n1\t3\t4\ta\tz\n',
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tb\ty\t1\nbroken row\n6\t3\t4\ta\t\t0\n",
        "id\tquestion1\tquestion2\n0\tb\tx\n1\ta\ty\n",
    ),
    "mnli": (
        "sentence1\tsentence2\tlabel1\tgold_label\nb x\ty\tentailment\tneutral\na\ty\tneutral\tentailment\n",
        "index\tsentence1\tsentence2\n0\tb x\ty\n1\ta\ty\n",
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tb x?\ty\tnot_entailment\n1\ta?\ty\tentailment\n",
        "index\tquestion\tsentence\n0\tb x?\ty\n1\ta?\ty\n",
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tb x\ty\tnot_entailment\n1\ta\ty\tentailment\n",
        "index\tsentence1\tsentence2\n0\tb x\ty\n1\ta\ty\n",
    ),
}


def letters_for(name: str) -> str:
    return "abc"[: len(SPECS[name].labels)]


def splits_of(task: Any, model: Any, path: Path, **source: Any) -> Any:
    return task.load_splits(model, letter_tokenizer(), Source(validation_file=str(path), **source), 32)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read_unchanged(tmp_path: Path, name: str) -> None:
    (tmp_path / "dev.tsv").write_text(PUBLISHED[name][0])
    task, model = make_task(name), by_first_letter(letters_for(name))
    examples = splits_of(task, model, tmp_path / "dev.tsv").evaluation["validation"]
    assert [example["labels"] for example in examples] == [1, 0]
    assert [example["input_ids"][1] for example in examples] == [letter("b"), letter("a")]
    pair = len(SPECS[name].texts[0]) == 2
    assert examples[0]["token_type_ids"][-1] == int(pair)
    assert task.evaluate(model, examples)[task.metric] == 1.0


@pytest.mark.parametrize("name", PUBLISHED)
def test_predictions_are_written_in_the_format_of_the_server(tmp_path: Path, name: str) -> None:
    (tmp_path / "test_matched.tsv").write_text(PUBLISHED[name][1])
    (tmp_path / "test_mismatched.tsv").write_text(PUBLISHED[name][1])
    task, model = make_task(name), by_first_letter(letters_for(name))
    source = Source(eval_file=str(tmp_path / "test_matched.tsv"))
    tests = task.load_test(model, letter_tokenizer(), source, 32)
    title = SPECS[name].title
    assert list(tests) == (["MNLI-m.tsv", "MNLI-mm.tsv"] if name == "mnli" else [f"{title}.tsv"])
    for file, features in tests.items():
        assert "labels" not in features[0]
        task.write_predictions(model, features, tmp_path / file)
        names = SPECS[name].labels if name in ("mnli", "qnli", "rte") else ("0", "1")
        assert (tmp_path / file).read_text() == f"index\tprediction\n0\t{names[1]}\n1\t{names[0]}\n"


def test_predictions_for_mismatched_mnli_alone_are_named_mismatched(tmp_path: Path) -> None:
    (tmp_path / "test_mismatched.tsv").write_text(PUBLISHED["mnli"][1])
    source = Source(eval_file=str(tmp_path / "test_mismatched.tsv"))
    task: Any = make_task("mnli")
    assert list(task.load_test(by_first_letter("abc"), letter_tokenizer(), source, 32)) == ["MNLI-mm.tsv"]


def test_predicted_similarities_are_clipped_to_0_and_5(tmp_path: Path) -> None:
    def answer(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": (ids[:, 1:2] - letter("c")).float()}  # c is 0, d is 1, …

    task, model = make_task("stsb"), KnownModel(answer, num_labels=1)
    (tmp_path / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tx\n1\te\ty\n2\tz\ty\n")
    tests = task.load_test(model, letter_tokenizer(), Source(eval_file=str(tmp_path / "test.tsv")), 32)
    task.write_predictions(model, tests["STS-B.tsv"], tmp_path / "STS-B.tsv")
    assert (tmp_path / "STS-B.tsv").read_text() == "index\tprediction\n0\t0.000\n1\t2.000\n2\t5.000\n"


def test_correlations_of_known_predictions(tmp_path: Path) -> None:
    def answer(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": (ids[:, 1:2] - letter("a")).float()}

    rows = [
        {"sentence1": first, "sentence2": "x", "score": score}
        for first, score in zip("abdc", (0, 1, 2, 5), strict=True)
    ]
    task, model = make_task("stsb"), KnownModel(answer, num_labels=1)
    found = task.evaluate(
        model, splits_of(task, model, Path(write_rows(tmp_path / "dev.tsv", rows))).evaluation["validation"]
    )
    # Predictions 0, 1, 3, 2 for 0, 1, 2, 5: ranks differ by 0, 0, 1, 1, so rho = 1 - 6 * 2 / (4 * 15).
    assert found["spearman"] == pytest.approx(0.8)
    # Deviations -1.5, -0.5, 1.5, 0.5 and -2, -1, 0, 3.
    assert found["pearson"] == pytest.approx(5.0 / math.sqrt(5 * 14))


def test_f1_and_matthews_of_known_predictions(tmp_path: Path) -> None:
    # Predictions 1, 1, 1, 0, 0 for 1, 1, 0, 1, 0: TP 2, FP 1, FN 1, TN 1.
    guesses, labels = "bbbaa", (1, 1, 0, 1, 0)
    rows = [
        {"sentence1": g, "sentence2": "x", "sentence": g, "label": y}
        for g, y in zip(guesses, labels, strict=True)
    ]
    path = Path(write_rows(tmp_path / "dev.jsonl", rows))
    model = by_first_letter("ab")
    for name, expected in {
        "mrpc": {"f1": 4 / 6, "accuracy": 0.6},
        "cola": {"matthews": (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2), "accuracy": 0.6},
        "sst2": {"accuracy": 0.6},
    }.items():
        task = make_task(name)
        found = task.evaluate(model, splits_of(task, model, path).evaluation["validation"], batch_size=2)
        assert found == pytest.approx(expected)
        assert next(iter(found)) == task.metric


def test_the_correlation_of_constant_predictions_is_0(tmp_path: Path) -> None:
    rows = [{"sentence1": text, "sentence2": "x", "score": score} for score, text in enumerate("abc")]
    task = make_task("stsb")
    for noise in (0.0, 1e-9):  # the second is below rounding

        def answer(ids: torch.Tensor, noise: float = noise) -> dict[str, torch.Tensor]:
            return {"logits": 3.0 + noise * ids[:, 1:2].double()}

        model = KnownModel(answer, num_labels=1)
        path = Path(write_rows(tmp_path / "d.tsv", rows))
        found = task.evaluate(model, splits_of(task, model, path).evaluation["validation"])
        assert found == {"spearman": 0.0, "pearson": 0.0}


@pytest.mark.parametrize("name", ["cola", "mrpc"])
def test_a_model_that_always_predicts_class_0_scores_0(tmp_path: Path, name: str) -> None:
    rows = [{"sentence1": "a", "sentence2": "x", "sentence": "a", "label": y} for y in (0, 1)]
    task, model = make_task(name), by_first_letter("ab")
    examples = splits_of(task, model, Path(write_rows(tmp_path / "d.jsonl", rows))).evaluation["validation"]
    assert task.evaluate(model, examples)[task.metric] == 0.0


def test_labels_are_numbered_as_in_the_model(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text(PUBLISHED["mnli"][0])
    own = {"CONTRADICTION": 0, "ENTAILMENT": 1, "NEUTRAL": 2}
    task, model = make_task("mnli"), by_first_letter("cab", label2id=own)  # b is its third class
    examples = splits_of(task, model, tmp_path / "dev.tsv").evaluation["validation"]
    assert [example["labels"] for example in examples] == [2, 1]
    assert task.evaluate(model, examples) == {"accuracy": 1.0}
    task.write_predictions(model, examples, tmp_path / "out.tsv")
    assert (tmp_path / "out.tsv").read_text() == "index\tprediction\n0\tneutral\n1\tentailment\n"


def test_the_mismatched_file_of_mnli_is_found_in_the_same_folder(tmp_path: Path) -> None:
    task, model = make_task("mnli"), by_first_letter("abc")
    (tmp_path / "dev_matched.tsv").write_text(PUBLISHED["mnli"][0])
    assert list(splits_of(task, model, tmp_path / "dev_matched.tsv").evaluation) == ["validation"]
    (tmp_path / "dev_mismatched.tsv").write_text(PUBLISHED["mnli"][0])
    found = splits_of(task, model, tmp_path / "dev_matched.tsv").evaluation
    assert list(found) == ["validation_matched", "validation_mismatched"]
    assert list(splits_of(task, model, tmp_path / "dev_mismatched.tsv").evaluation) == ["validation"]


@pytest.mark.parametrize(("name", "outputs"), [("sst2", 3), ("mnli", 2), ("stsb", 2)])
def test_a_head_with_the_wrong_number_of_outputs_is_refused(tmp_path: Path, name: str, outputs: int) -> None:
    with pytest.raises(UsageError, match=f"the model has {outputs} outputs, but task {name} needs"):
        splits_of(make_task(name), by_first_letter("abc"[:outputs]), tmp_path / "never-read.tsv")


def test_mnli_on_the_hub_is_read_by_the_names_of_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, config: str, split: str) -> datasets.Dataset:
        asked.append((name, config, split))
        return datasets.Dataset.from_dict({"premise": ["b x"], "hypothesis": ["y"], "label": [1], "idx": [0]})

    monkeypatch.setattr("ziplm.tasks.hub.hub_answers", lambda: True)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    splits = make_task("mnli").load_splits(by_first_letter("abc"), letter_tokenizer(), Source(), 32)
    names = ("train", "validation_matched", "validation_mismatched")
    assert sorted(asked) == [("nyu-mll/glue", "mnli", name) for name in names]
    assert splits.train[0]["labels"] == 1
    assert splits.train[0]["input_ids"] == splits.evaluation["validation_mismatched"][0]["input_ids"]


def test_a_decoder_without_a_padding_token_pads_with_the_end_of_text(tmp_path: Path) -> None:
    model, task = tiny_model("GPT2ForSequenceClassification"), make_task("sst2")
    model.config.pad_token_id = None
    save(model, tmp_path / "model", bare_tokenizer())
    loaded = task.load_model(str(tmp_path / "model"))
    rows = [{"sentence": text, "label": 0} for text in ("a", "b c d e f")]
    source = Source(write_rows(tmp_path / "d.tsv", rows))
    train = task.load_splits(loaded, task.load_tokenizer(str(tmp_path / "model")), source, 16).train
    batch = task.collate(train[:2])
    assert loaded.config.pad_token_id == loaded.config.eos_token_id == batch["input_ids"][0, -1]
    alone = [loaded(**task.collate([example])).logits for example in train]
    assert torch.allclose(loaded(**batch).logits, torch.cat(alone), atol=1e-5)


def test_a_decoder_classifies_padded_batches_as_single_examples(tmp_path: Path) -> None:
    """Decoders look for the padding token to find the last token of a text."""
    model = tiny_model("GPT2ForSequenceClassification")
    rows = [{"sentence": text, "label": 0} for text in ("a", "b c d e f", "x y")]
    task = make_task("sst2")
    examples = splits_of(task, model, Path(write_rows(tmp_path / "d.tsv", rows))).evaluation["validation"]
    batch = task.collate(examples)
    alone = [model(**task.collate([example])).logits for example in examples]
    assert torch.allclose(model(**batch).logits, torch.cat(alone), atol=1e-5)
