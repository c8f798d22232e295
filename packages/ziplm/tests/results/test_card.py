"""Model cards: metadata that the Hub reads back, honest figures, and lines to load the model that work."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from ziplm import Member, compress, export
from ziplm.results.card import HEADS, make_card, write_card
from ziplm.results.card_loading import served_file
from ziplm_compressed import options_for, write_files
from ziplm_reports import ENVIRONMENT, made_up_report, training

EVIL = "<script>alert(1)</script> [click](http://x) | `x` \n---\nlicense: evil\n```"


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Member]:
    """A member of each architecture, made by a run."""
    folder = write_files(tmp_path_factory.mktemp("files"))
    return {
        name: compress(**options_for(folder, name, folder / f"{name}-run", speedup=[2]))[0]
        for name in ("bert", "gpt2")
    }


def card_of(folder: Path, report: dict[str, Any], model: str = "you/bert", task: str = "sst2") -> ModelCard:
    (folder / "config.json").write_text('{"architectures": ["ZipBertForSequenceClassification"]}')
    return make_card(folder, report, model, task)


@pytest.mark.parametrize(
    ("name", "pipeline", "metric"),
    [("bert", "text-classification", "accuracy"), ("gpt2", "text-generation", "perplexity")],
)
def test_every_member_has_a_card_that_loads_back(
    members: dict[str, Member], name: str, pipeline: str, metric: str
) -> None:
    card = ModelCard.load(members[name].folder / "README.md")
    assert card.data.pipeline_tag == pipeline
    assert card.data.library_name == "transformers"
    assert {"ziplm", "pruning"} <= set(card.data.tags)
    values = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert values[metric] == pytest.approx(members[name].metrics["metric"]["compressed"], abs=1e-5)
    file = Path(options_for(Path(), name, Path())["validation_file"]).name
    assert {result.dataset_name for result in card.data.eval_results} == {file}  # not the name of the task
    assert card.data.base_model is None  # a local folder is no name on the hub
    assert str(members[name].folder.parent) not in card.content  # nor is anything else of this machine


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_lines_to_load_a_member_work(members: dict[str, Member], name: str) -> None:
    card = (members[name].folder / "README.md").read_text(encoding="utf-8")
    plain, with_ziplm, in_engine = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(plain.splitlines()) == 3
    export(members[name].folder)  # $ ziplm export PATH
    blocked = "import sys; sys.modules['ziplm'] = None\n"
    for code, loaded in ((blocked + plain, "Zip"), (with_ziplm, "Zip"), (blocked + in_engine, "Inference")):
        code = f"PATH = {str(members[name].folder)!r}\n{code}\nprint(type(model).__name__)"
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith(loaded)


def test_a_card_names_the_file_that_was_measured(tmp_path: Path) -> None:
    quantization = {"quantize": "int8", "metric_before": 0.9211, "dense_speedup": 2.31}
    exported = {"files": ["onnx/model_qint8.onnx"], "bytes": 53_500_000}
    text = card_of(tmp_path, made_up_report(2.0, quantization=quantization, exported=exported)).text
    assert "| exported file |  | 53.5 MB |" in text
    assert 'InferenceSession(f"{PATH}/onnx/model_qint8.onnx")' in text
    assert "those of `onnx/model_qint8.onnx`, not of the checkpoint" in text
    assert "Before int8, the accuracy is 0.9211. int8 alone makes the dense model 2.31x as fast." in text
    assert "ziplm export" not in text
    files = ["openvino/openvino_model.bin", "openvino/openvino_model.xml"]
    text = card_of(tmp_path, made_up_report(2.0, exported={"files": files})).text
    assert 'compile_model(f"{PATH}/openvino/openvino_model.xml", "CPU"' in text
    assert "int8" not in text


@pytest.mark.parametrize("files", [None, 3, ["x`y.onnx"], ["../../x.onnx"], [{"a": 1}]])
def test_a_file_with_an_odd_name_is_not_named(tmp_path: Path, files: Any) -> None:
    assert served_file(made_up_report(2.0, exported={"files": files})) is None


def test_a_card_says_how_good_how_fast_and_where(tmp_path: Path) -> None:
    card = str(card_of(tmp_path, made_up_report(2.0)))
    for words in (
        "# you/bert, 2x",
        "**2.02x as fast** (measured, 99 % interval 1.99 to 2.04)",
        "| accuracy (95 % interval) | 0.9243 [0.9053, 0.9403] | 0.9203 [0.9003, 0.9373] |",
        "| share of the dense metric | 100 % | 99.6 % |",
        "Measured on: Intel(R) Xeon(R) Platinum 8488C, engine eager, float32, 1 thread, batch size 8",
        "    0  █████████░░░ 9 of 12  ████████░░░░ 1937 of 3072",
        "   11  ░░░░░░░░░░░░ removed  ███░░░░░░░░░ 659 of 3072",
        "in one shot from the dense model, without training",
        "ziplm export",
        "## Limits",
    ):
        assert words in card
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "you/bert"


def test_a_card_names_the_dataset_that_was_evaluated_on(tmp_path: Path) -> None:
    glue = {"name": "nyu-mll/glue", "config": "sst2"}
    (result, *_) = card_of(tmp_path, made_up_report(2.0, dataset=glue)).data.eval_results
    assert (result.dataset_type, result.dataset_config) == ("nyu-mll/glue", "sst2")
    assert result.dataset_name == "nyu-mll/glue sst2"
    own = {"name": "reviews.csv", "config": None}
    (result, *_) = card_of(
        tmp_path, made_up_report(2.0, dataset=own), task="classification"
    ).data.eval_results
    assert (result.dataset_type, result.dataset_name) == ("reviews.csv", "reviews.csv")


@pytest.mark.parametrize("unknown", [{}, {"dataset": None}, {"dataset": "odd"}])
def test_a_dataset_without_a_name_is_not_given_one(tmp_path: Path, unknown: dict[str, Any]) -> None:
    card = card_of(tmp_path, made_up_report(2.0, **unknown), task="classification")
    assert card.data.eval_results is None
    assert "dataset" not in card.data.to_dict()
    assert "model-index" not in card.data.to_dict()
    assert card.data.metrics == ["accuracy"]


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"regime": "latency", "input lengths": "5 9 24"}, "regime latency, input lengths 5, 9, 24"),
        (
            {"regime": "generate", "prompt lengths": "16 64", "new tokens": 8},
            "regime generate, prompt lengths 16, 64, new tokens 8",
        ),
    ],
)
def test_a_card_names_the_lengths_that_were_measured(
    tmp_path: Path, details: dict[str, str | int], words: str
) -> None:
    report = made_up_report(2.0)
    report["environment"] = {**report["environment"], "sequence_length": None, "details": details}
    assert f"batch size 8, {words}, " in str(card_of(tmp_path, report))


def test_what_was_not_measured_is_not_claimed(tmp_path: Path) -> None:
    card = str(card_of(tmp_path, made_up_report(2.0, measured=None)))
    assert "**2.06x as fast** (predicted by a latency table, not measured)" in card
    assert "The latency table was measured on: Intel" in card
    assert "99 % interval" not in card


def test_a_gradual_member_names_its_training_and_a_recovered_one_its_bias(tmp_path: Path) -> None:
    target = {"name": "recover0.99", "kind": "recover", "value": 0.99}
    card = str(card_of(tmp_path, made_up_report(2.0, training=training(0), target=target)))
    assert "fine-tuned for 600 steps with the dense model as teacher" in card
    assert "The metric has chosen the model's speed" in card
    assert "has chosen" not in str(card_of(tmp_path, made_up_report(2.0)))


@pytest.mark.parametrize("ending", [*HEADS, "Model"])
def test_the_pipeline_is_that_of_the_head(tmp_path: Path, ending: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [f"ZipBert{ending}"]}))
    card = make_card(tmp_path, made_up_report(2.0), "you/bert", "mine")
    pipeline, auto_class = HEADS.get(ending, ("feature-extraction", "AutoModel"))
    assert card.data.pipeline_tag == pipeline
    assert f"{auto_class}.from_pretrained(PATH, trust_remote_code=True)" in card.text


def test_a_sentence_embedder_is_loaded_by_its_own_library(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    card = card_of(tmp_path, made_up_report(2.0))
    assert (card.data.library_name, card.data.pipeline_tag) == (
        "sentence-transformers",
        "sentence-similarity",
    )
    assert "SentenceTransformer(PATH, trust_remote_code=True)" in card.text


def test_text_from_files_cannot_change_the_card(tmp_path: Path) -> None:
    report = made_up_report(
        2.0,
        target={"name": EVIL, "kind": "speedup", "value": 2.0},
        metric={"name": EVIL, "dense": 0.9, "compressed": 0.8},
        environment={**ENVIRONMENT, "device_name": EVIL},
        versions={EVIL: EVIL},
        sizes={EVIL: [1]},
        dense_sizes={EVIL: 2},
    )
    (tmp_path / "config.json").write_text('{"architectures": ["X"]}')
    write_card(tmp_path, report, EVIL, EVIL)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license is None
    assert card.data.base_model is None
    assert "<script>" not in card.text
    assert "](http://x)" not in card.text.replace("\\]", "")
    assert card.text.count("```") == 10  # the fences of the card's own five blocks
