"""ONNX files with one thing in their graph changed: a name, a type, a shape, or where the weights are."""

import random
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

ODD_NAMES = ["", "x", "input_ids", "logits", "present.0.key", "past_key_values.0.key", "a\nb", "n" * 10_000]
ODD_SIZES = [0, 1, -1, 3, 2**31, 2**62]
ODD_TYPES = [0, 1, 3, 6, 7, 8, 10, 16, 99]


def mutate_onnx(file: Path, outside: Path, dice: random.Random) -> None:
    """Change one thing in the graph of an ONNX file."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except DecodeError:
        return
    graph = model.graph
    if not (graph.input and graph.output and graph.node and graph.initializer):
        return
    value, node = dice.choice([*graph.input, *graph.output]), dice.choice(graph.node)
    tensor = dice.choice(graph.initializer)
    how = dice.randrange(8)
    if how == 0:
        value.name = dice.choice(ODD_NAMES)
    elif how == 1:
        value.type.tensor_type.elem_type = dice.choice(ODD_TYPES)
    elif how == 2:
        for size in value.type.tensor_type.shape.dim:
            size.dim_value = dice.choice(ODD_SIZES)
    elif how == 3:
        node.op_type = dice.choice([other.op_type for other in graph.node] + ["Loop", "If", "NoSuchOperator"])
    elif how == 4:
        node.input[:] = dice.sample(list(node.input), len(node.input))[: dice.randrange(len(node.input) + 1)]
    elif how == 5:
        tensor.data_type = dice.choice(ODD_TYPES)
    elif how == 6:
        tensor.dims[:] = [dice.choice(ODD_SIZES) for _ in tensor.dims]
    else:
        location = dice.choice([str(outside / "secret"), "../../../../outside/secret", "nowhere", ""])
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", location
    file.write_bytes(model.SerializeToString())
