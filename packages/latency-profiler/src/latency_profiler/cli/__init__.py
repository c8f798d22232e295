"""The ``latency-profiler`` command, with one file per subcommand."""

from typing import Any

import click

from latency_profiler._errors import ProfilerError
from latency_profiler.cli.diff import diff
from latency_profiler.cli.plot import plot
from latency_profiler.cli.run import run
from latency_profiler.cli.show import show


class _Commands(click.Group):
    """Command group that shows errors of this package as one line and exits with their code."""

    def invoke(self, ctx: click.Context) -> Any:
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


for command in (run, show, plot, diff):
    main.add_command(command)
