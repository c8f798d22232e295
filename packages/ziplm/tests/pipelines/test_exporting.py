"""`ziplm export`: what it writes, what it refuses, and that evaluate and benchmark take its files."""

import json
from pathlib import Path
from typing import Any

import latency_profiler
import onnx
import pytest
import torch
import ziplm
from click.testing import CliRunner, Result
from ziplm.architectures.exported import files_of, home_of, load_exported
from ziplm.cli import main
from ziplm.pipelines import exporting
from ziplm.pipelines.exporting import export_checkpoint
from ziplm.stages import export as export_stage
from ziplm.stages import export_quantize
from ziplm.stages.export_files import place_of
from ziplm.stages.export_quantize import calibration_samples, quantize_onnx_best
from ziplm_compressed import options_for, write_files
from ziplm_models import make_traces, removed_by
from ziplm_pipeline import CLASSIFIER, DECODER, lively_model
from ziplm_text import bare_tokenizer, letter_tokenizer


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "160"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shrunk classifier and a shrunk decoder, data for both, and both exported in float32 and int8."""
    folder = write_files(tmp_path_factory.mktemp("exporting"))
    for name, tokenizer in ((CLASSIFIER, letter_tokenizer()), (DECODER, bare_tokenizer())):
        model = lively_model(name)
        small = ziplm.shrink(model, removed_by(model, "first attention"), make_traces(model))
        ziplm.save(small, folder / name, tokenizer)
    for name, output in ((CLASSIFIER, None), (DECODER, folder / "exported")):
        for quantize in (None, "int8"):
            ziplm.export(folder / name, quantize=quantize, output=output)  # type: ignore[arg-type]
    return folder


def metrics(folder: Path, path: Path) -> dict[str, float]:
    task, file = ("causal-lm", "valid.txt") if "exported" in str(path) else ("classification", "valid.csv")
    path = folder / DECODER if path == folder / "exported" else path
    return ziplm.evaluate(path, task, validation_file=folder / file, max_length=16)["validation"]


def test_files_are_where_servers_look_and_nothing_else_is_written(folder: Path) -> None:
    made = {str(path.relative_to(folder / CLASSIFIER)) for path in (folder / CLASSIFIER).rglob("*.onnx")}
    assert made == {"onnx/model.onnx", "onnx/model_qint8.onnx"}
    assert {path.name for path in (folder / "exported").iterdir()} == {
        *("config.json", "generation_config.json", "onnx", "tokenizer.json", "tokenizer_config.json")
    }
    assert not [path for path in folder.rglob(".*") if path.name.startswith(".export")]
    config = json.loads((folder / "exported/config.json").read_text())
    assert config["model_type"] == "gpt2"  # readable without ziplm
    assert config["architectures"] == [DECODER]
    assert config["zip_heads"][0] == 0
    assert str(place_of("openvino", "int8")) == "openvino/openvino_model_qint8_quantized.xml"


def test_sentence_transformers_finds_the_files(tmp_path: Path) -> None:
    """By its own search, which needs neither optimum nor the contents of the files."""
    utils = pytest.importorskip("sentence_transformers.backend.utils", reason="the extra sentence is missing")
    for name, pattern, engine in (("onnx", "*.onnx", "ONNX"), ("openvino", "openvino*.xml", "OpenVINO")):
        for quantize in (None, "int8"):
            place = place_of(name, quantize)  # type: ignore[arg-type]
            (tmp_path / place).parent.mkdir(exist_ok=True)
            (tmp_path / place).touch()
            asked = {"file_name": place.name}
            export, found = utils.backend_should_export(tmp_path, True, asked, place.name, pattern, engine)
            assert not export
            assert found == {"subfolder": name, "file_name": place.name}


def test_evaluate_gives_the_metrics_of_the_checkpoint(folder: Path) -> None:
    dense = metrics(folder, folder / CLASSIFIER)
    assert metrics(folder, folder / CLASSIFIER / "onnx/model.onnx") == dense
    assert metrics(folder, folder / CLASSIFIER / "onnx/model_qint8.onnx").keys() == dense.keys()
    loss = metrics(folder, folder / "exported")["loss"]
    assert metrics(folder, folder / "exported/onnx/model.onnx")["loss"] == pytest.approx(loss, abs=1e-5)
    int8 = metrics(folder, folder / "exported/onnx/model_qint8.onnx")["loss"]
    assert int8 != pytest.approx(loss, abs=1e-5)
    assert int8 == pytest.approx(loss, rel=0.2)


def test_evaluate_says_the_engine_and_its_threads(folder: Path) -> None:
    data = ("--task", "classification", "--validation-file", folder / "valid.csv")
    found = run("evaluate", folder / CLASSIFIER / "onnx/model.onnx", *data)
    assert found.exit_code == 0, found.stderr
    assert "running in onnxruntime on 1 thread" in found.stderr
    refused = run("evaluate", folder / "exported", *data)
    assert refused.exit_code == 2
    assert "has several exported files: onnx/model.onnx, onnx/model_qint8.onnx; give one of" in refused.stderr
    wrong = run("evaluate", folder / "exported/onnx/model.onnx", *data)
    assert wrong.exit_code == 2
    assert "is a GPT2LMHeadModel, but task classification needs" in wrong.stderr
    missing = run("evaluate", folder / "no.onnx", *data)
    assert missing.exit_code == 4
    assert f"there is no file {folder / 'no.onnx'}" in missing.stderr


def test_embeddings_need_hidden_states(folder: Path) -> None:
    file = folder / CLASSIFIER / "onnx/model.onnx"
    result = run("evaluate", file, "--task", "embedding", "--validation-file", folder / "train.csv")
    assert result.exit_code == 2
    assert "has only the outputs of its head; export a model without a head" in result.stderr


@pytest.mark.parametrize("regime", ["throughput", "generate"])
def test_benchmark_runs_each_model_in_its_engine_with_the_same_threads(folder: Path, regime: str) -> None:
    name, lengths = (
        (DECODER, ("--prompt-length", 4, "--new-tokens", 4))
        if regime == "generate"
        else (
            CLASSIFIER,
            ("--input-length", 8),
        )
    )
    files = folder / ("exported" if name == DECODER else name) / "onnx"
    common = ("--threads", 1, "--max-seconds", 2, "--clock", "cpu", "--regime", regime, "--json")
    paths = (folder / name, files / "model.onnx", files / "model_qint8.onnx")
    result = run("benchmark", *paths, *lengths, *common)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["engine"] for row in found["models"]] == ["eager", "onnxruntime", "onnxruntime"]
    assert all(row["ms"] > 0 and row["bytes"] > 0 for row in found["models"])
    assert found["environment"]["threads"] == 1
    assert found["environment"]["engine"] == "eager, onnxruntime"
    assert found["models"][1]["parameters"] is None


def test_benchmark_refuses_settings_that_files_do_not_have(folder: Path) -> None:
    file = folder / CLASSIFIER / "onnx/model.onnx"
    result = run("benchmark", file, file, "--input-length", 8, "--dtype", "bfloat16")
    assert result.exit_code in (1, 2)
    assert len(result.stderr.strip().splitlines()) <= 2


def test_the_same_export_again_changes_nothing(folder: Path) -> None:
    file = folder / CLASSIFIER / "onnx/model.onnx"
    before = file.stat()
    again = run("export", folder / CLASSIFIER)
    assert again.exit_code == 0, again.stderr
    assert f"{file}: 0.0 MB; outputs differ from the checkpoint's by at most" in again.stdout
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_file_that_is_different_is_kept_unless_it_may_be_replaced(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    (output / "onnx").mkdir(parents=True)
    (output / "onnx/model.onnx").write_text("mine")
    (output / "notes.txt").write_text("mine, too")
    refused = run("export", folder / CLASSIFIER, "-o", output)
    assert refused.exit_code == 2
    assert f"{output / 'onnx/model.onnx'} exists and is different; choose another --output" in refused.stderr
    assert sorted(path.name for path in output.rglob("*")) == ["model.onnx", "notes.txt", "onnx"]
    assert (output / "onnx/model.onnx").read_text() == "mine"
    allowed = run("export", folder / CLASSIFIER, "-o", output, "--overwrite", "--json")
    assert allowed.exit_code == 0, allowed.stderr
    (made,) = json.loads(allowed.stdout)
    assert made["difference"]["largest"] < 1e-4
    assert (output / "notes.txt").read_text() == "mine, too"
    assert home_of(output) == str(output)
    assert load_exported(output / "onnx/model.onnx", 1).config.model_type == "bert"


def test_a_file_that_differs_from_its_checkpoint_is_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_another(model: Any, path: Path, *_: Any) -> None:
        export_stage.export_onnx(lively_model(CLASSIFIER), path)

    monkeypatch.setattr(exporting, "write_file", write_another)
    with pytest.raises(ziplm.ZipLMError, match="the file differs from its checkpoint by"):
        export_checkpoint(str(folder / CLASSIFIER), tmp_path / "out", format="onnx")
    assert list(tmp_path.iterdir()) == []


def test_every_member_of_a_run_is_exported(folder: Path, tmp_path: Path) -> None:
    made = ziplm.compress(**options_for(folder, "bert", tmp_path / "run", speedup=[2]))
    files = ziplm.export(tmp_path / "run")
    assert [each.file for each in files] == [made[0].folder / "onnx/model.onnx"]
    again = ziplm.compress(**options_for(folder, "bert", tmp_path / "run", speedup=[2]))
    assert again[0].folder == made[0].folder  # the run accepts the new files


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((CLASSIFIER, "--format", "torch-export", "--quantize", "int8"), 2, "torch-export is not quantised"),
        ((CLASSIFIER, "--format", "openvino", "--quantize", "int8"), 2, "give --calibration-file"),
        ((f"{CLASSIFIER}/onnx/model.onnx",), 2, "is exported already"),
        (("nothing/here",), 2, "is not a folder here"),
        (("valid.csv",), 4, "is not a folder"),
        ((DECODER, "--quantize", "int8", "--calibration-file", "train.csv"), 2, "without calibration"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(folder)
    result = run("export", *arguments)
    assert result.exit_code == code, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_extra_is_named_with_the_pip_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_stage, "find_spec", lambda name: None if name == "openvino" else object())
    result = run("export", folder / CLASSIFIER, "--format", "openvino")
    assert result.exit_code == 7
    assert result.stderr == (
        "Error: the format openvino needs openvino; run: pip install 'ziplm[openvino]'\n"
    )


def test_static_scales_are_used_if_they_are_more_accurate(folder: Path, tmp_path: Path) -> None:
    model, source = ziplm.load(folder / CLASSIFIER), folder / CLASSIFIER / "onnx/model.onnx"
    samples = calibration_samples(model, letter_tokenizer(), [f"{letter} b c" for letter in "abcdefgh"])
    assert {name: len(tensor) for name, tensor in samples[0].items()} == {
        "input_ids": 1,
        "attention_mask": 1,
        "token_type_ids": 1,
    }
    judged: list[int] = []

    def scores(static: float, dynamic: float) -> Any:
        def error(path: Path, judges: Any) -> float:
            judged.append(len(judges))
            return static if path != file else dynamic

        return error

    file = tmp_path / "model_qint8.onnx"
    assert quantize_onnx_best(source, file, samples, scores(static=0.1, dynamic=0.2)) == "static"
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(file).graph.node)
    assert quantize_onnx_best(source, file, samples, scores(static=0.2, dynamic=0.2)) == "dynamic"
    assert any(node.op_type == "DynamicQuantizeLinear" for node in onnx.load(file).graph.node)
    assert judged == [2] * 4  # every fourth of eight samples, which did not calibrate
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("chosen", ["static", "dynamic"])
def test_weights_in_a_second_file_belong_to_the_file_that_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    """As with models above 2 GB."""
    monkeypatch.setattr(export_quantize, "LARGEST_FILE", 1000)
    monkeypatch.setattr(latency_profiler._onnx, "LARGEST_SINGLE_FILE", 1000)
    model = ziplm.load(folder / CLASSIFIER)
    samples = calibration_samples(model, letter_tokenizer(), [f"{letter} b c" for letter in "abcdefgh"])
    file = tmp_path / "model_qint8.onnx"

    def error(path: Path, judges: Any) -> float:
        assert files_of(path) == [path, Path(f"{path}.data")]
        return float((path == file) == (chosen == "static"))

    assert quantize_onnx_best(folder / CLASSIFIER / "onnx/model.onnx", file, samples, error) == chosen
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, f"{file.name}.data"]
    kind = {"static": "QuantizeLinear", "dynamic": "DynamicQuantizeLinear"}[chosen]
    assert kind in {node.op_type for node in onnx.load(file).graph.node}
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in files_of(file):
        path.replace(moved / path.name)
    with torch.inference_mode():
        opened = load_exported(moved / file.name, 1, model.config)
        found, expected = (each(**samples[0]).logits for each in (opened, model))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1)
