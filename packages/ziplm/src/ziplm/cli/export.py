"""``ziplm export``: a checkpoint as a file for an engine."""

import json
from pathlib import Path
from typing import Any, Literal

import rich_click as click
from rich.text import Text

from ziplm.cli.options import given, options

EXAMPLES = Text(
    """Examples:
  ziplm export runs/sst2/2x
  ziplm export runs/sst2 --quantize int8 --calibration-file train.tsv
  ziplm export models/gpt2 --format onnx -o exported/gpt2"""
)


@click.command(epilog=EXAMPLES)
@click.argument("checkpoint", metavar="CHECKPOINT|RUN")
@click.option(
    "--format",
    "chosen",
    type=click.Choice(["onnx", "openvino", "torch-export"]),
    default="onnx",
    show_default=True,
    help="Format of the file.",
)
@click.option("--quantize", type=click.Choice(["int8"]), help="Store and multiply weights as int8.")
@click.option(
    "-o",
    "--output",
    type=Path,
    metavar="FOLDER",
    help="Folder for the file, its config and its tokenizer. For a run, it gets a folder for each member.  "
    "[default: the checkpoint's own folder]",
)
@click.option(
    "--calibration-file",
    metavar="FILE",
    help="Texts to calibrate int8 with: a .txt file with one per line, or a table. OpenVINO needs them; "
    "for ONNX, they are used where that is more accurate.",
)
@options(("text_column",), panel="Options")
@click.option("--overwrite", is_flag=True, help="Replace files that exist and are different.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def export(
    context: click.Context,
    /,
    checkpoint: str,
    chosen: Literal["onnx", "openvino", "torch-export"],
    quantize: Literal["int8"] | None,
    output: Path | None,
    calibration_file: str | None,
    overwrite: bool,
    as_json: bool,
    **_: Any,
) -> None:
    """Export CHECKPOINT, or every member of RUN, as a file for ONNX Runtime, OpenVINO or torch.

    The file takes batches of any size and length, and needs neither ziplm nor transformers; ONNX and OpenVINO
    files need no torch. It is compared with its checkpoint, and kept only if both compute the same. Language
    models keep their cache, so that they can generate.
    """
    from ziplm.api import export as export_files
    from ziplm.runs.progress import Bars

    made = export_files(
        checkpoint,
        chosen,
        quantize=quantize,
        output=output,
        calibration_file=calibration_file,
        text_column=given(context).get("text_column", ()),
        overwrite=overwrite,
        progress=Bars(),
    )
    if as_json:
        click.echo(json.dumps([each.to_dict() for each in made], indent=1))
        return
    for each in made:
        kind = f", int8 with {each.scales} scales" if each.quantize else ""
        allowed = "" if each.quantize else f" ({each.difference.allowed:.1e} is allowed)"
        click.echo(f"{each.file}: {each.bytes / 1e6:,.1f} MB{kind}; {each.difference}{allowed}")
    if quantize is not None:
        _warn_without_int8()


def _warn_without_int8() -> None:
    from latency_profiler import has_int8_instructions

    if not has_int8_instructions():
        click.echo(
            "this CPU has no instructions for int8, such as VNNI: here, int8 may be slower than float32",
            err=True,
        )
