"""The ``latency-profiler`` command, with one file per subcommand."""

from importlib import import_module
from typing import Any

import click

from latency_profiler._errors import ProfilerError

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
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except ProfilerError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="latency-profiler")
def main() -> None:
    """Measure the latency of PyTorch modules at every size and save it, with the environment, as a table."""
