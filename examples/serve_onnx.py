"""Serve a model that ``ziplm export`` has written, with onnxruntime, tokenizers and numpy only: no torch.

    python serve_onnx.py classify FOLDER "a text" "another text"
    python serve_onnx.py embed FOLDER "a text" "another text"
    python serve_onnx.py generate FOLDER "The beginning of a text" --tokens 20

FOLDER holds config.json, tokenizer.json and onnx/model.onnx; --file names another file, such as
onnx/model_qint8.onnx. The result is printed as JSON.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

Array = np.ndarray


class OnnxModel:
    """An exported model with its tokenizer.

    Args:
        folder: the folder that ``ziplm export`` has written.
        file: path of the ONNX file in the folder.
        threads: threads of ONNX Runtime.
    """

    def __init__(self, folder: Path, file: str = "onnx/model.onnx", threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            folder / file, options, providers=["CPUExecutionProvider"]
        )
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.shapes = {value.name: value.shape for value in self.session.get_inputs()}

    def run(self, **inputs: Array) -> dict[str, Array]:
        """Run the file on inputs by name; those that it does not have are ignored."""
        names = [value.name for value in self.session.get_outputs()]
        known = {name: inputs[name] for name in self.shapes}
        return dict(zip(names, self.session.run(names, known), strict=True))

    def encode(self, texts: list[str], left: bool = False) -> dict[str, Array]:
        """Return tokens, mask and segments of texts, each (batch, tokens), padded on the right or left."""
        longest = self.config.get("max_position_embeddings") or self.config.get("n_positions") or 512
        self.tokenizer.enable_truncation(int(longest))
        padding = self.config.get("pad_token_id") or 0
        self.tokenizer.enable_padding(direction="left" if left else "right", pad_id=int(padding))
        encoded = self.tokenizer.encode_batch(texts)
        return {
            "input_ids": np.array([each.ids for each in encoded], np.int64),
            "attention_mask": np.array([each.attention_mask for each in encoded], np.int64),
            "token_type_ids": np.array([each.type_ids for each in encoded], np.int64),
        }

    def classify(self, texts: list[str]) -> list[dict[str, float]]:
        """Return the probability of each class, for each text."""
        logits = self.run(**self.encode(texts))["logits"]  # (batch, classes)
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        names = self.config.get("id2label", {})
        return [
            {names.get(str(index), str(index)): float(share) for index, share in enumerate(row)}
            for row in shifted / shifted.sum(-1, keepdims=True)
        ]

    def embed(self, texts: list[str]) -> Array:
        """Return the mean of the last hidden states of each text, scaled to unit length, (batch, hidden)."""
        inputs = self.encode(texts)
        states = self.run(**inputs)["last_hidden_state"]  # (batch, tokens, hidden)
        mask = inputs["attention_mask"][..., None].astype(np.float32)
        means = (states * mask).sum(1) / mask.sum(1)
        embeddings: Array = means / np.linalg.norm(means, axis=-1, keepdims=True)
        return embeddings

    def generate(self, texts: list[str], tokens: int) -> list[list[int]]:
        """Return the most likely continuation of each text, as token ids.

        The first call gets all tokens and an empty cache, every other call the last token and the cache of
        all tokens before it. A removed attention has no cache, and a model without any has none at all.
        """
        inputs = self.encode(texts, left=True)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        cache = {
            name: np.zeros((len(texts), shape[1], 0, shape[3]), np.float32)
            for name, shape in self.shapes.items()
            if name.startswith("past_key_values.")
        }
        made: list[Array] = []
        for _ in range(tokens):
            positions = np.maximum(mask.cumsum(-1) - 1, 0)[:, -ids.shape[1] :]
            outputs = self.run(input_ids=ids, attention_mask=mask, position_ids=positions, **cache)
            cache = {name: outputs[name.replace("past_key_values", "present")] for name in cache}
            ids = outputs["logits"][:, -1].argmax(-1)[:, None]  # (batch, 1)
            mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
            made.append(ids)
        return np.concatenate(made, axis=1).tolist() if made else [[] for _ in texts]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Serve a model that `ziplm export` has written.")
    parser.add_argument("task", choices=["classify", "embed", "generate"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--file", default="onnx/model.onnx")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=20, help="tokens to generate")
    given = parser.parse_args()
    model = OnnxModel(given.folder, given.file, given.threads)
    result: Any
    if given.task == "classify":
        result = model.classify(given.texts)
    elif given.task == "embed":
        result = model.embed(given.texts).tolist()
    else:
        result = [
            {"ids": ids, "text": model.tokenizer.decode(ids)}
            for ids in model.generate(given.texts, given.tokens)
        ]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
