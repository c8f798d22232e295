"""The command ``ziplm``: one file per subcommand, and how errors reach the user."""

import difflib
import os
from typing import Any

import click
from latency_profiler import ProfilerError
from transformers.utils import logging as transformers_logging

from ziplm.cli.benchmark import benchmark
from ziplm.cli.compress import compress
from ziplm.cli.demo import demo
from ziplm.cli.evaluate import evaluate
from ziplm.cli.inspect import inspect
from ziplm.cli.plot import plot
from ziplm.cli.presets import presets
from ziplm.cli.profile import profile
from ziplm.cli.status import status
from ziplm.errors import ZipLMError, one_line
from ziplm.workers import own_rank


class Commands(click.Group):
    """Whatever goes wrong is one line on stderr and a non-zero exit code; no traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand."""
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            self._fail(ctx, "interrupted", 130)
        except (ZipLMError, ProfilerError) as error:
            self._fail(ctx, str(error), error.exit_code)
        except OSError as error:
            self._fail(ctx, f"{one_line(error)}; check the path, the permissions and the space left", 1)
        except Exception as error:
            if os.environ.get("ZIPLM_DEBUG"):
                raise
            self._fail(ctx, f"{type(error).__name__}: {one_line(error)}; set ZIPLM_DEBUG=1 to see where", 70)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand, or say which one may have been meant."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = (
                f"did you mean {close[0]!r}?" if close else f"there are {', '.join(self.list_commands(ctx))}"
            )
            ctx.fail(f"no such command {args[0]!r}; {meant}")
        return super().resolve_command(ctx, args)

    @staticmethod
    def _fail(ctx: click.Context, message: str, code: int) -> None:
        place = f" in process {own_rank()}" if own_rank() else ""  # of a torchrun
        click.echo(f"Error{place}: {message}", err=True)
        ctx.exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="ziplm")
def main() -> None:
    """Make a fine-tuned BERT or GPT2 faster by a stated factor on a stated machine."""


for command in (compress, evaluate, profile, status, plot, benchmark, inspect, presets, demo):
    main.add_command(command)
