"""Every loader of the five packages: a sample, the files of it that are damaged, and how it is loaded."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latency_profiler import LatencyTable, ProfilerError
from obs_structured import Trace
from spdy_search import search
from ziplm.architectures.checkpoint import load
from ziplm.architectures.inspection import inspect
from ziplm.cli import main
from ziplm.errors import ZipLMError
from ziplm.options.source import Source
from ziplm.options.toml import load_options
from ziplm.tasks import Task, make_task
from ziplm.tasks.embedding import read_sentences
from ziplm.tasks.files import read_table, read_text
from ziplm.tasks.sentence_folder import copy_settings, read_settings
from ziplm.tasks.squad import read_questions
from ziplm_compressed import options_for
from ziplm_finetune import MODELS, OFTEN, train
from ziplm_models import tiny_model
from ziplm_text import letter_tokenizer

from ziplm_fuzz import samples


@dataclass(frozen=True)
class Loader:
    """One way of loading.

    Attributes:
        sample: writes good files into a folder.
        files: patterns of the files to damage.
        load: loads the files from a folder. It may write into the second folder, and nowhere else, unless
            `writes` says otherwise.
        errors: the errors that may come of it. Those of a leaf package that are plain ValueErrors must name
            the file.
        share: how often this loader is drawn, relative to the others.
        writes: whether the files' own folder may be written to.
    """

    sample: Callable[[Path], Any]
    files: tuple[str, ...]
    load: Callable[[Path, Path], Any]
    errors: tuple[type[Exception], ...] = (ZipLMError,)
    share: float = 1.0
    writes: bool = False


class CommandFailed(Exception):
    """The command line printed an error and returned an exit code other than 0."""


def ziplm_command(*arguments: str) -> None:
    """Run the command line in this process."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            main.main(list(arguments), standalone_mode=True)
        except SystemExit as stop:
            if stop.code:
                raise CommandFailed(f"exit {stop.code}: {errors.getvalue().strip()}") from None


def evaluate(name: str, data: str, **settings: Any) -> Callable[[Path, Path], None]:
    """Return a function that evaluates the checkpoint in ``model`` on a file beside it."""

    def run(folder: Path, output: Path) -> None:
        task = make_task(name, **settings)
        path = str(folder / "model")
        model, tokenizer = task.load_model(path), task.load_tokenizer(path)
        source = Source(validation_file=str(folder / data), train=False)
        for features in task.load_splits(model, tokenizer, source, 16).evaluation.values():
            task.prepare_reference(model, features)
            task.evaluate(model, features)

    return run


def evaluate_exported(task: str, data: str) -> Callable[[Path, Path], None]:
    """Return a function that evaluates the exported file in ``exported`` on a file beside it."""

    def run(folder: Path, output: Path) -> None:
        from ziplm import evaluate

        evaluate(folder / "exported", task, validation_file=str(folder / data), max_length=16)

    return run


def encode(task: Task, file: str) -> Callable[[Path, Path], None]:
    """Return a function that reads a data file and tokenises it for a task."""

    def run(folder: Path, output: Path) -> None:
        source = Source(train_file=str(folder / file), validation_file=str(folder / file))
        name = "BertForTokenClassification" if task.name == "token-classification" else "BertModel"
        splits = task.load_splits(tiny_model(name, num_labels=2), letter_tokenizer(), source, 16)
        for features in (splits.train, splits.evaluation["validation"]):
            task.collate(features[:4])

    return run


def load_trace(folder: Path, output: Path) -> None:
    """Load a trace and use it."""
    trace = Trace.load(folder / "trace.safetensors")
    for removed in range(len(trace.order) + 1):
        trace.weight(removed), trace.columns(removed), trace.kept(removed)
    trace.save(output / "trace.safetensors")


def use_sentence_folder(folder: Path, output: Path) -> None:
    """Read the settings of sentence-transformers, and copy them beside a new checkpoint."""
    read_settings(folder / "model")
    samples.save(tiny_model("BertModel"), output / "new")
    copy_settings(folder / "model", output / "new", "cls")


def resume_training(folder: Path, output: Path) -> None:
    """Resume a fine-tuning from its checkpoint."""
    train(tiny_model(MODELS[0]), folder / "training", OFTEN)


def resume(folder: Path, output: Path) -> None:
    """Resume a run."""
    from ziplm import compress

    compress(**options_for(folder, "bert", folder / "run", speedup=[2]))


TABLES = ("csv", "tsv", "json", "jsonl", "parquet")
MODEL_FILES = ("model/config.json", "model/*.safetensors")
TOKENIZER_FILES = ("model/tokenizer*.json", "model/vocab.txt")
STATE = (
    "run/state/**/*.json",
    "run/state/**/*.safetensors",
    "run/config.toml",
    "run/latency.json",
    "run/ziplm-run.json",
)
LOADERS: dict[str, Loader] = {
    "dense checkpoint": Loader(
        samples.dense_checkpoint, MODEL_FILES, evaluate("classification", "valid.csv"), share=3
    ),
    "shrunk checkpoint": Loader(
        samples.shrunk_checkpoint, MODEL_FILES, evaluate("causal-lm", "valid.txt"), share=3
    ),
    "modern encoder": Loader(
        samples.modern_encoder, MODEL_FILES, evaluate("classification", "valid.csv"), share=1.5
    ),
    "modern decoder": Loader(
        samples.modern_decoder, MODEL_FILES, evaluate("causal-lm", "valid.txt"), share=1.5
    ),
    "inspection": Loader(
        samples.shrunk_checkpoint, MODEL_FILES, lambda folder, _: inspect(folder / "model"), share=2
    ),
    "sharded checkpoint": Loader(
        samples.sharded_checkpoint,
        ("model/model.safetensors.index.json", "model/*.safetensors"),
        lambda folder, _: load(folder / "model"),
        share=2,
    ),
    "exported onnx": Loader(
        samples.exported_onnx,
        ("exported/onnx/*.onnx", "exported/config.json"),
        evaluate_exported("classification", "valid.csv"),
    ),
    "exported decoder": Loader(
        samples.exported_decoder, ("exported/onnx/*.onnx",), evaluate_exported("causal-lm", "valid.txt")
    ),
    "exported openvino": Loader(
        samples.exported_openvino, ("exported/openvino/*",), evaluate_exported("classification", "valid.csv")
    ),
    "tokenizer": Loader(
        samples.dense_checkpoint, TOKENIZER_FILES, evaluate("classification", "valid.csv"), share=3
    ),
    "old tokenizer": Loader(
        samples.old_tokenizer, TOKENIZER_FILES, evaluate("classification", "valid.csv"), share=2
    ),
    "decoder's tokenizer": Loader(
        samples.shrunk_checkpoint, TOKENIZER_FILES, evaluate("causal-lm", "valid.txt")
    ),
    "sentence model": Loader(
        samples.sentence_model,
        ("model/modules.json", "model/sentence_bert_config.json", "model/1_Pooling/config.json"),
        use_sentence_folder,
        share=2,
    ),
    "embedding": Loader(
        samples.sentence_model,
        ("model/modules.json", "model/sentence_bert_config.json", "model/config.json"),
        evaluate("embedding", "valid.txt"),
    ),
    **{
        f"{ending} table": Loader(
            samples.tables, (f"rows.{ending}",), encode(make_task("embedding"), f"rows.{ending}"), share=1.5
        )
        for ending in TABLES
    },
    **{
        f"{ending} rows": Loader(
            samples.tables,
            (f"rows.{ending}",),
            lambda folder, _, ending=ending: read_table(str(folder / f"rows.{ending}")),
        )
        for ending in TABLES
    },
    "questions": Loader(
        samples.other_data,
        ("questions.json",),
        lambda folder, _: read_questions(str(folder / "questions.json")),
    ),
    "tagged words": Loader(
        samples.other_data, ("tagged.jsonl",), encode(make_task("token-classification"), "tagged.jsonl")
    ),
    "pairs": Loader(samples.other_data, ("pairs.jsonl",), encode(make_task("embedding"), "pairs.jsonl")),
    "text": Loader(
        samples.other_data, ("text.txt",), lambda folder, _: read_text(folder / "text.txt"), share=0.5
    ),
    "sentences": Loader(
        samples.other_data,
        ("text.txt",),
        lambda folder, _: read_sentences(str(folder / "text.txt"), Source()),
        share=0.3,
    ),
    "latency table": Loader(
        samples.latency_table,
        ("latency.json",),
        lambda folder, _: str(LatencyTable.load(folder / "latency.json")),
        (ProfilerError,),
        share=3,
    ),
    "trace": Loader(
        samples.trace, ("trace.safetensors",), load_trace, (ValueError, FileNotFoundError), share=3
    ),
    "search checkpoint": Loader(
        samples.search_checkpoint,
        ("search.json",),
        lambda folder, _: search(
            samples.PROBLEM, lambda levels: float(sum(levels)), 6, checkpoint=folder / "search.json"
        ),
        (ValueError,),
        share=2,
        writes=True,
    ),
    "cached logits": Loader(
        samples.cached_logits,
        ("*.safetensors",),
        lambda folder, _: samples.cached_logits(folder),
        (ValueError,),
        share=2,
        writes=True,
    ),
    "options": Loader(
        samples.finished_run,
        ("run/config.toml",),
        lambda folder, _: load_options(folder / "run/config.toml"),
        share=3,
    ),
    "status": Loader(
        samples.finished_run,
        (
            "run/config.toml",
            "run/state/seconds.json",
            "run/ziplm-run.json",
            "run/2x/metrics.json",
            "run/family.json",
        ),
        lambda folder, _: ziplm_command("status", str(folder / "run")),
        (CommandFailed,),
        share=2,
    ),
    "report": Loader(
        samples.finished_run,
        ("run/2x/metrics.json", "run/latency.json", "run/alternatives.json", "run/state/targets/2x/*.json"),
        lambda folder, output: ziplm_command("report", str(folder / "run")),
        (CommandFailed,),
        writes=True,
    ),
    "training": Loader(
        samples.training,
        ("training/*.json", "training/checkpoint-*/*"),
        resume_training,
        share=0.5,
        writes=True,
    ),
    "resume": Loader(
        samples.unfinished_run, STATE, resume, (ZipLMError, ProfilerError), share=0.7, writes=True
    ),
}
