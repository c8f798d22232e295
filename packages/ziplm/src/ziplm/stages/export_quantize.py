"""Post-training quantisation of exported files to int8."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from latency_profiler import quantize_onnx, quantize_onnx_static, quantize_openvino
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.exported import files_of
from ziplm.architectures.registry import positions_of
from ziplm.errors import UsageError
from ziplm.stages.export_graph import file_inputs

Scales = Literal["dynamic", "static"]
"""Whether scales of activations are computed for every input, or fixed from samples."""

HELD_OUT = 4  # every fourth sample judges static against dynamic quantisation, and does not calibrate
MOST_SAMPLES, MOST_TOKENS = 128, 128
LARGEST_FILE = 2**31 - 2**26  # bytes of weights that an ONNX file holds; more are in a second file


def quantize_onnx_best(
    source: Path,
    destination: Path,
    samples: Sequence[Mapping[str, torch.Tensor]] = (),
    error: Callable[[Path, Sequence[Mapping[str, torch.Tensor]]], float] | None = None,
) -> Scales:
    """Quantise the weights of an ONNX file, per channel, with the better kind of scales for activations.

    Args:
        source: ONNX file in float32.
        destination: ONNX file to write. Weights that do not fit it go to a file beside it, with ``.data``
            appended.
        samples: inputs by name; without them, scales are dynamic.
        error: returns how far a file is off on some of the samples. If static scales are no better than
            dynamic ones there, dynamic ones are used.

    Returns:
        The kind of scales.
    """
    judges, calibration = samples[::HELD_OUT], [s for n, s in enumerate(samples) if n % HELD_OUT]
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        folded = fold_transposed_weights(source, Path(folder) / f"folded-{source.name}")
        quantize_onnx(folded, destination)
        if not calibration or error is None:
            return "dynamic"
        # A file names the one with its weights, which is right only if both move and keep their names.
        static = quantize_onnx_static(folded, Path(folder) / destination.name, calibration)
        if error(static, judges) >= error(destination, judges):
            return "dynamic"
        for file in files_of(destination):
            file.unlink()
        for file in files_of(static):
            file.replace(destination.with_name(file.name))
        return "static"


def quantize_openvino_file(
    source: Path, destination: Path, samples: Sequence[Mapping[str, torch.Tensor]]
) -> Scales:
    """Quantise a file for OpenVINO; its scales are always static, so samples are needed."""
    quantize_openvino(source, destination, samples)
    return "static"


def fold_transposed_weights(source: Path, destination: Path) -> Path:
    """Write an ONNX file in which weights are multiplied as they are stored; large ones to a second file.

    A language head that shares the matrix of the embeddings is exported as the product with its transpose.
    The quantiser would skip it, since it sees no constant there, although it can take most of the time.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load(source)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in [
        node for node in model.graph.node if node.op_type == "Transpose" and node.input[0] in stored
    ]:
        order = [list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"]
        values = numpy_helper.to_array(stored[node.input[0]], base_dir=str(source.parent))
        turned = values.transpose(*order) if order else values.transpose()
        model.graph.initializer.append(numpy_helper.from_array(turned.copy(), node.output[0]))
        model.graph.node.remove(node)
    large = sum(tensor.ByteSize() for tensor in model.graph.initializer) > LARGEST_FILE
    onnx.save(model, destination, save_as_external_data=large, location=f"{destination.name}.data")
    return destination


def calibration_samples(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> list[dict[str, torch.Tensor]]:
    """Return tokenised texts as inputs of an exported file without a cache, each (1, tokens).

    Raises:
        UsageError: if the model has a cache, or there are too few texts.
    """
    if model.can_generate():
        raise UsageError("language models are quantised without calibration", "leave out --calibration-file")
    if len(texts) < HELD_OUT:
        raise UsageError(f"there are {len(texts)} texts to calibrate on", "give 100 or more")
    length = min(MOST_TOKENS, positions_of(model.config))
    step = max(1, len(texts) // MOST_SAMPLES)
    samples = []
    for text in texts[::step][:MOST_SAMPLES]:
        encoded: Any = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")
        samples.append(file_inputs(model, encoded))
    return samples
