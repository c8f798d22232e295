"""The processes of a torchrun that share a run; with a single process, nothing is divided or sent.

All processes execute the same stages with the same values. In `share` and `owns` each takes some of the work;
in `first` only the first process works (to measure, write or decide). They wait for each other in `gathered`,
`wait`, `add_up` and `spread_weights`, and at the end of `first` and `led`.
"""

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ziplm.errors import UsageError, ZipLMError, one_line

if TYPE_CHECKING:
    from obs_structured import Moments
    from torch import nn

PATIENCE = timedelta(hours=2)  # longest wait for another process; the first one may evaluate for long
T = TypeVar("T")


@dataclass(frozen=True)
class _Call:
    """A message of the first process: call this function together with me."""

    function_index: int
    argument: Any


@dataclass(frozen=True)
class _Made:
    """A message of the first process: I am done, and this is the result."""

    value: Any


@dataclass(frozen=True)
class _Failed:
    """A message of the first process: I failed, with this kind of error."""

    kind: type[ZipLMError]
    text: str


@dataclass
class _Solo:
    """Whether the first process is working alone right now."""

    active: bool = False


@dataclass(frozen=True)
class Workers:
    """The processes of a run as one of them sees them; each must call the same methods in the same order.

    Attributes:
        rank: number of this process; 0 is the first.
        world: number of processes.
    """

    rank: int = 0
    world: int = 1
    _solo: _Solo = field(default_factory=_Solo, repr=False, compare=False)

    def owns(self, number: int) -> bool:
        """Return whether this process handles the item with that number."""
        return number % self.world == self.rank

    def share(self, items: Iterable[T]) -> list[T]:
        """Return the items that this process handles."""
        return list(islice(items, self.rank, None, self.world))

    def gathered(self, own: Sequence[T]) -> list[T]:
        """Gather the results that all processes made from their shares, in the order of the items."""
        self._require_all("gathered")
        if self.world == 1:
            return list(own)
        import torch.distributed as dist

        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, list(own))
        return [part[n] for n in range(max(map(len, parts))) for part in parts if n < len(part)]

    def wait(self) -> None:
        """Wait until all processes are here."""
        self._require_all("wait")
        if self.world > 1:
            self.gathered([])

    def add_up(self, moments: "Moments") -> None:
        """Replace each process's moments by those over the data of all processes."""
        self._require_all("add_up")
        if self.world > 1:
            moments.all_reduce()

    def spread_weights(self, model: "nn.Module") -> None:
        """Copy the first process's parameters to the models of the others."""
        self._require_all("spread_weights")
        if self.world == 1:
            return
        import torch
        import torch.distributed as dist

        with torch.no_grad():
            for parameter in model.parameters():
                sent = parameter.detach().clone(memory_format=torch.contiguous_format)
                dist.broadcast(sent, 0)
                parameter.copy_(sent)

    def first(self, make: Callable[[], T]) -> T:
        """Call `make` in the first process only, and return its result in all of them.

        Raises:
            RuntimeError: if `make` calls a method at which all processes must meet. The others would never
                get there, so that this would otherwise hang.
            ZipLMError: in the other processes, if `make` fails in the first one. It is of the same class as
                the first one's if that is one of ours, so that all of them handle it alike.
        """
        return self.led(make)

    def missing(self, path: Path) -> bool:
        """Return whether a file does not exist, as seen by the first process (which may write it next)."""
        return self.first(lambda: not path.exists())

    def led(self, lead: Callable[..., T], *functions: Callable[[Any], Any]) -> T:
        """Call `lead(*functions)` in the first process only, and return its result in all of them.

        Whenever `lead` calls one of the functions, all processes call it with the same argument. The search
        uses this: one process searches, and all compute each loss together.

        Raises:
            RuntimeError: as for `first`; within the functions all processes may meet.
            ZipLMError: in the other processes, if the first one fails.
        """
        self._require_all("first or led")
        return self._lead(lead, functions) if self.rank == 0 else self._follow(functions)

    def _lead(self, lead: Callable[..., T], functions: Sequence[Callable[[Any], Any]]) -> T:
        listening = True  # the other processes wait for a message, unless they are inside a function

        def called_by_all(index: int) -> Callable[[Any], Any]:
            def call(argument: Any) -> Any:
                nonlocal listening
                self._tell(_Call(index, argument))
                listening = False
                with self._working_alone(False):
                    made = functions[index](argument)
                listening = True
                return made

            return call

        try:
            with self._working_alone(True):
                made = lead(*map(called_by_all, range(len(functions))))
        except BaseException as error:
            if listening:
                with suppress(RuntimeError):  # the error itself matters more than processes that are gone
                    kind = type(error) if isinstance(error, ZipLMError) else ZipLMError
                    self._tell(_Failed(kind, one_line(error)))
            raise
        self._tell(_Made(made))
        return made

    def _follow(self, functions: Sequence[Callable[[Any], Any]]) -> Any:
        while True:
            told = self._tell(None)
            if isinstance(told, _Call):
                functions[told.function_index](told.argument)
            elif isinstance(told, _Failed):
                raise told.kind(f"the first process failed: {told.text}", "see its error message")
            else:
                return told.value

    def _tell(self, message: Any) -> Any:
        """Send a message from the first process to all, and return it."""
        if self.world == 1:
            return message
        import torch.distributed as dist

        box = [message]
        dist.broadcast_object_list(box, 0)
        return box[0]

    @contextmanager
    def _working_alone(self, alone: bool) -> Iterator[None]:
        before, self._solo.active = self._solo.active, alone
        try:
            yield
        finally:
            self._solo.active = before

    def _require_all(self, method: str) -> None:
        """Raise at once where the first process would wait for others that never come."""
        if self._solo.active:
            raise RuntimeError(
                f"Workers.{method} was called by the first process alone, inside `first` or `led`; all "
                "processes must meet there, so call it outside"
            )


ALONE = Workers()


def own_rank() -> int:
    """Return the number of this process in its torchrun, even before the processes meet; 0 without one."""
    return _number_in("RANK", 0)


def _number_in(variable: str, default: int) -> int:
    """Return the number in an environment variable; raise UsageError if it is none."""
    text = os.environ.get(variable, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(
            f"the environment variable {variable} is {text!r}",
            "unset it, or start the processes with torchrun",
        )
    return int(text)


def join(device: str) -> Workers:
    """Meet the other processes of this torchrun, if there are any.

    With device "cuda", each process takes a GPU of its own. Tensors on a GPU travel by NCCL, everything else
    by Gloo, which waits without keeping a GPU busy that is being measured.

    Raises:
        UsageError: if not every process can have the device.
    """
    world = _number_in("WORLD_SIZE", 1)
    own_rank()
    if world == 1:
        return Workers()
    import torch
    import torch.distributed as dist

    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"the device is {device} with {world} processes",
            "use cpu, or cuda: each process then takes one GPU",
        )
    if device == "cuda":
        local_rank, gpus = _number_in("LOCAL_RANK", 0), torch.cuda.device_count()
        if local_rank >= gpus:
            raise UsageError(
                f"process {local_rank} finds {gpus} GPUs", f"start at most {gpus} on this machine"
            )
        torch.cuda.set_device(local_rank)  # from here on, "cuda" means this GPU
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
        atexit.register(_leave)  # at exit and not earlier, because processes cannot meet a second time
    return Workers(dist.get_rank(), dist.get_world_size())


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
