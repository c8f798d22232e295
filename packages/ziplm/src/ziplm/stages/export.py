"""Export: a model as a file that an engine runs without ziplm, transformers or torch.

transformers has exporters of its own (`transformers.exporters`). For shrunk models, they make correct files.
This module calls torch.onnx directly nevertheless, because their graphs test every attention for rows without
any key (4 % of the time of MiniLM in ONNX Runtime, 8 x 128 tokens, one thread), take longer to make, have
dimensions without names, and split generation into two files whose cache inputs have other names than servers
expect.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from latency_profiler import convert_openvino
from transformers import PreTrainedModel

from ziplm.errors import MissingExtra, UnsupportedModel, UsageError
from ziplm.stages.export_graph import TOTAL, Graph, exportable, graph_of

NEEDED = {
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "openvino": ("onnx", "onnxruntime", "onnxscript", "openvino", "nncf"),
    "torch-export": (),
}
"""Packages that each format needs; the extra that installs them has the name of the format."""


def export_onnx(model: PreTrainedModel, path: Path) -> Path:
    """Write a model as an ONNX file, with its weights inside unless they take 2 GB or more.

    Args:
        model: the model, in float32 on the CPU; it is not changed.
        path: the file to write. Weights that do not fit it go to a file beside it, with ``.data`` appended.

    Returns:
        The path.

    Raises:
        UnsupportedModel: if the architecture is unknown, or torch cannot export this model.
        MissingExtra: if a package is not installed.
    """
    require_extra("onnx")
    with exportable(model), _quiet(), _refused_by_torch(model):
        graph = graph_of(model).eval()
        program: Any = torch.onnx.export(
            graph,
            kwargs=graph.example(),
            dynamic_shapes=graph.dynamic_shapes(),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamo=True,
            verbose=False,
        )
        _tidy(program.model, graph)
        program.save(path)
    return path


def export_openvino(model: PreTrainedModel, path: Path) -> Path:
    """Write a model for OpenVINO: a file that ends in .xml, and one in .bin with the weights as float32.

    It is converted from ONNX, so that inputs, outputs and dimensions are the same; see `export_onnx`.
    """
    require_extra("openvino")
    source = export_onnx(model, path.with_name(f"{path.stem}.onnx"))
    try:
        return convert_openvino(source, path)
    finally:
        for file in (source, Path(f"{source}.data")):
            file.unlink(missing_ok=True)


def export_torch(model: PreTrainedModel, path: Path) -> Path:
    """Write a model as a program of `torch.export`, for `torch.export.load`; see `export_onnx`.

    Raises:
        UsageError: if the model is a decoder with a cache. torch would write down that the first call has at
            least four tokens, and refuse others.
    """
    if model.can_generate():
        raise UsageError(f"{type(model).__name__} has a cache", "export it with --format onnx or openvino")
    with exportable(model), _quiet(), _refused_by_torch(model):
        graph = graph_of(model).eval()
        program = torch.export.export(
            graph, (), kwargs=graph.example(), dynamic_shapes=graph.dynamic_shapes(), strict=False
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it contains paths of this machine
        torch.export.save(program, path)
    return path


class LoadedProgram:
    """A program of `torch.export`, run like a file in an engine in order to compare it with its model.

    Args:
        path: a file that `export_torch` has just written; files from elsewhere are never loaded.
        graph: the graph that it was made from.
    """

    engine = "torch.export"

    def __init__(self, path: Path, graph: Graph) -> None:
        self._module = torch.export.load(path).module()
        self.inputs, self.outputs = tuple(graph.inputs), graph.outputs
        self.input_shapes = graph.inputs
        self.threads = torch.get_num_threads()

    def run(self, values: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Run the program on tensors by input name, and return arrays by output name."""
        made = self._module(**values)
        return {name: tensor.numpy() for name, tensor in zip(self.outputs, made, strict=True)}


def require_extra(extra: str) -> None:
    """Raise MissingExtra unless the packages for a format are installed."""
    if missing := [name for name in NEEDED[extra] if find_spec(name) is None]:
        raise MissingExtra(
            f"the format {extra} needs {' and '.join(missing)}", f"run: pip install 'ziplm[{extra}]'"
        )


def _tidy(model: Any, graph: Graph) -> None:
    """Name the dimensions that vary, and drop the exporter's notes, which contain paths of this machine.

    Shapes inside the graph are dropped, too: they use other names, and engines compute them anyway.

    Args:
        model: an `onnx_ir.Model`.
        graph: the graph that it was made from.
    """
    names: dict[str, str] = {}  # by torch's own name, such as s26
    for value, axes in zip(model.graph.inputs, graph.inputs.values(), strict=True):
        for index, axis in enumerate(axes):
            if isinstance(axis, str):
                names[value.shape[index].value] = axis
                value.shape[index] = axis
    for value in model.graph.outputs:
        for index, size in enumerate(value.shape):
            if not isinstance(
                size, int
            ):  # a dimension of the inputs, or s15 + s70: earlier tokens and new ones
                value.shape[index] = names.get(size.value, TOTAL)
    outputs = set(model.graph.outputs)
    for node in model.graph:
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            if value not in outputs:
                value.shape = value.type = None
    for noted in (model, model.graph, *model.graph.inputs, *model.graph.initializers.values()):
        noted.metadata_props.clear()


@contextmanager
def _refused_by_torch(model: PreTrainedModel) -> Iterator[None]:
    """Raise UnsupportedModel where torch cannot write a model as a graph."""
    try:
        yield
    except (
        torch.onnx.OnnxExporterError,
        torch._dynamo.exc.TorchDynamoException,
        torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode,
    ) as error:
        cause = error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0]
        raise UnsupportedModel(
            f"torch cannot export this {type(model).__name__}: {reason}", "use the checkpoint itself"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch says while it exports, which concerns its own code and nothing that users wrote."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
