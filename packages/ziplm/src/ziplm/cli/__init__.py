"""The command ``ziplm``: one file for each subcommand, and how errors reach the user."""

import difflib
import os
from importlib import import_module
from typing import Any

import click

from ziplm.errors import ZipLMError, one_line

COMMANDS = (
    "compress",
    "evaluate",
    "profile",
    "status",
    "plot",
    "benchmark",
    "inspect",
    "presets",
    "demo",
)
"""The subcommands in the order of the help page. Each is a file here, imported when it is needed."""


class Commands(click.Group):
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

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand."""
        try:
            _quiet_transformers()
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            _fail(ctx, "interrupted", 130)
        except ZipLMError as error:
            _fail(ctx, str(error), error.exit_code)
        except OSError as error:
            _fail(ctx, f"{one_line(error)}; check the path, the permissions and the space left", 1)
        except Exception as error:
            code = _profiler_exit_code(error)
            if code is not None:
                _fail(ctx, str(error), code)
            if os.environ.get("ZIPLM_DEBUG"):
                raise
            _fail(ctx, f"{type(error).__name__}: {one_line(error)}; set ZIPLM_DEBUG=1 to see where", 70)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand, or suggest one with a similar name."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = (
                f"did you mean {close[0]!r}?" if close else f"there are {', '.join(self.list_commands(ctx))}"
            )
            ctx.fail(f"no such command {args[0]!r}; {meant}")
        return super().resolve_command(ctx, args)


def _quiet_transformers() -> None:
    """Silence warnings and progress bars of transformers."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _profiler_exit_code(error: Exception) -> int | None:
    """Return the exit code of an error of latency-profiler; None for any other error."""
    from latency_profiler import ProfilerError

    return error.exit_code if isinstance(error, ProfilerError) else None


def _fail(ctx: click.Context, message: str, code: int) -> None:
    rank = os.environ.get("RANK", "0")
    place = f" in process {rank}" if rank != "0" else ""  # of a torchrun
    click.echo(f"Error{place}: {message}", err=True)
    ctx.exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ziplm")
def main() -> None:
    """Make a fine-tuned BERT or GPT2 faster by a stated factor on a stated machine."""
