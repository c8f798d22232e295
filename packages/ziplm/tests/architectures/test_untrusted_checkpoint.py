"""A checkpoint is not trusted: nothing is built, read or written on the word of its files alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from ziplm import BadCheckpoint, inspect, load, save
from ziplm.tasks import make_task
from ziplm.tasks.columns import model_labels
from ziplm_faults import Command, give_up_permissions, needs_permissions
from ziplm_models import tiny_model
from ziplm_text import letter_tokenizer

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dense classifier with its tokenizer."""
    save(tiny_model("BertForSequenceClassification", num_labels=2), tmp_path / "model", letter_tokenizer())
    return tmp_path / "model"


def change(file: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_hidden_layers", count) for count in (10**9, 10**400, 1000, -1, True)),
        *(("num_labels", count) for count in (10**12, 10**6)),
        *((name, 10**12) for name in ("vocab_size", "hidden_size", "intermediate_size", "type_vocab_size")),
        ("max_position_embeddings", 10**9),
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_anything_is_built(
    folder: Path, name: str, value: int
) -> None:
    values = {"id2label": None, "label2id": None} if name == "num_labels" else {}
    change(folder / "config.json", **values, **{name: value})
    with pytest.raises(BadCheckpoint) as caught:
        load(folder)
    assert len(str(caught.value)) <= 500


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer"])
def test_an_inspection_does_not_build_more_layers_than_there_are_weights(tmp_path: Path, name: str) -> None:
    save(tiny_model("GPT2LMHeadModel"), tmp_path / "model")
    change(tmp_path / "model/config.json", n_layer=None)
    config = json.loads((tmp_path / "model/config.json").read_text())
    del config["n_layer"]
    (tmp_path / "model/config.json").write_text(json.dumps({**config, name: 10**9}))
    with pytest.raises(BadCheckpoint, match=f"{name} is 1000000000"):
        inspect(tmp_path / "model")


def test_a_new_part_is_never_larger_than_all_weights(folder: Path) -> None:
    """A head that the file does not have would be allocated in the size that the config names."""
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["classifier.weight"], weights["classifier.bias"]
    weights["other"] = torch.zeros(100_000, 1)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    change(folder / "config.json", id2label={str(i): str(i) for i in range(50_000)}, label2id=None)
    with pytest.raises(BadCheckpoint, match=r"classifier.weight of shape \(50000, 16\)"):
        load(folder)


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"]
)
@pytest.mark.parametrize(
    "value", ["kernels-community/flash-attn", "a/b@main:f", "paged|sdpa", {"": "a/b"}, 3]
)
def test_a_config_cannot_name_a_kernel_repository(folder: Path, key: str, value: object) -> None:
    change(folder / "config.json", **{key: value})
    with pytest.raises(BadCheckpoint, match=rf"{key} is .*--attention"):
        load(folder)


def test_weights_named_by_the_config_are_refused(folder: Path) -> None:
    change(folder / "config.json", transformers_weights="../other.safetensors")
    with pytest.raises(BadCheckpoint, match="transformers_weights"):
        load(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_checkpoint_is_never_run(folder: Path, file: str) -> None:
    (folder / "evil.py").write_text("raise SystemExit('code of the checkpoint was run')")
    names = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
    own = dict.fromkeys(names, "evil.Evil") | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    change(folder / file, auto_map=own, model_type="evil", tokenizer_class="Evil")
    task = make_task("classification")
    try:
        task.load_model(str(folder))
        task.load_tokenizer(str(folder))
    except BadCheckpoint:
        return
    assert file == "tokenizer_config.json"  # whose class is looked up among those of transformers


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_refused_with_how_to_convert_them(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(BadCheckpoint, match=r"pickle.*trust.*save_pretrained"):
        load(folder)
    with pytest.raises(BadCheckpoint, match=r"pickle.*trust.*save_pretrained"):
        make_task("sst2").load_pretrained(str(folder))


def test_an_adapter_is_not_a_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/repo"}')
    with pytest.raises(BadCheckpoint, match=r"adapter.*merge"):
        load(folder)


@pytest.mark.parametrize(
    "value",
    ["../other/model.safetensors", "x" * 10_000, "{outside}", 3, None, ["x"], "a\0b", "link/m.safetensors"],
)
def test_an_index_names_files_of_its_own_folder(folder: Path, tmp_path: Path, value: Any) -> None:
    (tmp_path / "other").mkdir()
    (folder / "model.safetensors").rename(tmp_path / "other/model.safetensors")
    (folder / "link").symlink_to(tmp_path / "other")
    (tmp_path / "other/m.safetensors").symlink_to(tmp_path / "other/model.safetensors")
    if value == "{outside}":
        value = str(tmp_path / "other/model.safetensors")
    names = safetensors.torch.load_file(tmp_path / "other/model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, value)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match=r"weight_map"):
        load(folder)


@pytest.mark.parametrize("content", ['{"weight_map": []}', '{"weight_map": {}}', "[]", "{}", "3", DEEP, LONG])
def test_a_damaged_index_is_refused(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(BadCheckpoint):
        load(folder)


def test_files_linked_as_in_the_cache_of_the_hub_are_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(tmp_path / f"blobs/{number}")
        file.symlink_to(f"../blobs/{number}")
    load(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": "16"},
        {"hidden_size": 17},
        {"num_attention_heads": 0},
        {"num_attention_heads": -1},
        {"hidden_dropout_prob": float("nan")},
        {"layer_norm_eps": float("inf")},
        {"architectures": 3},
        {"architectures": {"0": "BertModel"}},
        {"architectures": {"a": "BertModel"}},
        {"num_attention_heads": 3},
        {"vocab_size": -1},
        {"hidden_dropout_prob": 2},
        {"hidden_act": "poetry"},
        {"architectures": "BertModel"},
        {"architectures": [3]},
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["pipeline"]},
        {"model_type": ["bert"]},
        {"id2label": {"0": "a", "1": "c"}, "label2id": {"a": "b", "c": 1}},
        {"pad_token_id": 1000},
        {"dtype": "poetry"},
        {"layer_norm_eps": None},
    ],
)
def test_a_config_with_wrong_values_is_a_bad_checkpoint(folder: Path, values: dict[str, Any]) -> None:
    change(folder / "config.json", **values)
    with pytest.raises(BadCheckpoint) as caught:
        model_labels(make_task("classification").load_model(str(folder)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [DEEP, '{"a":' * 100_000, LONG, '{"x": "\\ud800"}', "[]", "null", "", "\0", b"\xff"]
)
def test_a_config_that_is_no_object_is_a_bad_checkpoint(folder: Path, content: str | bytes) -> None:
    (folder / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadCheckpoint, match=r"config.json"):
        load(folder)


def other_bytes(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"\xff\xfe{}")


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "bytes": other_bytes,
    "nesting": lambda folder: (folder / "tokenizer.json").write_text(DEEP),
    "id": lambda folder: change(folder / "tokenizer.json", model={"type": "WordPiece", "vocab": {"a": "b"}}),
    "no model": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "settings nested": lambda folder: (folder / "tokenizer_config.json").write_text(DEEP),
    "settings are a list": lambda folder: (folder / "tokenizer_config.json").write_text("[]"),
    "settings of a wrong type": lambda folder: change(folder / "tokenizer_config.json", pad_token=3),
    "map of a wrong type": lambda folder: (folder / "special_tokens_map.json").write_text(
        '{"pad_token": [3]}'
    ),
    "file elsewhere": lambda folder: change(folder / "tokenizer_config.json", vocab_file="/etc/passwd"),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_tokenizer_is_a_bad_checkpoint(folder: Path, how: str) -> None:
    DAMAGED[how](folder)
    with pytest.raises(BadCheckpoint, match="token") as caught:
        make_task("classification").load_tokenizer(str(folder))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_not_called_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "config.json":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)  # tests may run as root, who may read everything
    with pytest.raises(PermissionError):
        load(folder)


@needs_permissions
def test_an_unreadable_checkpoint_is_exit_1(folder: Path) -> None:
    (folder / "config.json").chmod(0)
    code, printed = Command(["inspect", str(folder)], give_up_permissions).wait()
    assert (code, "Permission denied" in printed) == (1, True), printed


def test_a_name_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(BadCheckpoint):
        load("a\0b")
