"""The ``latency-profiler`` command, with one file per subcommand."""

import os
from importlib import import_module
from typing import Any

import click

from latency_profiler._errors import ProfilerError, one_line, shortened

COMMANDS = ("run", "show", "plot", "diff")
"""Subcommands in the order of the help page. Each is a file of this folder, imported when it is needed."""


class _Commands(click.Group):
    """Command group that imports subcommands on demand.

    Errors of this package are shown as one line, and end the command with their exit code.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; return None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"{__name__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; no error ends in a traceback unless LATENCY_PROFILER_DEBUG is set."""
        try:
            return super().invoke(ctx)
        except ProfilerError as error:
            _fail(ctx, str(error), error.exit_code)
        except KeyboardInterrupt:
            _fail(ctx, "interrupted; nothing was saved", 130)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except OSError as error:
            _fail(ctx, f"{shortened(error)}; check the disk and the permissions", 1)
        except Exception as error:
            if os.environ.get("LATENCY_PROFILER_DEBUG"):
                raise
            text = shortened(one_line(error), 400)
            _fail(ctx, f"unexpected {text}; set LATENCY_PROFILER_DEBUG=1 to see where", 70)


def _fail(ctx: click.Context, message: str, code: int) -> None:
    click.echo(f"Error: {message}", err=True)
    ctx.exit(code)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="latency-profiler")
def main() -> None:
    """Measure the latency of PyTorch modules at every size and save it, with the environment, as a table."""
