"""Good files to damage: a small folder for each loader."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import torch
import ziplm
from obs_structured import Moments, prune
from spdy_search import Problem, search
from token_distill import Teacher
from ziplm.architectures.checkpoint import save
from ziplm.tasks.sentence_folder import copy_settings
from ziplm_compressed import options_for, write_files
from ziplm_finetune import MODELS, OFTEN, Killed, train
from ziplm_models import make_traces, removed_by, tiny_model
from ziplm_pipeline import linear_table
from ziplm_reports import ALTERNATIVES
from ziplm_text import bare_tokenizer, letter_rows, letter_tokenizer, question, write_rows, write_squad

PROBLEM = Problem([[3.0, 2.0, 1.0]] * 3, [[0.0, 1.0, 2.0]] * 3, 6.0)


def dense_checkpoint(folder: Path) -> None:
    """A dense BERT classifier with its tokenizer, and data to evaluate it on."""
    save(tiny_model("BertForSequenceClassification", num_labels=2), folder / "model", letter_tokenizer())
    write_rows(folder / "valid.csv", letter_rows()[:6])


def old_tokenizer(folder: Path) -> None:
    """A checkpoint whose tokenizer is a vocabulary alone."""
    dense_checkpoint(folder)
    words = sorted(letter_tokenizer().get_vocab().items(), key=lambda item: item[1])
    (folder / "model/vocab.txt").write_text("\n".join(word for word, _ in words))
    (folder / "model/tokenizer.json").unlink()
    settings = json.loads((folder / "model/tokenizer_config.json").read_text())
    (folder / "model/tokenizer_config.json").write_text(
        json.dumps(settings | {"tokenizer_class": "BertTokenizer"})
    )


def modern_encoder(folder: Path) -> None:
    """A dense ModernBERT classifier with its tokenizer, and data to evaluate it on."""
    name = "ModernBertForSequenceClassification"
    save(tiny_model(name, num_labels=2), folder / "model", letter_tokenizer())
    write_rows(folder / "valid.csv", letter_rows()[:6])


def shrunk_checkpoint(folder: Path) -> None:
    """A shrunk GPT2 with its tokenizer, and text to evaluate it on."""
    _save_shrunk("GPT2LMHeadModel", folder)


def modern_decoder(folder: Path) -> None:
    """A shrunk Llama with its tokenizer, and text to evaluate it on."""
    _save_shrunk("LlamaForCausalLM", folder)


def _save_shrunk(name: str, folder: Path) -> None:
    model = tiny_model(name, "sdpa")
    small = ziplm.shrink(model, removed_by(model, "a whole layer"), make_traces(model))
    save(small, folder / "model", bare_tokenizer())
    (folder / "valid.txt").write_text("the fox jumps over the lazy dog " * 3)


def exported_onnx(folder: Path) -> None:
    """A BERT classifier exported to ONNX in int8, with data to evaluate it on."""
    dense_checkpoint(folder)
    ziplm.export(folder / "model", "onnx", quantize="int8", output=folder / "exported")


def exported_openvino(folder: Path) -> None:
    """A BERT classifier exported to OpenVINO, with data to evaluate it on."""
    dense_checkpoint(folder)
    ziplm.export(folder / "model", "openvino", output=folder / "exported")


def exported_decoder(folder: Path) -> None:
    """A shrunk GPT2 exported to ONNX with its cache, and text to evaluate it on."""
    shrunk_checkpoint(folder)
    ziplm.export(folder / "model", "onnx", output=folder / "exported")


def sharded_checkpoint(folder: Path) -> None:
    """A dense BERT whose weights are in several files with an index."""
    save(tiny_model("BertForTokenClassification"), folder / "model", letter_tokenizer())
    tiny_model("BertForTokenClassification").save_pretrained(folder / "model", max_shard_size="20KB")
    (folder / "model/model.safetensors").unlink()


def sentence_model(folder: Path) -> None:
    """An embedding model as sentence-transformers stores it, with texts to embed."""
    save(tiny_model("BertModel"), folder / "model", letter_tokenizer())
    copy_settings(folder / "model", folder / "model", "mean")
    (folder / "model/sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    (folder / "valid.txt").write_text("\n".join(row["text"] for row in letter_rows()[:8]))


def tables(folder: Path) -> None:
    """The same rows in all formats of tables."""
    for ending in ("csv", "tsv", "json", "jsonl", "parquet"):
        write_rows(folder / f"rows.{ending}", letter_rows()[:6])


def other_data(folder: Path) -> None:
    """Questions, tagged words and running text."""
    write_squad(
        folder / "questions.json", [question("who?", "the fox jumps", "fox"), question("a?", "a b", "b")]
    )
    write_rows(
        folder / "tagged.jsonl", [{"tokens": ["a", "b"], "tags": [0, 1]}, {"tokens": ["c"], "tags": [1]}]
    )
    write_rows(folder / "pairs.jsonl", [{"sentence1": "a", "sentence2": "b c", "score": 0.5}] * 4)
    (folder / "text.txt").write_text("the fox jumps over the lazy dog " * 3)


def latency_table(folder: Path) -> None:
    """A latency table."""
    linear_table().save(folder / "latency.json")


def trace(folder: Path) -> None:
    """A trace of a small matrix."""
    torch.manual_seed(0)
    moments = Moments(8)
    moments.update(torch.randn(40, 8))
    made = prune(torch.randn(5, 8), moments.hessian, 2, mean=moments.mean)
    made.save(folder / "trace.safetensors")


def search_checkpoint(folder: Path) -> None:
    """The checkpoint of a finished search."""
    search(PROBLEM, lambda levels: float(sum(levels)), 4, checkpoint=folder / "search.json")


def cached_logits(folder: Path) -> None:
    """The cached logits of a teacher; if they are there, they are read."""
    torch.manual_seed(0)
    Teacher(torch.nn.Linear(3, 2), cache=folder).logits([1, 2], None, torch.ones(2, 3))


def finished_run(folder: Path) -> None:
    """A run with one finished target and all its state, as `compress` leaves it."""
    files = write_files(folder)
    ziplm.compress(**options_for(files, "bert", folder / "run", speedup=[2]))
    (folder / "run/alternatives.json").write_text(json.dumps(ALTERNATIVES))
    family = {"targets": ["2x"], "trainings": 1, "epochs": 1.0, "steps": 2, "examples": 3, "hours": 0.1}
    (folder / "run/family.json").write_text(json.dumps(family))  # of gradual runs


def training(folder: Path) -> None:
    """A fine-tuning that was interrupted, with its last checkpoint."""
    with suppress(Killed):
        train(tiny_model(MODELS[0]), folder / "training", OFTEN, kill_after=16)


def unfinished_run(folder: Path) -> None:
    """A run that was interrupted before its target was written."""
    finished_run(folder)
    shutil.rmtree(folder / "run/2x")
