"""A task on random tokens, and a head whose score is deterministic, for tests of the stages."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from latency_profiler import Environment, LatencyCurve, LatencyTable
from obs_structured import Trace
from transformers import PreTrainedModel
from ziplm.architectures.registry import architecture_of
from ziplm.stages.levels import size_grid
from ziplm.tasks import Features, Splits, Task
from ziplm.tasks.base import Predictions
from ziplm.tasks.heads import Batch, Classification, Head
from ziplm.tasks.language_model import LanguageModel
from ziplm_models import DECODERS, HEADS, VOCABULARY, WIDTH, make_traces, prefix_of, tiny_model

CLASSIFIER, DECODER = "BertForSequenceClassification", "GPT2LMHeadModel"
ARCHITECTURES = [CLASSIFIER, DECODER]


class MadeUpTask(Task):
    """A task whose examples are token ids already."""

    name = "made-up"
    metric = "loss"
    greater_is_better = False
    class_endings = ("",)

    def __init__(self, head: Head) -> None:
        self.head = head

    def load_splits(self, *_: Any) -> Splits:
        raise AssertionError("its examples are given, not loaded")

    def predict(self, *_: Any, **__: Any) -> Predictions:
        raise AssertionError("no stage before the last evaluates")

    def metrics_of(self, *_: Any) -> dict[str, float]:
        raise AssertionError("no stage before the last evaluates")


class KnownScore(Head):
    """A head with a deterministic score: a fixed function of the outputs at tokens that are not padding."""

    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits

    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        return self.scores(outputs, batch).sum()

    @staticmethod
    def scores(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return one number for each sample."""
        wanted = torch.linspace(-1, 1, outputs.shape[-1], dtype=outputs.dtype)
        per_token = outputs.log_softmax(-1) @ wanted  # (batch,) or (batch, tokens)
        return per_token if per_token.ndim == 1 else (per_token * batch["attention_mask"]).sum(-1)

    def divergence(self, *_: Any) -> Any:
        raise AssertionError("gradients are taken of the score alone")


def lively_model(name: str, **settings: Any) -> PreTrainedModel:
    """Return a tiny model whose norms preserve the residual stream, so that outputs depend on inputs."""
    model = tiny_model(name, **settings)
    with torch.no_grad():
        for module in model.modules():
            if type(module).__name__.endswith(("LayerNorm", "RMSNorm")):
                module.weight += 1
    return model


def with_another_head(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy whose language head has weights of its own, no longer those of the embeddings."""
    other = copy.deepcopy(model)
    head = other.get_output_embeddings()
    assert isinstance(head, torch.nn.Linear)
    noise = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(1))
    head.weight = torch.nn.Parameter(head.weight.detach() + 0.1 * noise)
    return other


def task_for(name: str) -> MadeUpTask:
    """Return the task for a class of tiny models."""
    return MadeUpTask(LanguageModel("causal") if prefix_of(name) in DECODERS else Classification())


def samples(name: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return labelled features of several lengths, not sorted by length."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        length = 3 + (5 * index + seed) % 7
        ids = torch.randint(5, VOCABULARY, (length,), generator=generator).tolist()
        labels = ids if prefix_of(name) in DECODERS else index % 2
        made.append({"input_ids": ids, "attention_mask": [1] * length, "labels": labels})
    return made


def one_by_one(features: Sequence[Features]) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Yield (index, batch of one) without padding, in the order in which tasks batch the samples."""
    order = sorted(range(len(features)), key=lambda index: (len(features[index]["input_ids"]), index))
    for index in order:
        ids = torch.tensor([features[index]["input_ids"]])
        yield index, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def named_traces(model: PreTrainedModel) -> dict[str, Trace]:
    """Return traces by branch name."""
    branches = architecture_of(model).branches(model)
    return {b.name: t for b, t in zip(branches, make_traces(model), strict=True) if t is not None}


@contextmanager
def hooked(module: torch.nn.Module, hook: Callable[..., Any], before: bool = False) -> Iterator[None]:
    """Register a forward hook, or a forward pre-hook, while the context is open."""
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


def parameters_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return copies of all parameters."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same_parameters(model: PreTrainedModel, before: Mapping[str, torch.Tensor]) -> None:
    """Assert that no parameter was changed, added or removed."""
    now = dict(model.named_parameters())
    assert list(now) == list(before)
    assert all(torch.equal(now[name], before[name]) for name in before)


def linear_table(fixed: float = 1e-3, heads: int = HEADS, width: int = WIDTH) -> LatencyTable:
    """Return a table whose times fall linearly with size, down to a tenth for a removed branch."""

    def curve(sizes: list[int], seconds: float) -> LatencyCurve:
        return LatencyCurve(tuple(sizes), tuple(seconds * (0.1 + 0.9 * size / sizes[0]) for size in sizes))

    curves = {
        "attention": curve(size_grid("attention", heads), 1.3e-3),
        "ffn": curve(size_grid("ffn", width), 2e-3),
    }
    return LatencyTable(Environment.current(), fixed, curves)
