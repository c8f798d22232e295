"""SQuAD: the scores of its definition, answers found across windows, and its file formats."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ziplm import UsageError
from ziplm.errors import NotFinite
from ziplm.tasks import Source, make_task
from ziplm.tasks.squad_metrics import best_score, exact_match, f1
from ziplm_text import KnownModel, letter, letter_tokenizer, question, write_rows, write_squad


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "overlap"),
    [
        ("the Cat", "cat", 1, 1),
        ("A cat.", "an cat!", 1, 1),
        ("U.S.A.", "usa", 1, 1),
        ("cat sat", "cat", 0, 2 / 3),
        ("cat cat dog", "cat dog dog", 0, 2 / 3),
        ("theatre", "atre", 0, 0),
        ("", "cat", 0, 0),
        ("the", "a", 1, 0),  # articles do not count: both are empty, hence equal, but share no word
        ("  white   space ", "white space", 1, 1),
        ("well-known", "well known", 0, 0),
    ],
)
def test_scores_of_known_answers(prediction: str, answer: str, exact: float, overlap: float) -> None:
    assert exact_match(prediction, answer) == exact
    assert f1(prediction, answer) == pytest.approx(overlap)


def test_the_best_of_several_answers_counts() -> None:
    assert best_score(f1, "red fox", ["dog", "fox", "quick red fox"]) == pytest.approx(0.8)
    assert best_score(exact_match, "fox", ["dog", "the fox"]) == 1


def span_model(start: str, end: str) -> KnownModel:
    """Return a model with start logits of 5 at one letter and end logits of 5 at another.

    The logits are 1 at special tokens, and 0 elsewhere.
    """

    def logits(ids: torch.Tensor, name: str) -> torch.Tensor:
        return 5.0 * (ids == letter(name)) + 1.0 * (ids < 5)

    return KnownModel(lambda ids: {"start_logits": logits(ids, start), "end_logits": logits(ids, end)})


def evaluate(
    tmp_path: Path, model: KnownModel, asked: list[dict[str, Any]], length: int = 48, **settings: Any
) -> Any:
    task = make_task("squad", **settings)
    path = write_squad(tmp_path / "dev.json", asked)
    features = task.load_splits(model, letter_tokenizer(), Source(eval_file=path), length).evaluation["eval"]
    return task.evaluate(model, features, batch_size=2), features


def test_answers_are_copied_from_the_context_with_case_and_spaces(tmp_path: Path) -> None:
    context = "Well,  X big  Y dog."
    found, _ = evaluate(tmp_path, span_model("x", "y"), [question("what?", context, "X big  Y")])
    assert found == {"f1": 1.0, "exact_match": 1.0}
    # The question contains both letters, too, but answers come from the context.
    found, _ = evaluate(tmp_path, span_model("x", "y"), [question("x y?", context, "X big  Y")])
    assert found == {"f1": 1.0, "exact_match": 1.0}


def test_an_answer_is_found_in_any_window_of_a_long_context(tmp_path: Path) -> None:
    for place in range(0, 60, 7):
        words = ["b"] * 60
        words[place : place + 2] = ["x", "y"]
        found, features = evaluate(
            tmp_path, span_model("x", "y"), [question("q?", " ".join(words), "x y")], 24
        )
        assert len(features) > 3
        assert found == {"f1": 1.0, "exact_match": 1.0}
        labelled = [f for f in features if f["start_positions"]]
        assert labelled
        for feature in labelled:
            ids = feature["input_ids"]
            assert ids[feature["start_positions"]] == letter("x")
            assert ids[feature["end_positions"]] == letter("y")
        for feature in features:
            assert bool(feature["start_positions"]) == (
                letter("x") in feature["input_ids"] and letter("y") in feature["input_ids"]
            )


def test_scores_are_means_over_questions_and_not_over_windows(tmp_path: Path) -> None:
    long = " ".join(["b"] * 50 + ["x", "y"])
    asked = [question("q?", long, "x y"), question("r?", "x y c", "c"), question("s?", "x y c", "y c", "y")]
    found, features = evaluate(tmp_path, span_model("x", "y"), asked, 24)
    assert len(features) > 5
    assert found == pytest.approx({"f1": (1 + 0 + 2 / 3) / 3, "exact_match": 1 / 3})


def test_spans_do_not_end_before_they_start_and_respect_the_maximum_length(tmp_path: Path) -> None:
    # One y comes before x, and the other one is further away than the maximum length of 3 tokens.
    _, features = evaluate(tmp_path, span_model("x", "y"), [question("q?", "y b x b b b b y", "b")], 48)
    window, task = features[0], make_task("squad", max_answer=3)
    starts, ends = np.zeros((2, len(window["input_ids"])))
    inside = [i for i, offset in enumerate(np.reshape(window["offsets"], (-1, 2))) if offset[0] >= 0]
    starts[inside[2]], ends[inside[7]], ends[inside[4]], ends[inside[0]] = 5, 9, 1, 20
    assert task.answer(starts, ends, window) == (20.0, "y")
    ends[inside[0]] = 0
    assert task.answer(starts, ends, window) == (9.0, "b b y")
    ends[inside[7]] = 2
    assert task.answer(starts, ends, window) == (6.0, "x b b")
    assert make_task("squad").answer(starts, ends, window) == (7.0, "x b b b b y")


def test_logits_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    def answer(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: torch.full(ids.shape, torch.nan) for name in ("start_logits", "end_logits")}

    with pytest.raises(NotFinite, match="outputs are not finite"):
        evaluate(tmp_path, KnownModel(answer), [question("q?", "a x", "x")])


def test_a_long_question_is_cut_to_a_third_of_the_length(tmp_path: Path) -> None:
    _, features = evaluate(tmp_path, span_model("x", "y"), [question("q" * 100, "x y", "x")], 24)
    assert len(features) == 1
    inside_words = letter("q") + 26
    assert 1 + features[0]["input_ids"].count(inside_words) == 8  # a third of 24


def test_tables_give_the_same_examples_as_published_files(tmp_path: Path) -> None:
    asked = [question("q?", "a x y", "x"), question("r?", "b", "b")]
    _, expected = evaluate(tmp_path, span_model("x", "y"), asked)
    flat = [
        row
        | {
            "answers": {
                name: [answer[name] for answer in row["answers"]] for name in ("text", "answer_start")
            }
        }
        for row in asked
    ]
    for file in ("a.jsonl", "a.parquet", "a.json"):
        path = write_rows(tmp_path / file, flat)
        found = (
            make_task("squad").load_splits(span_model("x", "y"), letter_tokenizer(), Source(path), 48).train
        )
        assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": []}, "question 1 of a.jsonl lacks a text, a context, or answers"),
        ({"answers": None}, "lacks a text"),
        ({"answers": [{"text": "a"}]}, "lacks a text"),
        ({"question": ""}, "lacks a text"),
        ({"context": None}, "lacks a text"),
        ({"answers": [{"text": "x", "answer_start": 99}]}, "lacks a text"),
        ({"answers": [{"text": "x", "answer_start": float("inf")}]}, "lacks a text"),
        ({"answers": [{"text": "x", "answer_start": 0}]}, "1 of 1 questions .* not at its answer_start"),
    ],
)
def test_the_error_for_a_bad_question_names_it(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_rows(tmp_path / "a.jsonl", [question("q?", "a x y", "x") | change])
    with pytest.raises(UsageError, match=message):
        make_task("squad").load_splits(span_model("x", "y"), letter_tokenizer(), Source(path), 48)


def test_bad_files_and_settings_are_refused(tmp_path: Path) -> None:
    def load(content: Any, **settings: Any) -> None:
        (tmp_path / "a.json").write_text(json.dumps(content))
        source = Source(str(tmp_path / "a.json"))
        make_task("squad", **settings).load_splits(span_model("x", "y"), letter_tokenizer(), source, 48)

    with pytest.raises(UsageError, match="not as SQuAD publishes it: KeyError 'qas'"):
        load({"data": [{"paragraphs": [{"context": "a"}]}]})
    with pytest.raises(UsageError, match="holds no questions"):
        load({"data": [{"paragraphs": []}]})
    with pytest.raises(UsageError, match="no column 'context', only a"):
        load([{"a": 1}])
    with pytest.raises(UsageError, match="cannot share 40; choose an overlap from 0 to 28"):
        load([question("q?", "a x", "x")], overlap=40)
    with pytest.raises(UsageError, match="max_answer is 0"):
        make_task("squad", max_answer=0)
