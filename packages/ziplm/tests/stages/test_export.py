"""Exported files compute what their models compute, whichever head they have and whatever was removed."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from latency_profiler import load_onnx
from transformers import PreTrainedModel
from ziplm import NotFinite, UnsupportedModel, UsageError, ZipLMError, shrink
from ziplm.architectures.exported import ExportedDecoder, load_exported
from ziplm.architectures.registry import architecture_of
from ziplm.pipelines.exporting import open_exported, write_file
from ziplm.stages.export import LoadedProgram, export_onnx, export_torch
from ziplm.stages.export_check import check_exported, logits_in_pieces, sample_batches
from ziplm.stages.export_graph import graph_of
from ziplm.stages.export_quantize import fold_transposed_weights
from ziplm_models import (
    BERT_HEADS,
    DECODERS,
    GPT2_HEADS,
    PATTERNS,
    SETTINGS,
    VOCABULARY,
    make_traces,
    prefix_of,
    removed_by,
    tiny_model,
)

CLASSIFIER, DECODER = "BertForSequenceClassification", "GPT2LMHeadModel"
FEW = [
    ("BertModel", "heads and columns"),
    ("BertForQuestionAnswering", "everything"),
    (DECODER, "first attention"),
    (DECODER, "everything"),
]
OTHERS = {  # one class of each other architecture
    prefix: f"{prefix}ForCausalLM" if prefix in DECODERS else f"{prefix}ForSequenceClassification"
    for prefix in SETTINGS
    if prefix not in ("Bert", "GPT2")
}
# These differ from others only in what their graphs have in common; a full run exports them, too.
ALIKE = ("Electra", "XLMRoberta", "Camembert", "Llama", "Mistral", "Qwen2")
EACH = [
    pytest.param(name, marks=pytest.mark.grid) if prefix in ALIKE else name for prefix, name in OTHERS.items()
]
GRID = [
    *((name, pattern) for name in (CLASSIFIER, "BertModel", DECODER) for pattern in PATTERNS),
    *((name, "a whole layer") for name in (*BERT_HEADS, *GPT2_HEADS)),
    *((name, "first attention") for name in OTHERS.values()),
]


def shrunk(name: str, pattern: str, **settings: Any) -> PreTrainedModel:
    model = tiny_model(name, "eager" if prefix_of(name) == "MPNet" else "sdpa", **settings)
    return shrink(model, removed_by(model, pattern), make_traces(model)).eval()


def check(model: PreTrainedModel, path: Path) -> None:
    """Compare the file with the model on several shapes; a decoder also generates the same tokens."""
    exported = load_exported(path, 1, model.config)
    found = check_exported(model, exported)
    assert 0 < found.largest < 1e-4 < found.scale  # not all outputs are 0
    if isinstance(exported, ExportedDecoder):
        check_generation(model, exported)


def check_generation(model: PreTrainedModel, exported: Any) -> None:
    ids = torch.randint(3, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0  # padding on the left
    asked: dict[str, Any] = {
        "attention_mask": mask,
        "max_new_tokens": 6,
        "min_new_tokens": 6,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    wanted, found = model.generate(ids, **asked), exported.generate(ids, **asked)
    assert torch.equal(found.sequences, wanted.sequences)
    for own, other in zip(found.logits, wanted.logits, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "pattern"), FEW)
def test_a_file_computes_what_its_model_computes(name: str, pattern: str, tmp_path: Path) -> None:
    settings = {"scale_attn_by_inverse_layer_idx": True} if name == DECODER else {}
    model = shrunk(name, pattern, **settings)
    check(model, export_onnx(model, tmp_path / "model.onnx"))


@pytest.mark.parametrize("name", EACH)
def test_every_architecture_exports(name: str, tmp_path: Path) -> None:
    model = shrunk(name, "a whole layer")
    check(model, export_onnx(model, tmp_path / "model.onnx"))


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("MistralForCausalLM", {"sliding_window": 4}),
        pytest.param(
            "Qwen2ForCausalLM",
            {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0},
            marks=pytest.mark.grid,
        ),
    ],
)
def test_a_sliding_window_is_part_of_the_file(name: str, window: dict[str, Any], tmp_path: Path) -> None:
    """Callers pass the keys of all earlier tokens, also of those that the window has left behind."""
    model = shrunk(name, "first attention", **window)
    path = export_onnx(model, tmp_path / "model.onnx")
    check(model, path)
    open_model = shrunk(name, "first attention", sliding_window=None)
    with pytest.raises(ZipLMError, match="the file differs from its checkpoint"):  # the window matters
        check_exported(open_model, load_exported(path, 1, open_model.config))


@pytest.mark.grid
@pytest.mark.parametrize(("name", "pattern"), dict.fromkeys(GRID))
def test_every_pattern_and_head_exports(name: str, pattern: str, tmp_path: Path) -> None:
    model = shrunk(name, pattern)
    check(model, export_onnx(model, tmp_path / "model.onnx"))


@pytest.mark.grid
@pytest.mark.parametrize("name", [CLASSIFIER, "BertModel", DECODER, *OTHERS.values()])
def test_the_same_in_openvino(name: str, tmp_path: Path) -> None:
    model = shrunk(name, "first attention")
    write_file(model, tmp_path / "model.xml", "openvino")
    check(model, tmp_path / "model.xml")


@pytest.fixture(scope="module")
def decoder() -> PreTrainedModel:
    return shrunk(DECODER, "two attentions")


@pytest.fixture(scope="module")
def decoder_file(decoder: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(decoder, tmp_path_factory.mktemp("decoder") / "model.onnx")


def test_the_cache_has_one_entry_for_each_attention_that_is_left(decoder_file: Path) -> None:
    graph = onnx.load(decoder_file).graph
    shapes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {
        "input_ids": ["batch", "tokens"],
        "attention_mask": ["batch", "all_tokens"],
        "position_ids": ["batch", "tokens"],
        "past_key_values.0.key": ["batch", 4, "past_tokens", 4],
        "past_key_values.0.value": ["batch", 4, "past_tokens", 4],
        "logits": ["batch", "tokens", VOCABULARY],
        "present.0.key": ["batch", 4, "all_tokens", 4],
        "present.0.value": ["batch", 4, "all_tokens", 4],
    }


def test_a_file_holds_its_weights_and_no_paths_of_this_machine(decoder_file: Path) -> None:
    assert [path.name for path in decoder_file.parent.iterdir()] == ["model.onnx"]
    content = decoder_file.read_bytes()
    assert b".py" not in content
    assert str(Path(torch.__file__).parent).encode() not in content


@torch.inference_mode()
def test_a_cache_that_is_not_used_would_be_noticed(decoder: PreTrainedModel, decoder_file: Path) -> None:
    """Control of the comparison in pieces."""
    exported: Any = load_exported(decoder_file, 1, decoder.config)
    batch = sample_batches(decoder)[1]
    positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    wanted = decoder(**batch, position_ids=positions, use_cache=False).logits
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(logits_in_pieces(exported, batch)[mask], wanted[mask], rtol=0, atol=1e-4)
    exported._past = lambda cache, size: {
        name: torch.zeros(size, 4, cache.get_seq_length(), 4)
        for name in exported.loaded.inputs
        if name.startswith("past")
    }
    assert not torch.allclose(logits_in_pieces(exported, batch)[mask], wanted[mask], atol=1e-2)


def test_exporting_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = tiny_model(CLASSIFIER, "sdpa").train()
    level = logging.getLogger("torch.onnx").level
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_onnx(model, tmp_path / "model.onnx")
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert logging.getLogger("torch.onnx").level == level
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    other = tiny_model(CLASSIFIER, "sdpa")
    with torch.no_grad():
        other.bert.encoder.layer[2].output.dense.bias[3] += 0.01
    with pytest.raises(ZipLMError, match=r"the file differs from its checkpoint by .*; .*e-04 is allowed"):
        check_exported(other, load_exported(tmp_path / "model.onnx", 1, model.config))


def test_values_that_are_not_finite_are_noticed(decoder: PreTrainedModel, decoder_file: Path) -> None:
    exported = load_exported(decoder_file, 1, decoder.config)
    broken = shrunk(DECODER, "two attentions")
    with torch.no_grad():
        broken.transformer.h[0].mlp.c_proj.bias[0] = torch.nan
    with pytest.raises(NotFinite, match="the checkpoint computes values that are not finite"):
        check_exported(broken, exported)


def test_int8_files_multiply_integers_and_stay_close(tmp_path: Path) -> None:
    model = shrunk(CLASSIFIER, "heads and columns")
    path = tmp_path / "model_qint8.onnx"
    assert write_file(model, path, "onnx", "int8") == "dynamic"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    found = check_exported(model, open_exported(model, path, 1), quantized=True)
    assert 1e-4 < found.largest < found.scale / 4
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "MatMulInteger"]
    left = sum(branch.groups > 0 for branch in architecture_of(model).branches(model))
    assert len(nodes) > 2 * left


@pytest.mark.grid
def test_a_head_that_shares_the_embeddings_is_multiplied_as_int8(tmp_path: Path) -> None:
    """A large vocabulary, since torch itself folds the transpose of a small one."""
    model = tiny_model(DECODER, vocab_size=70_000)
    source = onnx.load(export_onnx(model, tmp_path / "model.onnx")).graph
    (head,) = [node for node in source.node if "logits" in node.output]
    assert head.input[1] not in {tensor.name for tensor in source.initializer}
    write_file(model, tmp_path / "int8.onnx", "onnx", "int8")
    assert not [node for node in onnx.load(tmp_path / "int8.onnx").graph.node if "logits" in node.output
                and node.op_type == "MatMul"]  # fmt: skip


def test_a_transposed_weight_is_stored_as_it_is_multiplied(tmp_path: Path) -> None:
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    nodes = [
        onnx.helper.make_node("Transpose", ["weight"], ["turned"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    kinds = {
        name: onnx.helper.make_tensor_value_info(name, 1, ["batch", size])
        for name, size in (("x", 3), ("y", 2))
    }
    constants = [onnx.numpy_helper.from_array(weight, "weight")]
    graph = onnx.helper.make_graph(nodes, "head", [kinds["x"]], [kinds["y"]], constants)
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "model.onnx")
    folded = fold_transposed_weights(tmp_path / "model.onnx", tmp_path / "folded.onnx")
    assert [node.op_type for node in onnx.load(folded).graph.node] == ["MatMul"]
    x = np.eye(3, dtype=np.float32)
    for file in ("model.onnx", "folded.onnx"):
        np.testing.assert_array_equal(load_onnx(tmp_path / file, 1)(x)[0], weight.T)


def test_a_program_of_torch_computes_the_same(tmp_path: Path) -> None:
    model = shrunk(CLASSIFIER, "a whole layer")
    path = export_torch(model, tmp_path / "model.pt2")
    exported = open_exported(model, path)
    assert isinstance(exported.loaded, LoadedProgram)
    assert check_exported(model, exported).largest < 1e-4
    assert b"/ziplm/" not in path.read_bytes()


def test_what_cannot_be_exported_is_refused(decoder: PreTrainedModel, decoder_file: Path) -> None:
    with pytest.raises(UsageError, match="has a cache; export it with --format onnx or openvino"):
        export_torch(decoder, Path("never.pt2"))
    with pytest.raises(UsageError, match="needs samples of the inputs; give --calibration-file"):
        write_file(tiny_model(CLASSIFIER), decoder_file.parent / "x.xml", "openvino", "int8")
    exported = load_exported(decoder_file, 1, decoder.config)
    with pytest.raises(UnsupportedModel, match="an exported file cannot be shrunk"):
        graph_of(exported)


class Branching(torch.nn.Module):
    """Does what torch cannot trace: it decides by a value."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 1 if hidden.sum() > 0 else hidden


@pytest.mark.parametrize("export", [export_onnx, export_torch])
def test_a_model_that_torch_cannot_trace_is_refused(export: Any, tmp_path: Path) -> None:
    model: Any = tiny_model(CLASSIFIER)
    model.bert.embeddings.dropout = Branching()
    with pytest.raises(UnsupportedModel, match="torch cannot export this BertForSequenceClassification"):
        export(model, tmp_path / "model")
    rotated = tiny_model(
        "LlamaForSequenceClassification", rope_parameters={"rope_type": "dynamic", "factor": 2.0}
    )
    with pytest.raises(UnsupportedModel, match="rotary positions of type 'dynamic' depend on the length"):
        export(rotated, tmp_path / "model")
    assert not list(tmp_path.iterdir())
