"""Tiny random models of every architecture and head, patterns of what to remove, and traces."""

from collections.abc import Callable, Sequence

import torch
import transformers
from obs_structured import Trace, prune
from transformers import PreTrainedModel
from ziplm.architectures.base import Size
from ziplm.architectures.registry import architecture_of
from ziplm.architectures.zip_classes import zip_classes

LAYERS, HIDDEN, HEADS, WIDTH, VOCABULARY, POSITIONS = 3, 16, 4, 24, 60, 64

BERT_HEADS = [
    "BertModel",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
]
GPT2_HEADS = [
    "GPT2Model",
    "GPT2LMHeadModel",
    "GPT2ForQuestionAnswering",
    "GPT2ForSequenceClassification",
    "GPT2ForTokenClassification",
]

# Groups that (attention, FFN) of each layer lose; None for all of them.
PATTERNS: dict[str, list[tuple[int | None, int | None]]] = {
    "nothing": [(0, 0), (0, 0), (0, 0)],
    "some heads": [(1, 0), (3, 0), (0, 0)],
    "some columns": [(0, 5), (0, 23), (0, 1)],
    "heads and columns": [(2, 7), (1, 20), (3, 3)],
    "first attention": [(None, 0), (1, 4), (0, 0)],
    "two attentions": [(None, 0), (0, 3), (None, 0)],
    "one ffn": [(0, 0), (1, None), (0, 0)],
    "a whole layer": [(0, 2), (None, None), (1, 0)],
    "all attention": [(None, 0), (None, 4), (None, 0)],
    "all ffn": [(0, None), (2, None), (0, None)],
    "everything": [(None, None), (None, None), (None, None)],
}


ENCODER_SETTINGS: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": WIDTH,
}
# A group of a Llama is a head of keys and values with two query heads; all heads exceed the hidden size.
LLAMA_SETTINGS = {
    **ENCODER_SETTINGS,
    "num_attention_heads": 2 * HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SETTINGS: dict[str, dict[str, object]] = {
    "Bert": ENCODER_SETTINGS,
    "Electra": {**ENCODER_SETTINGS, "embedding_size": HIDDEN // 2},
    "Roberta": {**ENCODER_SETTINGS, "pad_token_id": 1},
    "XLMRoberta": {**ENCODER_SETTINGS, "pad_token_id": 1},
    "Camembert": {**ENCODER_SETTINGS, "pad_token_id": 1},
    "MPNet": ENCODER_SETTINGS,
    "DistilBert": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "dim": HIDDEN,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "hidden_dim": WIDTH,
    },
    "ModernBert": {
        **ENCODER_SETTINGS,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
        "local_attention": 4,
    },
    "GPT2": {
        "vocab_size": VOCABULARY,
        "n_positions": POSITIONS,
        "n_embd": HIDDEN,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_inner": WIDTH,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    "Llama": LLAMA_SETTINGS,
    "Mistral": {**LLAMA_SETTINGS, "sliding_window": None},
    "Qwen2": {key: value for key, value in LLAMA_SETTINGS.items() if key != "head_dim"},
    "Qwen3": LLAMA_SETTINGS,
}
"""Settings of tiny models, by the prefix of their class names."""
DECODERS = ("GPT2", "Llama", "Mistral", "Qwen2", "Qwen3")


def prefix_of(name: str) -> str:
    """Return the prefix of a class name that names the architecture."""
    return max((prefix for prefix in SETTINGS if name.startswith(prefix)), key=len)


def classes_of(prefix: str) -> list[str]:
    """Return the names of the dense classes of an architecture that have a shrunk form."""
    names = [name.removeprefix("Zip") for name in zip_classes()]
    return [name for name in names if name.startswith(prefix) and prefix_of(name) == prefix]


def attentions_of(name: str) -> list[str]:
    """Return the attention implementations that a class has and that run on a CPU."""
    return ["eager"] if prefix_of(name) == "MPNet" else ["eager", "sdpa"]


def tiny_model(name: str, attention: str = "eager", **settings: object) -> PreTrainedModel:
    """Return a model of that class with weights large enough for every part to matter."""
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    config = model_class.config_class(**{**SETTINGS[prefix_of(name)], **settings})
    model = model_class._from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model.eval()


def make_traces(model: PreTrainedModel) -> list[Trace | None]:
    """Return a centred trace of every remaining branch, made from random inputs."""
    architecture = architecture_of(model)
    generator = torch.Generator().manual_seed(1)
    traces: list[Trace | None] = []
    for branch in architecture.branches(model):
        if branch.groups == 0:
            traces.append(None)
            continue
        d = branch.columns
        inputs = torch.randn(4 * d, d, generator=generator) @ torch.randn(d, d, generator=generator) + 0.5
        hessian = 2 * inputs.T @ inputs / len(inputs)
        weight = architecture.weight(model, branch)
        centred = architecture.bias(model, branch) is not None
        traces.append(prune(weight, hessian, branch.group_size, mean=inputs.mean(0) if centred else None))
    return traces


def removed_by(model: PreTrainedModel, pattern: str) -> list[int]:
    """Return the groups that each branch of an unpruned model loses under one of PATTERNS."""
    branches = architecture_of(model).branches(model)
    counts = [count for layer in PATTERNS[pattern] for count in layer]
    return [branch.groups if count is None else count for branch, count in zip(branches, counts, strict=True)]


def sizes_left(model: PreTrainedModel, removed: Sequence[int]) -> list[Size]:
    """Return the sizes of a model's branches after each has lost that number of groups."""
    branches = architecture_of(model).branches(model)
    return [
        Size(branch.groups - count, branch.group_size)
        for branch, count in zip(branches, removed, strict=True)
    ]


def sizes_of(model: PreTrainedModel) -> dict[str, list[int]]:
    """Return the groups of each layer's attention and FFN."""
    sizes: dict[str, list[int]] = {"attention": [], "ffn": []}
    for branch in architecture_of(model).branches(model):
        sizes[branch.part].append(branch.groups)
    return sizes


def tokens_for(name: str) -> dict[str, torch.Tensor]:
    """Return a padded batch for the class of that name."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, VOCABULARY, (2, 7), generator=generator)
    mask = torch.ones_like(ids)
    side = slice(0, 2) if prefix_of(name) in DECODERS else slice(5, 7)
    ids[0, side], mask[0, side] = 0, 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if "MultipleChoice" in name:
        batch = {key: value[:, None].repeat(1, 3, 1) for key, value in batch.items()}
    return batch


def labels_for(name: str) -> dict[str, torch.Tensor]:
    """Return labels with which the class of that name computes a loss; none for a bare model."""
    makers: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
        "QuestionAnswering": lambda: {
            "start_positions": torch.tensor([2, 1]),
            "end_positions": torch.tensor([3, 4]),
        },
        "SequenceClassification": lambda: {"labels": torch.tensor([0, 1])},
        "NextSentencePrediction": lambda: {"labels": torch.tensor([0, 1])},
        "MultipleChoice": lambda: {"labels": torch.tensor([2, 0])},
        "TokenClassification": lambda: {"labels": torch.ones(2, 7, dtype=torch.int64)},
        "LM": lambda: {"labels": tokens_for(name)["input_ids"]},
    }
    head = name.removeprefix(prefix_of(name))
    return next((make() for ending, make in makers.items() if ending in head), {})


def outputs_of(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return all floating point outputs except the cache."""
    output = model(**batch)
    return [value for key, value in output.items() if isinstance(value, torch.Tensor) and key != "loss"]
