"""token-distill: time and peak memory of token_loss and logit_loss, against plain implementations.

Forward and backward passes are measured together.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from harness import announce, cpu_seconds, peak_extra_megabytes, print_table
from token_distill import logit_loss, token_loss
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Loss = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], Tensor]


def main() -> None:
    """Measure token_loss with the shapes of BERT-base on SQuAD, and logit_loss with those of a GPT2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16, help="batch size (16)")
    parser.add_argument("--tokens", type=int, default=384, help="tokens of each example (384)")
    parser.add_argument("--hidden", type=int, default=768, help="hidden size (768)")
    parser.add_argument(
        "--states",
        type=int,
        default=13,
        help="hidden states: embeddings and one for each layer (13)",
    )
    parser.add_argument("--vocabulary", type=int, default=50257, help="size of the vocabulary (50257)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the measurement (5)")
    options = parser.parse_args()
    announce("Distillation losses, forward and backward", "torch", "token-distill")

    shape = (options.batch, options.tokens, options.hidden)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        student, teacher = tensors(options.states, shape, dtype, 0), tensors(options.states, shape, dtype, 1)
        for padded in (0.0, 0.5):
            mask = padding(options.batch, options.tokens, padded)
            name = f"{str(dtype).removeprefix('torch.')}, {padded:.0%} padding"
            rows.append([name, *compare(stacked, token_loss, student, teacher, mask, options.rounds)])
    columns = ["", "time (s)", "plain", "ratio", "memory (MB)", "plain", "ratio", "without gradients"]
    print_table(
        f"token_loss: batch {options.batch}, {options.tokens} tokens, {options.hidden} wide, "
        f"{options.states} hidden states, each of {student[0].numel() * 4 / 1e6:.1f} MB in float32",
        columns,
        rows,
    )
    del student, teacher

    shape = (1, 1024, options.vocabulary)
    student, teacher = tensors(1, shape, torch.float32, 0), tensors(1, shape, torch.float32, 1)
    rows = []
    for padded in (0.0, 0.5):
        mask = padding(*shape[:2], padded)
        figures = compare(plain_kl, chunked_kl, student, teacher, mask, options.rounds)
        rows.append([f"float32, {padded:.0%} padding", *figures])
    print_table(
        f"logit_loss: {shape[0]} x {shape[1]} tokens, {shape[2]} classes",
        columns,
        rows,
        "Memory: the peak above the level before, including the gradients that both return; the last column\n"
        "is ours without these gradients. Time: the smallest CPU time of all rounds, which alternate.\n"
        "Goals for token_loss: a time ratio of at most 1.0, a memory ratio of at most 0.5, and without\n"
        "gradients no more memory than one hidden state takes.",
    )


def compare(
    plain: Loss, ours: Loss, student: list[Tensor], teacher: list[Tensor], mask: Tensor, rounds: int
) -> list[str]:
    """Return seconds, megabytes and their ratios to the plain loss, which must give the same gradients."""
    needed = student[1:] or student  # the embeddings of hidden states get no gradient

    def run(loss: Loss) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(student, teacher, mask), needed)

    for one, other in zip(run(plain), run(ours), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-8)
    # Both run in each round, so that a change in the machine's load affects both.
    times = [[cpu_seconds(partial(run, loss), 1) for loss in (ours, plain)] for _ in range(rounds)]
    seconds = [min(column) for column in zip(*times, strict=True)]
    megabytes = [peak_extra_megabytes(partial(run, loss)) for loss in (ours, plain)]
    gradients = sum(tensor.nbytes for tensor in needed) / 1e6
    return [
        *(f"{second:.3f}" for second in seconds),
        f"{seconds[0] / seconds[1]:.2f}",
        *(f"{megabyte:.0f}" for megabyte in megabytes),
        f"{megabytes[0] / megabytes[1]:.2f}",
        f"{megabytes[0] - gradients:.1f}",
    ]


def stacked(student: Sequence[Tensor], teacher: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Compute the token loss straightforwardly, with all layers in one tensor."""
    difference = torch.stack(list(student[1:])).float() - torch.stack(list(teacher[1:])).float()
    lengths = torch.linalg.vector_norm(difference, dim=-1) * mask  # (layers, batch, tokens)
    per_layer: Tensor = lengths.sum(dim=(1, 2)) / mask.sum()
    return per_layer.mean()


def plain_kl(student: Sequence[Tensor], teacher: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Compute the KL divergence of a language model's logits straightforwardly."""
    terms = F.kl_div(
        F.log_softmax(student[0], dim=-1),
        F.log_softmax(teacher[0], dim=-1),
        reduction="none",
        log_target=True,
    )
    return (terms.sum(dim=-1) * mask).sum() / mask.sum()


def chunked_kl(student: Sequence[Tensor], teacher: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Compute the KL divergence with token_distill."""
    return logit_loss(student[0], teacher[0], mask=mask)


def tensors(count: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Return random tensors that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for _ in range(count)]


def padding(batch: int, tokens: int, share: float) -> Tensor:
    """Return a mask for examples of different lengths, of which this share is padding on average."""
    lengths = torch.linspace(1 - 2 * share, 1, batch) if batch > 1 else torch.tensor([1 - share])
    return (torch.arange(tokens) < (lengths * tokens).clamp(min=1)[:, None]).long()


if __name__ == "__main__":
    main()
