"""The model card of a member: its README.md, with the metadata that the Hugging Face Hub reads.

It says what the model is, how it was made, how good and how fast it is and where that was measured, what is
left of each layer, how to load it, and its limits. Names of local folders are shortened, because cards are
made to be published.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ziplm.files import read_json
from ziplm.results.card_loading import loading_section, served_file
from ziplm.results.plain import finite, mapping
from ziplm.results.rows import KIND_NAMES, recovery
from ziplm.results.run_data import Report, is_local_path, short_model_name
from ziplm.results.sizes import groups_of, size_text
from ziplm.results.texts import bytes_text, environment_text, interval_text, number_text, percent_text

CARD = "README.md"
BAR = 12  # characters that show a whole branch

HEADS = {
    "ForSequenceClassification": ("text-classification", "AutoModelForSequenceClassification"),
    "ForTokenClassification": ("token-classification", "AutoModelForTokenClassification"),
    "ForQuestionAnswering": ("question-answering", "AutoModelForQuestionAnswering"),
    "ForMaskedLM": ("fill-mask", "AutoModelForMaskedLM"),
    "LMHeadModel": ("text-generation", "AutoModelForCausalLM"),
    "ForCausalLM": ("text-generation", "AutoModelForCausalLM"),
}
"""The pipeline and the Auto class for each ending of a model's class; others have no head."""
HEADLESS = ("feature-extraction", "AutoModel")


def write_card(folder: Path, report: Report, model: str, task: str) -> None:
    """Write the model card into the folder of a member, beside its config.json.

    Args:
        folder: the folder of the checkpoint.
        report: the report of the member.
        model: name or folder of the dense model.
        task: name of the task.
    """
    card = make_card(folder, report, model, task)
    (folder / CARD).write_text(str(card) + "\n", encoding="utf-8")


def make_card(folder: Path, report: Report, model: str, task: str) -> ModelCard:
    """Return the model card of a member; see `write_card`."""
    pipeline, auto_class = head_of(folder)
    is_sentence_folder = (folder / "modules.json").is_file()
    data = ModelCardData(
        base_model=None if is_local_path(model) else model,
        library_name="sentence-transformers" if is_sentence_folder else "transformers",
        pipeline_tag="sentence-similarity" if is_sentence_folder else pipeline,
        tags=["ziplm", "pruning", "structured-pruning", "compression"],
        metrics=[str(report["metric"]["name"])],
        model_name=f"{short_model_name(model)}, {report['target']['name']}",
        eval_results=_eval_results(report, pipeline),
    )
    sections = [
        _what(report, model, task),
        _results(report),
        _structure(report),
        loading_section(report, auto_class, is_sentence_folder),
        _making(report),
        _limits(report),
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections))


def head_of(folder: Path) -> tuple[str, str]:
    """Return the pipeline and the Auto class of a checkpoint, by the class that its config names."""
    names = mapping(read_json(folder / "config.json")).get("architectures") or [""]
    return next((head for ending, head in HEADS.items() if str(names[0]).endswith(ending)), HEADLESS)


def _eval_results(report: Report, pipeline: str) -> list[EvalResult] | None:
    """Return all metrics on all evaluation splits, for the Hub's index; None if the dataset has no name."""
    dataset = mapping(report.get("dataset"))
    if not isinstance(dataset.get("name"), str):
        return None
    splits = mapping(mapping(report.get("metrics")).get("compressed"))
    splits = splits or {"validation": {report["metric"]["name"]: report["metric"]["compressed"]}}
    config = dataset.get("config")
    return [
        EvalResult(
            task_type=pipeline,
            dataset_type=dataset["name"],
            dataset_name=" ".join(filter(None, [dataset["name"], config])),
            dataset_config=config,
            dataset_split=str(split),
            metric_type=str(name),
            metric_value=round(value, 5),
        )
        for split, metrics in splits.items()
        for name, value in mapping(metrics).items()
        if finite([value])
    ]


def _what(report: Report, model: str, task: str) -> str:
    name, target = _plain(short_model_name(model)), _plain(report["target"]["name"])
    speed, basis = _speed(report)
    left, dense = report["parameters"]["layers"], report["dense_parameters"]["layers"]
    source = name if is_local_path(model) else f"[{name}](https://huggingface.co/{name})"
    return (
        f"# {name}, {target}\n\n"
        f"A smaller version of {source} for the task {_plain(task)}, **{speed} as fast** ({basis}). "
        "Attention heads and FFN columns were removed by [ZipLM](https://arxiv.org/abs/2302.04089) for the "
        f"target {target}; {percent_text(left / dense)} of the layers' parameters are left. It is an "
        "ordinary dense model: no sparse kernels are needed."
    )


def _speed(report: Report) -> tuple[str, str]:
    measured = report["measured"]
    if measured is None:
        return number_text(report["predicted"]["speedup"], "x"), "predicted by a latency table, not measured"
    ends = f"{measured['low']:.2f} to {measured['high']:.2f}"
    return number_text(measured["speedup"], "x"), f"measured, 99 % interval {ends}"


def _results(report: Report) -> str:
    metric, measured = report["metric"], report["measured"] or {}
    predicted = report["predicted"]
    dense_seconds = measured.get("dense_seconds") or predicted["seconds"] * predicted["speedup"]
    seconds = measured.get("seconds") or predicted["seconds"]
    share = recovery(metric)
    rows = [
        ("", "dense", "this model"),
        (
            f"{_plain(metric['name'])} (95 % interval)",
            interval_text(metric["dense"], *(metric.get("dense_interval") or (None, None))),
            interval_text(metric["compressed"], *(metric.get("interval") or (None, None))),
        ),
        *([("share of the dense metric", "100 %", percent_text(share))] if share is not None else []),
        ("speedup", "1x", f"{_speed(report)[0]} ({_speed(report)[1]})"),
        ("time", f"{1e3 * dense_seconds:.4g} ms", f"{1e3 * seconds:.4g} ms"),
        (
            "parameters of the layers",
            f"{report['dense_parameters']['layers']:,}",
            f"{report['parameters']['layers']:,}",
        ),
        (
            "weights on disk",
            f"{bytes_text(4 * report['dense_parameters']['all'])} in float32",
            bytes_text(report["bytes_on_disk"]),
        ),
    ]
    if served_file(report):
        rows.append(("exported file", "", bytes_text(mapping(report.get("exported")).get("bytes"))))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---|---|---|")
    said = "Measured on" if measured else "The latency table was measured on"
    where = _plain(environment_text(mapping(report.get("environment"))))
    return "## Results\n\n" + "\n".join(lines) + f"\n\n{said}: {where}.{_served(report)}"


def _served(report: Report) -> str:
    """Say which file the figures belong to, if it is not the checkpoint, and what int8 contributes."""
    file = served_file(report)
    if file is None:
        return ""
    text = f" The metric and the speedup are those of `{file}`, not of the checkpoint in torch."
    quantization = mapping(report.get("quantization"))
    before, alone = quantization.get("metric_before"), quantization.get("dense_speedup")
    if len(finite([before, alone])) < 2:
        return text
    return (
        f"{text} Before int8, the {_plain(report['metric']['name'])} is {number_text(before)}. "
        f"int8 alone makes the dense model {number_text(alone, 'x')} as fast."
    )


def _structure(report: Report) -> str:
    """Draw what is left of each layer with characters, which need no image and no library."""
    sizes, dense = report["sizes"], report["dense_sizes"]
    if not sizes:
        return "## Structure\n\nunknown"
    columns = [
        [_bar(size, dense.get(kind) or max(kept, key=groups_of, default=1)) for size in kept]
        for kind, kept in sizes.items()
    ]
    names = [KIND_NAMES.get(kind, _plain(kind)) for kind in sizes]
    widths = [
        max(len(name), *(len(text) for text in column)) for name, column in zip(names, columns, strict=True)
    ]
    head = "layer  " + "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True))
    lines = [
        f"{layer:5}  "
        + "  ".join(
            (column[layer] if layer < len(column) else "").ljust(width)
            for column, width in zip(columns, widths, strict=True)
        )
        for layer in range(max(len(column) for column in columns))
    ]
    return (
        "## Structure\n\nWhat is left of each layer:\n\n```text\n"
        + "\n".join(line.rstrip() for line in [head, *lines])
        + "\n```"
    )


def _bar(size: int | list[int], dense: int | list[int]) -> str:
    share = groups_of(size) / max(1, groups_of(dense))
    filled = max(round(BAR * share), 1) if share else 0
    kept = f"{size_text(size)} of {size_text(dense)}" if share else "removed"
    return f"{'█' * filled}{'░' * (BAR - filled)} {kept}"


_WAYS = {
    "finetune": "in one shot from the dense model",
    "gradual": "gradually: it was pruned from the next larger model of its family",
}


def _making(report: Report) -> str:
    versions = mapping(report.get("versions"))
    training = report.get("training")
    way = _WAYS.get(str(report.get("mode")), _WAYS["gradual"])
    if not training:
        how = "in one shot from the dense model, without training"
    elif training.get("checks") and training.get("best_step") == 0:
        how = f"{way}; fine-tuning did not improve it, and was undone"
    else:
        steps = training["steps"]
        how = f"{way}, and then fine-tuned for {steps:,} steps with the dense model as teacher"
    used = ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in versions.items())
    search = mapping(report.get("search"))
    tried = search.get("evaluations")
    return (
        f"## How it was made\n\nIt was made {how}. The sizes of its layers were chosen "
        f"{f'among {tried} candidates ' if finite([tried]) else ''}for its target in the environment above. "
        f"metrics.json has all figures.{f' Versions: {used}.' if used else ''}"
    )


def _limits(report: Report) -> str:
    limits = [
        "The speedup holds for the environment above. Measure others with `ziplm benchmark`.",
        "The metric was computed on the task's validation data. Quality on other data may fall more.",
        "Biases and errors of the dense model remain, and rare cases may suffer more than the mean shows.",
        "The licence of the dense model applies.",
    ]
    if report["target"].get("kind") == "recover":
        limits.insert(1, "The metric has chosen the model's speed, so it is slightly too good.")
    return "## Limits\n\n" + "\n".join(f"- {limit}" for limit in limits)


def _plain(text: Any) -> str:
    """Make text from a file safe in Markdown: no tags, links or table cells can come out of it."""
    kept = " ".join(str(text).split())
    return "".join(f"\\{letter}" if letter in "\\`*[]<>|#!" else letter for letter in kept)
