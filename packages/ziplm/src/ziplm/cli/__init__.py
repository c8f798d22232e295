"""The command ``ziplm``: one file for each subcommand, and how errors reach the user.

Nothing here imports torch or transformers, and subcommands import them inside their functions. Help pages,
completion and usage errors therefore appear at once.
"""

import difflib
import errno
import os
import sys
from importlib import import_module
from typing import Any

import rich_click as click
from click.exceptions import Exit
from rich.text import Text

from ziplm.errors import LONGEST, ZipLMError, one_line, shortened

COMMANDS = (
    "compress",
    "finetune",
    "evaluate",
    "profile",
    "status",
    "report",
    "compare",
    "plot",
    "push",
    "benchmark",
    "export",
    "inspect",
    "presets",
    "demo",
)
"""The subcommands in the order of the help page. Each is a file here, imported when it is needed."""

EXIT_CODES = Text("""Exit codes:
   0  done
   1  input or output failed: a full disk, an unreadable file, too little memory
   2  usage: options, data files, latency table
   3  model not supported
   4  bad checkpoint
   5  run folder is foreign, damaged, in use, or was made with other options, another model or other data
   6  target out of reach
   7  an engine or an optional package is missing
   8  a model computes values that are not finite, or a training diverges
  70  a bug in ziplm
 130  interrupted""")


class Commands(click.RichGroup):
    """A group that imports subcommands on demand, and turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; return None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"{__package__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line; usage errors are plain lines rather than boxes, as other programs expect."""
        run: Any = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            code = run(*args, standalone_mode=False, **extra)
        except click.ClickException as error:
            # click says before it which parameter it is about
            object.__setattr__(error, "message", shortened(error.message, LONGEST - 100))
            error.show()
            code = error.exit_code
        except click.Abort:
            click.echo("Error: interrupted", err=True)
            code = 130
        except BrokenPipeError:  # the reader, such as head, has seen enough
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # nothing more can be flushed
            code = 1
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand."""
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        try:
            return super().invoke(ctx)
        except (click.ClickException, Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            _fail(ctx, "interrupted; run the same command to resume", 130)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            _fail(ctx, f"{one_line(error)}; check the path, the permissions and the space left", 1)
        except Exception as error:
            code = _own_exit_code(error)
            if code is not None:
                _fail(ctx, str(error), code)
            if _is_about_memory(error):
                _fail(ctx, f"there is not enough memory: {one_line(error)}; use smaller batches", 1)
            if os.environ.get("ZIPLM_DEBUG"):
                raise
            _fail(ctx, f"{type(error).__name__}: {one_line(error)}; set ZIPLM_DEBUG=1 to see where", 70)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand, or suggest one with a similar name."""
        unknown = args[0] not in COMMANDS and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:  # completion of a command with a typo stays silent
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"no such command {args[0]!r}; {meant}")
        return super().resolve_command(ctx, args)


def _own_exit_code(error: Exception) -> int | None:
    """Return the exit code of an error of ziplm or latency-profiler; None for any other error."""
    from latency_profiler import ProfilerError

    return error.exit_code if isinstance(error, ZipLMError | ProfilerError) else None


def _is_about_memory(error: Exception) -> bool:
    """Return whether memory could not be allocated; torch has an error of its own only on GPUs."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


def _fail(ctx: click.Context, message: str, code: int) -> None:
    rank = os.environ.get("RANK", "0")
    place = f" in process {rank}" if len(rank) < 10 and rank.strip("0").isdigit() else ""  # of a torchrun
    click.echo(shortened(f"Error{place}: {message}", LONGEST), err=True)
    ctx.exit(code)


@click.group(
    cls=Commands,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="ziplm")
def main() -> None:
    """Make a fine-tuned transformer faster by a stated factor on a stated machine."""
