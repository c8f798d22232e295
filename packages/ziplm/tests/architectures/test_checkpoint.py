"""Checkpoints load with and without ziplm; damaged ones are refused before any weights are loaded."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from transformers import BertTokenizer, PreTrainedModel, Trainer, TrainingArguments
from ziplm import BadCheckpoint, load, save, shrink
from ziplm.architectures import modeling_zip_bert, modeling_zip_gpt2
from ziplm.architectures.zip_classes import zip_classes
from ziplm_models import (
    VOCABULARY,
    labels_for,
    make_traces,
    removed_by,
    tiny_model,
    tokens_for,
)

PATTERN = "a whole layer"
STANDARD = ("collections", "dataclasses", "sys", "typing")  # of the standard library
AUTO_CLASSES = {**modeling_zip_bert.AUTO_CLASSES, **modeling_zip_gpt2.AUTO_CLASSES}


def shrunk_model(name: str, pattern: str = PATTERN) -> PreTrainedModel:
    model = tiny_model(name, "sdpa")  # as from_pretrained chooses
    return shrink(model, removed_by(model, pattern), make_traces(model))


def test_the_code_in_a_checkpoint_needs_torch_and_transformers_only(tmp_path: Path) -> None:
    save(shrunk_model("BertModel"), tmp_path / "small")
    copied = sorted(path.name for path in (tmp_path / "small").glob("*.py"))
    assert copied == ["modeling_zip_bert.py", "zip_declaration.py", "zip_layers.py"]
    for path in (tmp_path / "small").glob("*.py"):
        imports = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
        assert all(
            line.split()[1].split(".")[0] in (*STANDARD, "torch", "transformers", "") for line in imports
        )


def test_a_dense_checkpoint_loads_with_its_head(tmp_path: Path) -> None:
    model = tiny_model("BertForTokenClassification")
    save(model, tmp_path / "dense")
    assert type(load(tmp_path / "dense")) is transformers.BertForTokenClassification


def test_a_loaded_checkpoint_can_be_saved_again_and_replaced(tmp_path: Path) -> None:
    first, second = shrunk_model("BertModel"), shrunk_model("BertModel", "some heads")
    save(first, tmp_path / "small")
    save(load(tmp_path / "small"), tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (
        tmp_path / "small/model.safetensors"
    ).read_bytes()
    save(second, tmp_path / "small")
    assert load(tmp_path / "small").config.zip_heads == second.config.zip_heads
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "small"]


def test_a_failed_save_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = shrunk_model("BertModel")
    save(model, tmp_path / "small")

    def full_disk(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(model, "save_pretrained", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save(model, tmp_path / "small")
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    load(tmp_path / "small")


def test_a_loaded_checkpoint_can_be_fine_tuned_with_the_trainer(tmp_path: Path) -> None:
    name = "BertForSequenceClassification"
    save(shrunk_model(name), tmp_path / "small")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    before = [parameter.clone() for parameter in model.parameters()]
    batch = tokens_for(name) | labels_for(name)
    examples = [{key: value[index] for key, value in batch.items()} for index in (0, 1)] * 4
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "training"),
        max_steps=3,
        learning_rate=0.01,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=examples)
    trainer.train()
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(changed) > len(changed) / 2
    trainer.save_model(str(tmp_path / "tuned"))
    tuned = load(tmp_path / "tuned")
    assert all(map(torch.equal, tuned.state_dict().values(), model.cpu().state_dict().values()))


def word_tokenizer(folder: Path) -> BertTokenizer:
    """Return a tokenizer with the vocabulary size of the tiny models."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(VOCABULARY - 5))]
    (folder / "vocab.txt").write_text("\n".join(words))
    return BertTokenizer(vocab=str(folder / "vocab.txt"))


@pytest.mark.parametrize(
    ("task", "name", "arguments"),
    [
        ("text-classification", "BertForSequenceClassification", {"inputs": "word3 word5"}),
        ("fill-mask", "BertForMaskedLM", {"inputs": "word3 [MASK] word5"}),
        ("feature-extraction", "BertModel", {"inputs": "word3 word5"}),
        ("token-classification", "BertForTokenClassification", {"inputs": "word3 word5"}),
        ("text-generation", "GPT2LMHeadModel", {"text_inputs": "word3 word5", "max_new_tokens": 3}),
    ],
)
def test_pipelines_run_on_reloaded_models(
    task: str, name: str, arguments: dict[str, object], tmp_path: Path
) -> None:
    save(shrunk_model(name), tmp_path / "small", word_tokenizer(tmp_path))
    run = transformers.pipeline(task, model=str(tmp_path / "small"))
    assert type(run.model).__name__ == f"Zip{name}"
    assert run(**arguments)


def test_questions_are_answered_by_reloaded_models(tmp_path: Path) -> None:
    """Transformers 5 has no question-answering pipeline, so the answer is taken from the logits."""
    tokenizer = word_tokenizer(tmp_path)
    save(shrunk_model("BertForQuestionAnswering"), tmp_path / "small", tokenizer)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "small")
    reloaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    batch = reloaded("word1", "word2 word3 word4", return_tensors="pt")
    output = model(**batch)
    start = int(output.start_logits.argmax())
    end = start + int(output.end_logits[0, start:].argmax())
    answer = reloaded.decode(batch["input_ids"][0, start : end + 1])
    assert answer in reloaded.decode(batch["input_ids"][0])


def test_a_checkpoint_loads_in_another_dtype(tmp_path: Path) -> None:
    save(shrunk_model("BertModel"), tmp_path / "small")
    assert load(tmp_path / "small", dtype=torch.float64).dtype == torch.float64


def damage(folder: Path, how: str) -> None:
    """Damage a checkpoint."""
    config_file, weights = folder / "config.json", folder / "model.safetensors"
    config = json.loads(config_file.read_text())
    changes: dict[str, dict[str, object]] = {
        "list too short": {"zip_heads": config["zip_heads"][:-1]},
        "list too long": {"zip_widths": [*config["zip_widths"], 3]},
        "no list": {"zip_heads": 3},
        "more than dense": {"zip_widths": [10**12, *config["zip_widths"][1:]]},
        "negative": {"zip_heads": [-1, *config["zip_heads"][1:]]},
        "fraction": {"zip_heads": [1.5, *config["zip_heads"][1:]]},
        "other sizes": {"zip_widths": [size and size - 1 for size in config["zip_widths"]]},
        "huge model": {"hidden_size": 16 * 10**6},
        "huge vocabulary": {"vocab_size": 10**12},
        "unknown version": {"zip_version": 99},
        "decoder": {"is_decoder": True},
        "unknown class": {"architectures": ["ZipBertForPoetry"]},
        "no class": {"architectures": None},
        "unknown type": {"model_type": "zip_poet"},
    }
    if how in changes:
        config_file.write_text(json.dumps(config | changes[how]))
    elif how == "config is no json":
        config_file.write_text("{")
    elif how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif how == "no weights":
        weights.unlink()
    elif how == "no config":
        config_file.unlink()
    elif how == "tensor missing":
        tensors = safetensors.torch.load_file(weights)
        del tensors["encoder.layer.0.output.dense.weight"]
        safetensors.torch.save_file(tensors, weights, {"format": "pt"})


BROKEN = {
    "list too short": "zip_heads is .* but must be a list of 3 sizes",
    "list too long": "zip_widths is .* but must be a list of 3 sizes",
    "no list": "zip_heads is 3, but must be a list",
    "more than dense": "all sizes must be whole numbers from 0 to 24",
    "negative": "all sizes must be whole numbers from 0 to 4",
    "fraction": "all sizes must be whole numbers from 0 to 4",
    "other sizes": r"has shape .* but its config says",
    "huge model": r"has shape .* but its config says",
    "huge vocabulary": r"has shape .* but its config says",
    "unknown version": "zip_version is 99, but this code reads version 1",
    "decoder": "is_decoder is on",
    "unknown class": "class 'ZipBertForPoetry', which is not known",
    "no class": "does not name its class; save it again with save_pretrained",
    "unknown type": "the config of .* is not usable",
    "config is no json": r"config.json is not JSON",
    "truncated": "the weights of .* cannot be read",
    "no weights": "the weights of .* cannot be read",
    "no config": "has no config.json",
    "tensor missing": "has no encoder.layer.0.output.dense.weight",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_bad_checkpoint_is_refused_in_one_line(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(shrunk_model("BertModel"), tmp_path / "small")
    damage(tmp_path / "small", how)
    (tmp_path / "small" / "modeling_zip_bert.py").write_text(
        "raise SystemExit('code of the checkpoint was run')"
    )

    def loading(*args: object, **options: object) -> None:
        raise AssertionError("weights were loaded")

    for model_class in zip_classes().values():
        monkeypatch.setattr(model_class, "from_pretrained", loading)
    with pytest.raises(BadCheckpoint, match=BROKEN[how]) as caught:
        load(tmp_path / "small")
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="is not a folder"):
        load(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadCheckpoint, match="is not a folder"):
        load(tmp_path / "file")


def test_sizes_are_checked_when_a_config_is_made() -> None:
    config_class = modeling_zip_bert.ZipBertConfig
    assert config_class(num_hidden_layers=2).zip_heads == [12, 12]
    with pytest.raises(ValueError, match="zip_heads"):
        config_class(num_hidden_layers=2, zip_heads=[1])
