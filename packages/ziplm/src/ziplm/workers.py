"""Several processes on one run, started by torchrun; with one process, nothing here does anything.

All processes go through the same stages with the same values. Work is dealt out by number, results are put
together in that order, and what only the first process may do (measure, write, decide) it tells the others.
"""

import atexit
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from obs_structured import Moments
from torch import nn

from ziplm.errors import UsageError, ZipLMError, one_line

PATIENCE = timedelta(hours=2)  # for which a process waits for the others: the first one may evaluate for long
T = TypeVar("T")


@dataclass(frozen=True)
class _Call:
    place: int
    argument: Any


@dataclass(frozen=True)
class _Made:
    value: Any


@dataclass(frozen=True)
class _Failed:
    text: str


@dataclass(frozen=True)
class Workers:
    """The processes of a run, as one of them sees them. Each calls the same methods in the same order.

    Attributes:
        rank: which one this is; 0 is the first.
        world: how many there are.
    """

    rank: int = 0
    world: int = 1

    def owns(self, number: int) -> bool:
        """Whether the n-th of some items is this process's to do."""
        return number % self.world == self.rank

    def share(self, items: Iterable[T]) -> list[T]:
        """The items that are this process's to do."""
        return list(islice(items, self.rank, None, self.world))

    def joined(self, own: Sequence[T]) -> list[T]:
        """What all made of their shares, in the order of the items; the same in every process."""
        if self.world == 1:
            return list(own)
        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, list(own))
        return [part[n] for n in range(max(map(len, parts))) for part in parts if n < len(part)]

    def wait(self) -> None:
        """Until all are here."""
        self.joined([])

    def add_up(self, moments: Moments) -> None:
        """Moments of all processes, in each of them."""
        if self.world > 1:
            moments.all_reduce()

    @torch.no_grad()
    def spread_weights(self, model: nn.Module) -> None:
        """Give every process the parameters that the first one has."""
        if self.world > 1:
            for parameter in model.parameters():
                sent = parameter.detach().clone(memory_format=torch.contiguous_format)
                dist.broadcast(sent, 0)
                parameter.copy_(sent)

    def first(self, make: Callable[[], T]) -> T:
        """What the first process makes, while the others wait for it; `make` uses no other method here."""
        return self.led(make)

    def missing(self, path: Path) -> bool:
        """Whether a file is not there: as the first process sees it, which may be about to write it."""
        return self.first(lambda: not path.exists())

    def led(self, lead: Callable[..., T], *functions: Callable[[Any], Any]) -> T:
        """`lead(*functions)` in the first process alone, while all take part in its calls of the functions.

        Raises:
            ZipLMError: in the others, if the first one fails; there, the error is what it was.
        """
        if self.world == 1:
            return lead(*functions)
        return self._lead(lead, functions) if self.rank == 0 else self._follow(functions)

    def _lead(self, lead: Callable[..., T], functions: Sequence[Callable[[Any], Any]]) -> T:
        listening = True  # the others are, unless they are in the middle of a function

        def called_by_all(place: int) -> Callable[[Any], Any]:
            def call(argument: Any) -> Any:
                nonlocal listening
                self._tell(_Call(place, argument))
                listening = False
                made = functions[place](argument)
                listening = True
                return made

            return call

        try:
            made = lead(*map(called_by_all, range(len(functions))))
        except BaseException as error:
            if listening:
                with suppress(RuntimeError):  # that they are gone is not the news
                    self._tell(_Failed(one_line(error)))
            raise
        self._tell(_Made(made))
        return made

    def _follow(self, functions: Sequence[Callable[[Any], Any]]) -> Any:
        while True:
            told = self._tell(None)
            if isinstance(told, _Call):
                functions[told.place](told.argument)
            elif isinstance(told, _Failed):
                raise ZipLMError(f"the first process failed: {told.text}", "see there")
            else:
                return told.value

    @staticmethod
    def _tell(message: Any) -> Any:
        """Send something from the first process; what was sent, in all."""
        box = [message]
        dist.broadcast_object_list(box, 0)
        return box[0]


ALONE = Workers()


def own_rank() -> int:
    """Which of torchrun's processes this is, also before they have met; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def join(device: str) -> Workers:
    """Meet the other processes of this torchrun, if there are any.

    Each one takes a GPU of its own if the device is "cuda". Tensors on a GPU travel by NCCL, all else by
    Gloo: it waits without keeping a GPU busy that is being measured.

    Raises:
        UsageError: if the device is none that every process can have.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return ALONE
    if device not in ("cpu", "cuda"):
        raise UsageError(f"the device is {device} with {world} processes", "use cpu, or cuda for one each")
    if device == "cuda":
        place, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if place >= there:
            raise UsageError(f"process {place} finds {there} GPUs", f"start at most {there} on this machine")
        torch.cuda.set_device(place)  # "cuda" means this one from here on
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
        atexit.register(_leave)  # not earlier: processes cannot meet a second time
    return Workers(dist.get_rank(), dist.get_world_size())


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
