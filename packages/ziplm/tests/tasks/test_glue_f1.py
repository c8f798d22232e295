"""The F1 of GLUE's tasks counts the class that GLUE means."""

from pathlib import Path
from typing import Any

import torch
from ziplm.tasks import Source, make_task
from ziplm_models import tiny_model
from ziplm_text import letter_tokenizer, write_rows


def test_f1_counts_the_same_class_whatever_its_number_in_the_model(tmp_path: Path) -> None:
    task: Any = make_task("mrpc")
    rows = [{"sentence1": "a", "sentence2": "b", "label": int(n > 1)} for n in range(8)]
    file = write_rows(tmp_path / "dev.csv", rows)
    found = []
    for names in (["not_equivalent", "equivalent"], ["equivalent", "not_equivalent"]):
        model = tiny_model("BertForSequenceClassification")
        model.config.id2label = dict(enumerate(names))
        model.config.label2id = {name: number for number, name in enumerate(names)}
        head: Any = model.classifier
        with torch.no_grad():
            head.weight.zero_()
            head.bias.copy_(torch.tensor([float(name == "not_equivalent") for name in names]))
        splits = task.load_splits(model, letter_tokenizer(), Source(eval_file=file), 16)
        found.append(task.evaluate(model, splits.evaluation["eval"]))
    assert found == [{"f1": 0.0, "accuracy": 0.25}] * 2
