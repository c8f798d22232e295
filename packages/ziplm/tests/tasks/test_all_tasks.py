"""Every task from its name to its metrics, the settings of tasks, and data from the hub."""

import json
import math
import threading
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from ziplm import BadCheckpoint, UsageError, save
from ziplm.architectures.network import hub_answers
from ziplm.stages.intervals import metric_intervals
from ziplm.tasks import TASKS, Source, Task, make_task
from ziplm.tasks.glue import SPECS
from ziplm.tasks.heads import LABELS, inputs_of
from ziplm.tasks.hub import read_hub
from ziplm_models import tiny_model
from ziplm_tasks import file_for, model_for
from ziplm_text import letter_tokenizer


@pytest.mark.parametrize("name", TASKS)
def test_every_task_from_its_name_to_its_metrics(tmp_path: Path, name: str) -> None:
    save(model_for(name), tmp_path / "model", letter_tokenizer())
    task = make_task(name)
    assert task.name == name
    model = task.load_model(str(tmp_path / "model"))
    tokenizer = task.load_tokenizer(str(tmp_path / "model"))
    path = file_for(name, tmp_path)
    splits = task.load_splits(model, tokenizer, Source(path, path), 24)
    again = task.load_splits(model, tokenizer, Source(path, path), 24)
    assert list(splits.train) == list(again.train)
    ((split, features),) = splits.evaluation.items()
    assert split == "validation"

    batch = task.collate(splits.train[:3])
    assert task.collate(splits.train[:3]).keys() == batch.keys()
    lengths = [len(example["input_ids"]) for example in splits.train[:3]]
    assert batch["input_ids"].shape == (3, max(lengths))
    assert batch["attention_mask"].sum(-1).tolist() == lengths
    assert all(0 < length <= 24 for length in lengths)
    assert {key for key in batch if key in LABELS} or name == "embedding"
    if name != "embedding":
        assert model(**batch).loss.isfinite()
    # Padding changes no output; outputs at padding itself are not compared.
    alone = task.head.outputs(model, task.collate(splits.train[:1]))[0]
    together = task.head.outputs(model, batch)[0]
    for dimension, size in enumerate(alone.shape):
        together = together.narrow(dimension, 0, size)
    assert torch.allclose(together, alone, atol=1e-5)

    model.train()
    model.base_model.eval()
    before = [module.training for module in model.modules()]
    seen: list[tuple[int, int]] = []
    task.prepare_reference(model, features)
    metrics = task.evaluate(model, features, 4, lambda done, total: seen.append((done, total)))
    assert [module.training for module in model.modules()] == before
    assert task.metric in metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert seen[-1] == (len(features), len(features))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert task.evaluate(model, features, 1) == pytest.approx(metrics, rel=1e-4)
    predictions = task.predict(model, features, 4)
    assert task.metrics_of(predictions) == metrics
    (count,) = {len(values) for values in predictions.values()}
    assert 1 < count <= len(features)
    twice = {key: np.concatenate([values, values]) for key, values in predictions.items()}
    assert task.metrics_of(twice) == pytest.approx(metrics, rel=1e-6)
    halves = [{key: values[part::2] for key, values in predictions.items()} for part in (0, 1)]
    assert [task.metrics_of(half).keys() for half in halves] == [metrics.keys()] * 2
    intervals = metric_intervals(task, predictions, resamples=20)
    assert intervals.keys() == metrics.keys()
    # The accuracy over words is no share of sentences, which are the examples.
    shares = {"accuracy", "exact_match"} if name != "token-classification" else set()
    assert set(task.proportions) & metrics.keys() == shares & metrics.keys()
    with pytest.raises(UsageError, match="no examples to evaluate on"):
        task.evaluate(model, [])
    with pytest.raises(UsageError, match="batch size is 0"):
        task.evaluate(model, features, 0)


@pytest.mark.parametrize("name", TASKS)
def test_a_split_without_a_file_is_empty(tmp_path: Path, name: str) -> None:
    model, path = model_for(name), file_for(name, tmp_path)
    only_train = make_task(name).load_splits(model, letter_tokenizer(), Source(train_file=path), 24)
    assert (len(only_train.train) > 0, dict(only_train.evaluation)) == (True, {})
    source = Source(validation_file=str(tmp_path / "never-read"), eval_file=path)
    only_eval = make_task(name).load_splits(model, letter_tokenizer(), source, 24)
    assert (len(only_eval.train), list(only_eval.evaluation)) == (0, ["eval"])


@pytest.mark.parametrize("name", TASKS)
def test_the_error_names_a_file_that_does_not_exist(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"nothing.jsonl does not exist; check the path"):
        make_task(name).load_splits(
            model_for(name), letter_tokenizer(), Source(str(tmp_path / "nothing.jsonl")), 24
        )


@pytest.mark.parametrize("name", [name for name in TASKS if name != "embedding"])
def test_a_model_with_the_head_of_another_task_is_refused(tmp_path: Path, name: str) -> None:
    save(tiny_model("BertModel"), tmp_path / "model")
    with pytest.raises(UsageError, match=f"is a BertModel, but task {name} needs a class that ends with"):
        make_task(name).load_model(str(tmp_path / "model"))
    with pytest.raises(BadCheckpoint, match="is not a folder"):
        make_task(name).load_model(str(tmp_path / "none"))


def test_a_missing_or_damaged_tokenizer_is_a_bad_checkpoint(tmp_path: Path) -> None:
    save(tiny_model("BertModel"), tmp_path / "model")
    with pytest.raises(BadCheckpoint, match=r"has no tokenizer; save it beside the model"):
        make_task("embedding").load_tokenizer(str(tmp_path / "model"))
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    with pytest.raises(BadCheckpoint, match=r"tokenizer.json is not JSON"):
        make_task("embedding").load_tokenizer(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("name", "near"),
    [("sst-2", "sst2"), ("SQuAD", "squad"), ("causal_lm", "causal-lm"), ("maskedlm", "masked-lm")],
)
def test_the_error_for_an_unknown_task_suggests_similar_names(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"there is no task '{name}'; try .*{near}"):
        make_task(name)


def test_the_error_for_an_unknown_setting_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="task causal-lm has no setting 'strid'; it has stride, dataset"):
        make_task("causal-lm", strid=3)
    with pytest.raises(UsageError, match="task sst2 has no setting 'x'; it has none"):
        make_task("sst2", x=3)


@pytest.mark.parametrize("value", ["7", 7, 7.0])
def test_a_numeric_setting_may_be_given_as_text(value: Any) -> None:
    task: Any = make_task("causal-lm", stride=value, dataset="7")
    assert (task.stride, task.dataset) == (7, "7")
    assert isinstance(task.stride, int)


@pytest.mark.parametrize("value", ["seven", "7.5", 7.5, [7]])
def test_a_setting_of_the_wrong_type_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"the setting stride of task causal-lm is .+; give a whole number"):
        make_task("causal-lm", stride=value)
    with pytest.raises(UsageError, match="the setting share of task masked-lm is 'x'; give a number"):
        make_task("masked-lm", share="x")


def test_a_data_loader_batches_the_examples_of_a_split(tmp_path: Path) -> None:
    task: Task = make_task("sst2")
    splits = task.load_splits(model_for("sst2"), letter_tokenizer(), Source(file_for("sst2", tmp_path)), 24)
    loader: Any = DataLoader(splits.train, batch_size=4, collate_fn=task.collate)  # type: ignore[arg-type]
    batches = list(loader)
    assert [len(batch["labels"]) for batch in batches] == [4, 4, 2]
    assert torch.equal(batches[0]["input_ids"], task.collate(splits.train[:4])["input_ids"])
    assert "labels" not in inputs_of(batches[0])


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulate a machine without network or cached data, on which offline mode is not set."""
    monkeypatch.setattr("ziplm.tasks.hub.hub_answers", lambda: False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [*SPECS, "squad"])
def test_without_network_and_cache_the_error_asks_for_files(
    offline: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline_modes = []
    original = datasets.load_dataset

    def load_dataset(*names: Any, **options: Any) -> Any:
        offline_modes.append(datasets.config.HF_HUB_OFFLINE)  # must be set, or datasets retries for minutes
        return original(*names, **options)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(UsageError, match=r"there is no network, and .* local cache.* give --train-file"):
        make_task(name).load_splits(model_for(name), letter_tokenizer(), Source(), 24)
    assert (offline_modes, datasets.config.HF_HUB_OFFLINE) == ([True], False)


def test_without_network_the_local_cache_is_used(offline: Path) -> None:
    folder = offline / "nyu-mll___glue" / "sst2" / "0.0.0" / "abc"
    folder.mkdir(parents=True)
    data = datasets.Dataset.from_dict({"sentence": ["b x", "a"], "label": [1, 0], "idx": [0, 1]})
    sizes = {}
    for split in ("train", "validation"):
        with datasets.arrow_writer.ArrowWriter(path=str(folder / f"glue-{split}.arrow")) as writer:
            writer.write_table(data.data.table)
            writer.finalize()
        sizes[split] = {"name": split, "num_examples": 2, "dataset_name": "glue"}
    info = {"config_name": "sst2", "dataset_name": "glue", "builder_name": "parquet", "splits": sizes}
    info["version"] = {"version_str": "0.0.0", "major": 0, "minor": 0, "patch": 0}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    assert read_hub("nyu-mll/glue:sst2", "train").columns["sentence"] == ["b x", "a"]
    splits = make_task("sst2").load_splits(model_for("sst2"), letter_tokenizer(), Source(), 24)
    assert [example["labels"] for example in splits.train] == [1, 0]


def test_the_error_names_a_dataset_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise ValueError("Unknown split 'a'\nmore lines")

    monkeypatch.setattr("ziplm.tasks.hub.hub_answers", lambda: True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(UsageError, match=r"the dataset x:y has no split train, or .*: Unknown split 'a'"):
        read_hub("x:y", "train")


def test_waiting_for_a_hub_that_does_not_answer_ends_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    class Session:
        def head(self, *_: Any, **__: Any) -> bool:
            return answered.wait(60)

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr("ziplm.architectures.network.PATIENCE", 0.1)
    assert not hub_answers()
    answered.set()
    monkeypatch.setattr("ziplm.architectures.network.PATIENCE", 60.0)
    assert hub_answers()
