"""A task on made-up examples for tests of training; as a script, one process of a torchrun."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ziplm.options.training import TrainingOptions
from ziplm.stages.finetune import finetune
from ziplm.tasks import Features
from ziplm.tasks.heads import IGNORED, Batch
from ziplm_models import VOCABULARY, tiny_model


def examples(name: str, count: int) -> list[dict[str, Any]]:
    """Return token ids of several lengths; labels follow from the first token, or are the ids."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for index in range(count):
        length = int(torch.randint(4, 12, (), generator=generator))
        ids = torch.randint(5, VOCABULARY - 1, (length,), generator=generator).tolist()
        ids[0] = 3 + index % 2
        made.append({"input_ids": ids, "labels": ids if "LM" in name else index % 2})
    return made


class PaddedTask:
    """The part of a task that training needs."""

    def collate(self, features: Sequence[Features]) -> Batch:
        longest = max(len(example["input_ids"]) for example in features)

        def padded(name: str, value: int) -> torch.Tensor:
            rows = [
                list(example[name]) + [value] * (longest - len(example["input_ids"])) for example in features
            ]
            return torch.tensor(rows)

        ids = padded("input_ids", 0)
        if isinstance(features[0]["labels"], int):
            labels = torch.tensor([example["labels"] for example in features])
        else:
            labels = padded("labels", IGNORED)
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main(folder: Path) -> None:
    """Train, spoil the last checkpoint, train again; write the progress and weights of this process."""
    name = "BertForSequenceClassification"
    options = TrainingOptions(learning_rate=1e-2, max_steps=8, batch_size=4, dropout=False, checkpoints=4)
    for again in (False, True):
        model = tiny_model(name)
        steps: list[int] = []
        training = folder / "training"
        if again and torch.distributed.get_rank() == 0:
            (training / "checkpoint-8" / "whole").unlink()
        if again:
            torch.distributed.barrier()
        finetune(
            model,
            PaddedTask(),  # type: ignore[arg-type]
            examples(name, 32),
            options,
            folder=training,
            progress=lambda done, total, steps=steps: steps.append(done),
        )
    weights = {key: value.tolist() for key, value in model.state_dict().items()}
    (folder / f"{torch.distributed.get_rank()}.json").write_text(
        json.dumps({"progress": steps, "weights": weights})
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
