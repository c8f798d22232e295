"""Compare an exported file with the model that it was made from, on inputs of several shapes with padding."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.exported import ExportedDecoder, ExportedModel
from ziplm.architectures.registry import positions_of
from ziplm.errors import NotFinite, ZipLMError
from ziplm.stages.export_graph import has_token_types
from ziplm.tasks.heads import Batch

TOLERANCE = 1e-4  # of float32 files, relative to the largest output where that is above 1
SHAPES = ((1, 1), (3, 7), (2, 33), (1, 128))  # batch, tokens
SEVERAL, SINGLE = 2, 4  # tokens that a decoder gets at once after the first call, and then one by one
TEXT = """The committee met on Tuesday to discuss the new library, which will open in spring. Nobody expected
it to be finished so early! Its architect, Maria Lindqvist (born 1971), had asked for three more months: "We
are not ready yet," she wrote. Prices rose by 2.4 % in October, after 1.9 % in September. What would you do?
If the train leaves at 7:45, we arrive before noon, provided that the bridge near the old harbour is open."""


@dataclass(frozen=True)
class Difference:
    """How far the outputs of a file are from those of the model.

    Attributes:
        largest: the largest absolute difference.
        relative: the root mean square of the differences, divided by that of the model's outputs.
        scale: the largest absolute output of the model.
    """

    largest: float
    relative: float
    scale: float

    def __str__(self) -> str:
        return (
            f"outputs differ from the checkpoint's by at most {self.largest:.1e}, root mean square "
            f"{self.relative:.1e} of their size"
        )

    @property
    def allowed(self) -> float:
        """The largest difference that is rounding in float32."""
        return TOLERANCE * max(1.0, self.scale)


def check_exported(
    model: PreTrainedModel,
    exported: ExportedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    quantized: bool = False,
) -> Difference:
    """Compare a file with its model.

    Args:
        model: the model, in float32 on the CPU.
        exported: the file.
        tokenizer: tokenises the English text to compare on; without it, tokens are random.
        quantized: whether the file is quantised, so that only nonsense is refused.

    Raises:
        NotFinite: if the model or the file computes values that are not finite.
        ZipLMError: if outputs differ by more than rounding, or in a quantised file by more than their size.
    """
    found = difference(model, exported, sample_batches(model, tokenizer))
    if not math.isfinite(found.scale):
        raise NotFinite("the checkpoint computes values that are not finite", "export a sound checkpoint")
    if not math.isfinite(found.largest):
        raise NotFinite(
            f"the exported file computes values that are not finite in {exported.engine}",
            "export it in another format" if not quantized else "export it without --quantize",
        )
    if quantized and found.relative > 1:
        raise ZipLMError(
            f"int8 destroys this model: outputs are off by {found.relative:.0%} of their size",
            "export it without --quantize",
        )
    if not quantized and found.largest > found.allowed:
        raise ZipLMError(
            f"the file differs from its checkpoint by {found.largest:.1e}; {found.allowed:.1e} is allowed",
            "export it in another format, and report this",
        )
    return found


@torch.inference_mode()
def difference(model: PreTrainedModel, exported: ExportedModel, batches: Sequence[Batch]) -> Difference:
    """Compare outputs on batches; those at padding do not count. Decoders get their tokens in pieces."""
    largest = scale = squares = total = 0.0
    for batch in batches:
        for own, other in _outputs(model, exported, batch):
            distance = (own - other).double()
            # max() of Python drops nan, which must not be hidden.
            largest = float(torch.tensor([largest, float(distance.abs().max())]).max())
            scale = float(torch.tensor([scale, float(own.abs().max())]).max())
            squares += float(distance.square().sum())
            total += float(own.double().square().sum())
    return Difference(largest, math.sqrt(squares / total) if total else 0.0, scale)


def _outputs(
    model: PreTrainedModel, exported: ExportedModel, batch: Batch
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each output of the model with that of the file."""
    mask = batch["attention_mask"].bool()
    if isinstance(exported, ExportedDecoder):
        positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        own = model(**batch, position_ids=positions, use_cache=False).logits
        yield own[mask], logits_in_pieces(exported, batch)[mask]
        return
    wanted = model(**batch)
    for name, found in exported(**batch).items():
        of_tokens = found.ndim == 3 or name in ("start_logits", "end_logits")
        chosen = mask if of_tokens else ...
        yield wanted[name][chosen], found[chosen]


def logits_in_pieces(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Return the logits of all tokens, which the model gets in several calls with a cache.

    The first call has an empty cache; later ones have several tokens or one.
    """
    ids, mask = batch["input_ids"], batch["attention_mask"]
    tokens = ids.shape[1]
    single = min(SINGLE, tokens - 1)
    several = min(SEVERAL, tokens - 1 - single)
    sizes = [size for size in (tokens - single - several, several, *[1] * single) if size]
    cache, done, parts = None, 0, []
    for piece in ids.split(sizes, dim=1):
        done += piece.shape[1]
        made = model(piece, attention_mask=mask[:, :done], past_key_values=cache)
        cache = made.past_key_values
        parts.append(made.logits)
    return torch.cat(parts, dim=1)


def sample_batches(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Batch]:
    """Return batches of several shapes, with padding on the left for decoders and on the right for others."""
    config = model.config
    ids, longest = _tokens(model, tokenizer), positions_of(config)
    batches = []
    for rows, tokens in dict.fromkeys((rows, min(n, longest)) for rows, n in SHAPES):
        wanted = torch.arange(rows * tokens).remainder(len(ids))
        chosen = ids[wanted].view(rows, tokens)
        if not model.can_generate():
            chosen[:, 0] = ids[0]  # each text begins with the special token, if there is one
        lengths = torch.tensor([tokens - row * tokens // (rows + 1) for row in range(rows)])
        mask = (torch.arange(tokens) < lengths[:, None]).to(torch.int64)
        mask = mask.flip(-1) if model.can_generate() else mask
        padding = config.pad_token_id if isinstance(config.pad_token_id, int) else 0
        batch = {"input_ids": torch.where(mask == 1, chosen, padding), "attention_mask": mask}
        if has_token_types(model):
            batch["token_type_ids"] = (torch.arange(tokens) > tokens // 2).to(torch.int64) * mask
        if type(model).__name__.endswith("ForMultipleChoice"):
            batch = {name: value[:, None].repeat(1, 2, 1) for name, value in batch.items()}
        batches.append(batch)
    return batches


def _tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> torch.Tensor:
    """Return tokens to compare on, int64: those of English text, or random ones."""
    vocabulary = model.config.vocab_size
    if tokenizer is not None:
        found = torch.tensor(tokenizer(TEXT, verbose=False)["input_ids"])
        if len(found) and int(found.max()) < vocabulary:
            return found
    return torch.randint(vocabulary, (512,), generator=torch.Generator().manual_seed(0))
