"""One run on integers that carry tags, and what each rank's memory held meanwhile.

The function needs no annotations. It runs unmodified on the simulated transport with alpha=1 and
beta=0, where the virtual time of a receive *is* the number of its step, and on integers that carry
tags. A tag has one 4-bit digit for each of DIGITS input elements and, above them, the number of
additions that went into it. Sums of tags add up digit by digit, so the digits of any number found
anywhere say which elements of which ranks were added, and how often; if a digit has overflowed,
the digits no longer add up to that number, and the cell is shown as unknown rather than wrong.
There are more elements than digits, so the same run is repeated with other elements tagged: it is
deterministic, and a collective's messages do not depend on the values it carries (checked).

What a rank holds is observed, not inferred: at each verb the recorder looks at the whole storage of
every tensor that this rank has sent or received so far or that the function's variables name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from minidist.launch import run
from minidist.mesh import Mesh, MeshError
from minidist.transports.simulated import Simulated

MAX_RANKS = 8
MAX_INPUTS = 4096  # world_size * numel; a picture of more could not be read
MAX_VERBS = 200  # of one rank in one run; a loop that never ends is cut off here
DIGITS = 12
BITS = 4  # per digit: an element may be counted up to 15 times


class TaggedRun:
    """One run in which input elements `first` to `first + DIGITS - 1` carry tags."""

    def __init__(
        self,
        fn: Callable[..., Any],
        world_size: int,
        numel: int,
        args: tuple[Any, ...],
        first: int,
        timeout: float,
    ):
        tags = [tag(number - first) for number in range(world_size * numel)]
        inputs = [
            torch.tensor(tags[rank * numel : (rank + 1) * numel], dtype=torch.int64)
            for rank in range(world_size)
        ]
        self.logs = [Log(tensor) for tensor in inputs]
        self.error: str | None = None

        def watched(mesh: Mesh, tensor: Tensor, *rest: Any) -> None:
            log = self.logs[mesh.rank]
            log.finish(fn(_WatchedMesh(mesh, log), tensor, *rest))

        clock = Simulated(alpha=1.0, beta=0.0)
        try:
            run(watched, world_size, *args, inputs=inputs, transport=clock, timeout=timeout)
        except MeshError as error:
            self.error = str(error)

    @property
    def pattern(self) -> Any:
        """What may not depend on the values: who sends how much from where to whom, and when."""
        return [[(s.dst, s.places, s.start) for s in log.sent] for log in self.logs]


def tag(digit: int) -> int:
    return (1 << BITS * digit) + (1 << BITS * DIGITS) if 0 <= digit < DIGITS else 0


def digits(number: Any) -> list[int] | None:
    """How often each of DIGITS tags was added up in `number`; None if it is no sum of tags."""
    if isinstance(number, float):
        if not number.is_integer():
            return None
        number = int(number)
    if number < 0:
        return None
    counts = [number >> BITS * digit & (1 << BITS) - 1 for digit in range(DIGITS)]
    return counts if sum(counts) == number >> BITS * DIGITS else None


@dataclass
class _Storage:
    """A piece of a rank's memory: its content at each look, from the first look on."""

    tensor: Tensor  # the whole storage, flat; holding it keeps its address from being reused
    first_look: int
    received: int | None = None  # number of the receive that brought it
    sent_from: bool = False
    looks: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Sent:
    dst: int
    storage: int
    places: list[int]  # in the storage
    content: list[Any]
    nbytes: int
    start: float


@dataclass(frozen=True)
class _Received:
    src: int
    storage: int
    end: float


class Log:
    """What one rank did and what its memory held, as seen from its verbs."""

    def __init__(self, tensor: Tensor):
        self.storages: list[_Storage] = []
        self.sent: list[_Sent] = []
        self.received: list[_Received] = []
        self.done: list[float] = []  # when each verb was done; after it comes look number + 1
        self.looks = 0
        self.result: list[Any] | None = None
        self.finished = False
        self.tensor = tensor
        self.initial = tensor.tolist()
        self.result_storages: set[int] = set()
        self.watch(tensor)

    def watch(self, tensor: Tensor) -> int:
        """The number of `tensor`'s storage; from now on it is looked at."""
        storage = tensor.untyped_storage()
        for number, known in enumerate(self.storages):
            if known.tensor.untyped_storage().data_ptr() == storage.data_ptr():
                return number
        size = storage.nbytes() // tensor.element_size()
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (size,), (1,))
        self.storages.append(_Storage(whole, self.looks))
        return len(self.storages) - 1

    def watch_variables(self, frame: FrameType | None) -> None:
        """Watch what the variables hold, from the function that called a verb up to the first."""
        while frame and frame.f_globals.get("__name__") != __name__:
            for value in frame.f_locals.values():
                items = value.values() if isinstance(value, dict) else value
                for item in items if isinstance(value, (list, tuple, dict)) else (value,):
                    if isinstance(item, Tensor) and item.numel() <= MAX_INPUTS:
                        self.watch(item)
            frame = frame.f_back

    def look(self) -> None:
        for storage in self.storages:
            content = storage.tensor.tolist()
            same = storage.looks and storage.looks[-1] == content
            storage.looks.append(storage.looks[-1] if same else content)
        self.looks += 1

    def before_send(self, dst: int, tensor: Tensor, now: float) -> None:
        number = self.watch(tensor)
        storage = self.storages[number]
        storage.sent_from = True
        places = torch.arange(len(storage.tensor))
        places = places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        self.sent.append(
            _Sent(
                dst,
                number,
                places.reshape(-1).tolist(),
                tensor.detach().reshape(-1).tolist(),
                tensor.numel() * tensor.element_size(),
                now,
            )
        )

    def after_recv(self, src: int, tensor: Tensor, now: float) -> None:
        number = self.watch(tensor)
        self.storages[number].received = len(self.received)
        self.received.append(_Received(src, number, now))

    def verb_done(self, now: float) -> None:
        self.done.append(now)

    def finish(self, result: Any) -> None:
        tensors = [result] if isinstance(result, Tensor) else result
        if isinstance(tensors, (list, tuple)) and all(isinstance(t, Tensor) for t in tensors):
            self.result = [v for t in tensors for v in t.detach().reshape(-1).tolist()]
            self.result_storages = {self.watch(t) for t in tensors}
        self.look()
        self.finished = True


class _WatchedMesh(Mesh):
    """A Mesh that writes a Log. It shares the state of the mesh it stands for."""

    def __init__(self, mesh: Mesh, log: Log):
        self.__dict__ = mesh.__dict__  # the simulator reads waits_for and events over there
        self.log = log

    def send(self, dst: int, tensor: Tensor) -> None:
        self._before(dst, tensor)
        super().send(dst, tensor)
        # A buffered send does not hold its rank up: it is over when it begins.
        self.log.verb_done(self.link.now())

    def recv(self, src: int, like: Tensor | None = None) -> Tensor:
        self._before()
        tensor = super().recv(src, like)
        self._after(src, tensor)
        return tensor

    def sendrecv(self, dst: int, tensor: Tensor, src: int, like: Tensor | None = None) -> Tensor:
        self._before(dst, tensor)
        received = super().sendrecv(dst, tensor, src, like)
        self._after(src, received)
        return received

    def _before(self, dst: int | None = None, tensor: Tensor | None = None) -> None:
        if self.step >= MAX_VERBS:
            raise RuntimeError(
                f"still sending and receiving after {MAX_VERBS} calls; does the loop end?"
            )
        if dst is not None and tensor is not None:
            self._check_peer("send to", dst)  # nothing is sent to a rank that is none
            self.log.before_send(dst, tensor, self.link.now())
        self.log.watch_variables(sys._getframe(2))
        self.log.look()

    def _after(self, src: int, tensor: Tensor) -> None:
        self.log.after_recv(src, tensor, self.link.now())
        self.log.verb_done(self.link.now())
