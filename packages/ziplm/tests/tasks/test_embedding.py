"""Embeddings: pooling saved by sentence-transformers, and metrics against values computed by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from obs_structured import prune
from sentence_transformers import SentenceTransformer
from ziplm import BadCheckpoint, UsageError, save, shrink
from ziplm.architectures.registry import architecture_of
from ziplm.tasks import Source, make_task
from ziplm.tasks.embedding import KNOWN_SPLITS, nearest
from ziplm_models import tiny_model
from ziplm_text import KnownModel, letter, letter_tokenizer, write_rows

ANGLES = {name: number for number, name in enumerate("abcdefghijklmnopqrstuvwxyz")}


def angle_model(turn: float = 0.1, scramble: int = 1) -> KnownModel:
    """Return a model whose hidden states are a direction in the plane that the first letter determines."""

    def answer(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        angles = ((ids[:, 1:2] - letter("a")) * scramble % 26 * turn).expand(ids.shape)
        return {"last_hidden_state": torch.stack([angles.cos(), angles.sin()], dim=-1)}

    return KnownModel(answer, hidden_size=2)


def sentence_folder(tmp_path: Path, modes: dict[str, bool], kinds: tuple[str, ...] = ("Normalize",)) -> Path:
    """Write a model in the format of sentence-transformers, and return its folder."""
    folder = tmp_path / "model"
    save(tiny_model("BertModel"), folder, letter_tokenizer())
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    modules.append(
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    )
    modules += [
        {"idx": 2, "name": "2", "path": f"2_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for kind in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **modes}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 5}))
    return folder


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_and_length_are_read_and_copied(tmp_path: Path, pooling: str) -> None:
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    folder = sentence_folder(tmp_path, modes)
    task: Any = make_task("embedding")
    model = task.load_model(str(folder))
    assert (type(model).__name__, task.head.pooling) == ("BertModel", pooling)
    source = Source(write_rows(tmp_path / "a.csv", [{"text": "abcdefgh"}]))
    train = task.load_splits(model, task.load_tokenizer(str(folder)), source, 32).train
    assert len(train[0]["input_ids"]) == 5
    save(model, tmp_path / "other", letter_tokenizer())
    task.copy_extras(folder, tmp_path / "other")
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert (tmp_path / "other" / name).read_bytes() == (folder / name).read_bytes()
    again: Any = make_task("embedding")
    again.load_model(str(tmp_path / "other"))
    assert (again.head.pooling, again.longest) == (pooling, 5)


def test_a_plain_checkpoint_loads_without_its_head_and_pools_as_the_setting_says(tmp_path: Path) -> None:
    save(tiny_model("BertForMaskedLM"), tmp_path / "model")
    for settings, expected in [({}, "mean"), ({"pooling": "cls"}, "cls")]:
        task: Any = make_task("embedding", **settings)
        assert type(task.load_model(str(tmp_path / "model"))).__name__ == "BertModel"
        assert task.head.pooling == expected
    assert task.load_model(str(tmp_path / "model")).pooler is not None  # a bare model has one
    with pytest.raises(UsageError, match="the pooling is 'max'; give mean or cls"):
        make_task("embedding", pooling="max")


@pytest.mark.parametrize("source", ["plain", "other pooling"])
def test_a_shrunk_model_opens_in_sentence_transformers(tmp_path: Path, source: str) -> None:
    """Its pooling is the task's, whatever the folder of the dense model says."""
    if source == "plain":
        save(tiny_model("BertModel"), tmp_path / "model", letter_tokenizer())
    else:
        sentence_folder(tmp_path, {"pooling_mode_mean_tokens": True})
    task: Any = make_task("embedding", pooling="cls")
    model = task.load_model(str(tmp_path / "model"))
    architecture = architecture_of(model)
    branches = architecture.branches(model)
    weights = [architecture.weight(model, branch) for branch in branches]
    traces = [
        prune(weight, torch.eye(weight.shape[1]), branch.group_size)
        for weight, branch in zip(weights, branches, strict=True)
    ]
    small = shrink(model, [branch.groups // 2 for branch in branches], traces)
    save(
        small,
        tmp_path / "small",
        letter_tokenizer(),
        also=lambda folder: task.copy_extras(tmp_path / "model", folder),
    )
    texts = ["a b", "c"]
    opened = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    made = torch.tensor(opened.encode(texts, normalize_embeddings=True))
    features = [dict(letter_tokenizer()(text)) for text in texts]
    torch.testing.assert_close(made, task.embed(small, features), rtol=1e-5, atol=1e-6)
    mean: Any = make_task("embedding", pooling="mean")
    assert not torch.allclose(made, mean.embed(small, features), atol=1e-3)  # control


def test_other_poolings_and_other_modules_are_refused(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, {"pooling_mode_max_tokens": True})
    with pytest.raises(BadCheckpoint, match="pools by pooling_mode_max_tokens; only mean and cls"):
        make_task("embedding").load_model(str(folder))
    folder = sentence_folder(tmp_path, {"pooling_mode_mean_tokens": True}, ("Dense",))
    with pytest.raises(BadCheckpoint, match="has a module Dense"):
        make_task("embedding").load_model(str(folder))
    (folder / "modules.json").write_text("[{")
    with pytest.raises(BadCheckpoint, match=r"modules.json is not JSON"):
        make_task("embedding").load_model(str(folder))


def test_pairs_are_judged_by_the_correlation_of_cosines_and_scores(tmp_path: Path) -> None:
    # Angles between the texts of the pairs: 1, 2, 4, 3 steps; scores fall with 1, 2, 3, 4.
    rows = [
        {"sentence1": "a", "sentence2": other, "score": score}
        for other, score in zip("bced", (5, 4, 3, 1), strict=True)
    ]
    task, model = make_task("embedding"), angle_model()
    source = Source(validation_file=write_rows(tmp_path / "a.tsv", rows))
    features = task.load_splits(model, letter_tokenizer(), source, 32).evaluation["validation"]
    assert len(features) == 8
    task.prepare_reference(model, features)
    found = task.evaluate(model, features, batch_size=3)
    assert (task.metric, found["spearman"]) == ("spearman", pytest.approx(0.8))
    cosines = torch.tensor([0.1, 0.2, 0.4, 0.3]).cos()
    pearson = torch.corrcoef(torch.stack([cosines, torch.tensor([5.0, 4, 3, 1])]))[0, 1]
    assert found["pearson"] == pytest.approx(float(pearson), rel=1e-5)


def test_single_texts_are_judged_by_the_neighbours_that_the_dense_model_finds(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(ANGLES) + "\n\n")
    task = make_task("embedding")
    source = Source(eval_file=str(tmp_path / "a.txt"))
    features = task.load_splits(angle_model(), letter_tokenizer(), source, 32).evaluation["eval"]
    assert (len(features), task.metric) == (26, "neighbour_overlap")
    with pytest.raises(UsageError, match="no dense model to compare neighbours with; evaluate on pairs"):
        task.evaluate(angle_model(), features)
    task.prepare_reference(angle_model(), features)
    assert task.evaluate(angle_model(), features) == {"neighbour_overlap": 1.0}
    assert task.evaluate(angle_model(turn=0.05), features) == {"neighbour_overlap": 1.0}  # the same order
    assert task.evaluate(angle_model(scramble=7), features)["neighbour_overlap"] < 0.6


def test_the_neighbours_of_each_split_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = make_task("embedding")
    dense, embed, embedded = angle_model(), task.embed, []

    def noted(model: Any, features: Any, *arguments: Any, **more: Any) -> torch.Tensor:
        embedded.append((model, features))
        return embed(model, features, *arguments, **more)

    monkeypatch.setattr(task, "embed", noted)
    splits = [[dict(letter_tokenizer()(name)) for name in names] for names in ("abcdefg", "hijklmn")]
    for _ in range(3):
        for features in splits:
            task.prepare_reference(dense, features)
            assert task.reference.equal(nearest(embed(dense, features)))
    assert [features is split for (_, features), split in zip(embedded, splits, strict=True)] == [True, True]
    other = angle_model(scramble=7)
    task.prepare_reference(other, splits[0])  # another model has neighbours of its own
    assert task.reference.equal(nearest(embed(other, splits[0])))
    assert not task.reference.equal(nearest(embed(dense, splits[0])))  # control
    for _ in range(20):
        task.prepare_reference(dense, list(splits[0]))
    assert len(embedded) == 2 + 1 + 20
    assert len(task._known) == KNOWN_SPLITS


def test_nearest_neighbours_of_known_angles() -> None:
    angles = torch.tensor([0.0, 0.1, 0.3, 0.7, 1.5])
    found = nearest(torch.stack([angles.cos(), angles.sin()], dim=-1))
    assert [sorted(row) for row in found.tolist()] == [[1, 2], [0, 2], [0, 1], [1, 2], [2, 3]]
    with pytest.raises(UsageError, match="2 texts have no neighbours"):
        nearest(torch.eye(2))


def test_unusable_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n")
    for source, message in [
        (Source(str(tmp_path / "a.txt")), "holds no text"),
        (Source(), "no data of its own"),
        (
            Source(write_rows(tmp_path / "a.jsonl", [{"text": ""}])),
            "has '' in column 'text', where a text is needed",
        ),
        (
            Source(
                eval_file=write_rows(tmp_path / "b.csv", [{"sentence1": "a", "sentence2": "b", "score": "x"}])
            ),
            "row 1 of b.csv has 'x' in column 'score', which is not a number",
        ),
    ]:
        with pytest.raises(UsageError, match=message):
            make_task("embedding").load_splits(angle_model(), letter_tokenizer(), source, 32)
