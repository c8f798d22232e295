"""Export a classifier, an embedder and a decoder, and write down what their checkpoints compute.

Run with the folder to write as the only argument, in an environment with ziplm.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import ziplm
from ziplm_models import make_traces, removed_by, tiny_model
from ziplm_text import bare_tokenizer, letter_tokenizer

TEXTS = ["a b c", "the quick brown fox", "z"]
TOKENS = 5


def write_served(folder: Path) -> None:
    """Write the three exported folders, and expected.json."""
    expected: dict[str, Any] = {"texts": TEXTS, "tokens": TOKENS}
    for task, name in (
        ("classify", "BertForSequenceClassification"),
        ("embed", "BertModel"),
        ("generate", "GPT2LMHeadModel"),
    ):
        model = tiny_model(name)
        small = ziplm.shrink(model, removed_by(model, "first attention"), make_traces(model)).eval()
        tokenizer = bare_tokenizer() if task == "generate" else letter_tokenizer()
        ziplm.save(small, folder / f"checkpoint-{task}", tokenizer)
        ziplm.export(folder / f"checkpoint-{task}", output=folder / task)
        expected[task] = _expected(task, small, tokenizer)
    (folder / "expected.json").write_text(json.dumps(expected))


@torch.inference_mode()
def _expected(task: str, model: Any, tokenizer: Any) -> Any:
    if task == "generate":  # one by one, without padding: the oracle of padding on the left
        prompts = [torch.tensor([tokenizer(text)["input_ids"]]) for text in TEXTS]
        asked = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None}
        made = [model.generate(ids, attention_mask=torch.ones_like(ids), **asked) for ids in prompts]
        return [ids[0, -TOKENS:].tolist() for ids in made]
    found = []
    for text in TEXTS:
        made = model(**tokenizer(text, return_tensors="pt"))
        if task == "classify":
            found.append(made.logits.softmax(-1)[0].tolist())
        else:
            found.append(torch.nn.functional.normalize(made.last_hidden_state.mean(1), dim=-1)[0].tolist())
    return found


if __name__ == "__main__":
    write_served(Path(sys.argv[1]))
