"""record(): run a collective for its picture: who contributed what to which cell, and when.

    recording = record(ring_allreduce, 4, 8)           # any fn(mesh, tensor, *args)
    message = recording.frames[2].messages[0]          # .src .dst .elements .cells .ranks .nbytes
    cell = recording.frames[2].buffers[rank][element]  # .ranks {0: 1, 3: 1} (rank: times), .value
    recording.frames[2].text, recording.error          # words; None, or who waits for whom
    recording.to_dict()                                # plain JSON, what the player draws
    first_divergence(recording, record(solution, 4, 8))  # None, or .frame .rank .text

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

import contextlib
import io
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from minidist.launch import run
from minidist.mesh import Mesh, MeshError
from minidist.transports.simulated import Simulated

OPS = ("allreduce", "broadcast", "allgather", "reduce_scatter")
MAX_RANKS = 8
MAX_INPUTS = 4096  # world_size * numel; a picture of more could not be read
MAX_VERBS = 200  # of one rank in one run; a loop that never ends is cut off here
DIGITS = 12
BITS = 4  # per digit: an element may be counted up to 15 times
SEED = 7


@dataclass(frozen=True)
class Cell:
    """What one number is made of.

    parts: (rank, element, times), sorted; () for padding or memory that nobody has filled; None if
    it is not a sum of inputs. value: the number itself, None if unknown.
    """

    parts: tuple[tuple[int, int, int], ...] | None
    value: int | None

    @property
    def ranks(self) -> dict[int, int]:
        """How often each rank has contributed; ranks that have not are left out."""
        counts: dict[int, int] = {}
        for rank, _, times in self.parts or ():
            counts[rank] = counts.get(rank, 0) + times
        return counts

    @property
    def element(self) -> int | None:
        """The one element that all contributions belong to; None if mixed, empty or unknown."""
        elements = {element for _, element, _ in self.parts or ()}
        return elements.pop() if len(elements) == 1 else None


EMPTY = Cell((), 0)


@dataclass(frozen=True)
class Message:
    """One message: `elements[i]` is the place in the buffer that `cells[i]` was sent from.

    elements: None for padding and for places that the buffer does not have.
    received: False if nobody ever took it in.
    """

    src: int
    dst: int
    elements: tuple[int | None, ...]
    cells: tuple[Cell, ...]
    nbytes: int
    received: bool = True

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose contributions travel in this message."""
        return tuple(sorted({rank for cell in self.cells for rank in cell.ranks}))

    @property
    def values(self) -> tuple[int | None, ...]:
        return tuple(cell.value for cell in self.cells)


@dataclass(frozen=True)
class Frame:
    """The run after `step` steps; frame 0 is the start, frame k shows what step k - 1 has done.

    messages: what travelled in this step. buffers[r][e]: rank r's cell for element e.
    sent[r]: bytes that rank r has sent so far. text: the step in a sentence.
    """

    step: int
    messages: tuple[Message, ...]
    buffers: tuple[tuple[Cell, ...], ...]
    sent: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Recording:
    """A recorded run, complete enough to be drawn without running anything again.

    layout: "ring" (every message goes to the same neighbour), "tree", "star" or "mesh".
    parents: for a tree, the parent of each rank (None at the root).
    inputs[r]: the numbers that rank r starts with. chunks: (start, stop) of element numbers, the
    finest partition that no message cuts. touched: ranks whose input tensor was changed.
    tensor_bytes: T, one rank's input. results[r]: the cells that rank r returned, None if it
    returned no tensor.
    """

    op: str
    world_size: int
    src: int | None
    layout: str
    parents: tuple[int | None, ...] | None
    inputs: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[int, int], ...]
    tensor_bytes: int
    frames: tuple[Frame, ...]
    results: tuple[tuple[Cell, ...] | None, ...]
    touched: tuple[int, ...]
    error: str | None

    @property
    def steps(self) -> int:
        """Steps from start to end: messages on the longest chain."""
        return len(self.frames) - 1

    @property
    def numel(self) -> int:
        """Elements of a rank's buffer (for allgather: of all ranks' inputs together)."""
        return len(self.frames[0].buffers[0])

    @property
    def bound(self) -> float | None:
        """Bytes a rank must send at least, on average over ranks; None for a broadcast."""
        others = self.world_size - 1
        parts = {"allreduce": 2 / self.world_size, "reduce_scatter": 1 / self.world_size}
        parts["allgather"] = 1.0
        return parts[self.op] * others * self.tensor_bytes if self.op in parts else None

    def expected(self, rank: int) -> tuple[Cell | None, ...]:
        """What rank's buffer should hold at the end; None where the operation does not say."""
        own = range(self.numel)
        if self.op == "reduce_scatter":
            part = self.numel // self.world_size
            own = range(rank * part, (rank + 1) * part)
        return tuple(self._goal(e) if e in own else None for e in range(self.numel))

    def _goal(self, element: int) -> Cell:
        if self.op == "broadcast":
            givers = [self.src or 0]
        elif self.op == "allgather":
            givers = [element // len(self.inputs[0])]
        else:
            givers = list(range(self.world_size))
        return _cell([(rank, element, 1) for rank in givers], self.inputs, self.op)

    def describe(self, message: Message, subject: str | None = None, verb: str = "sends") -> str:
        """'rank 1 sends chunk 0, the sum of ranks 0 and 1, to rank 2', in this one's chunks."""
        subject = subject or f"rank {message.src}"
        place = self._place(message.elements)
        filled = [cell for cell in message.cells if cell.parts != ()]
        if filled and all(c.element is not None and c.ranks == {message.src: 1} for c in filled):
            content = f"its {'own ' * (place != 'whole buffer')}{place}"
        else:
            content = f"{'the ' * (place == 'whole buffer')}{place}, {self.made_of(filled)},"
        return f"{subject} {verb} {content} to rank {message.dst}"

    def made_of(self, cells: Sequence[Cell]) -> str:
        """'the sum of ranks 0 and 1'."""
        return _made_of(cells, self.world_size)

    def _place(self, elements: Sequence[int | None]) -> str:
        inside = {e for e in elements if e is not None}
        if not inside:
            return "only padding"
        if len(inside) == self.numel:
            return "whole buffer"
        names = [
            number
            for number, (start, stop) in enumerate(self.chunks)
            if inside & set(range(start, stop))
        ]
        whole = all(e in inside for n in names for e in range(*self.chunks[n]))
        if not whole:
            return f"element{'s' if len(inside) > 1 else ''} {_and(sorted(inside))}"
        return f"chunk{'s' if len(names) > 1 else ''} {_and(names)}"

    def to_dict(self) -> dict[str, Any]:
        """As plain lists and numbers for JSON; each different cell is written once."""
        table: dict[Cell, int] = {}

        def number(cell: Cell) -> int:
            return table.setdefault(cell, len(table))

        frames = [
            {
                "messages": [
                    {
                        "src": m.src,
                        "dst": m.dst,
                        "elements": list(m.elements),
                        "cells": [number(c) for c in m.cells],
                        "nbytes": m.nbytes,
                        "received": m.received,
                    }
                    for m in frame.messages
                ],
                "buffers": [[number(c) for c in buffer] for buffer in frame.buffers],
                "sent": list(frame.sent),
                "text": frame.text,
            }
            for frame in self.frames
        ]
        goals = [
            [None if c is None else number(c) for c in self.expected(rank)]
            for rank in range(self.world_size)
        ]
        return {
            "op": self.op,
            "world_size": self.world_size,
            "src": self.src,
            "layout": self.layout,
            "parents": None if self.parents is None else list(self.parents),
            "inputs": [list(row) for row in self.inputs],
            "chunks": [list(chunk) for chunk in self.chunks],
            "tensor_bytes": self.tensor_bytes,
            "bound": self.bound,
            "goals": goals,
            "frames": frames,
            "error": self.error,
            "finished": self.error is None,
            "cells": [
                {"parts": None if c.parts is None else [list(p) for p in c.parts], "value": c.value}
                for c in table
            ],
        }


@dataclass(frozen=True)
class Divergence:
    """Where a recording first does something else than the reference, in a sentence."""

    frame: int
    rank: int
    text: str


def record(
    fn: Callable[..., Any],
    world_size: int,
    numel: int,
    *args: Any,
    op: str = "allreduce",
    timeout: float = 10.0,
) -> Recording:
    """Run `fn(mesh, tensor, *args)` on `world_size` simulated ranks and record it.

    tensor: 1-d int64 of `numel` elements, another on each rank. op: one of OPS, says what the
    elements are called: rank r's element i is number i, for "allgather" number r * numel + i. For
    "broadcast", args[0] is the rank that has the tensor (0 if there is none).

    A run that fails is recorded up to there; `error` says why. Raises ValueError for more than
    MAX_RANKS ranks or MAX_INPUTS inputs, an unknown op, or a function whose messages depend on the
    values that it is given.
    """
    if op not in OPS:
        raise ValueError(f"op is {op!r}; it is one of {', '.join(OPS)}")
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"world_size is {world_size}; a picture has room for 1 to {MAX_RANKS}")
    if not 1 <= numel <= MAX_INPUTS // world_size:
        raise ValueError(
            f"numel is {numel}; a picture has room for 1 to {MAX_INPUTS // world_size} elements "
            f"on each of {world_size} ranks"
        )
    runs = []
    for first in range(0, world_size * numel, DIGITS):
        # Only the first run may print: the reader's function ran once, as far as it can tell.
        quiet = contextlib.redirect_stdout(io.StringIO()) if runs else contextlib.nullcontext()
        with quiet:
            runs.append(_TaggedRun(fn, world_size, numel, args, first, timeout))
        if runs[-1].pattern != runs[0].pattern:
            raise ValueError(
                "this function sends other messages when it is given other values, so one picture "
                "of it cannot be drawn"
            )
    src = int(args[0]) if op == "broadcast" and args else 0 if op == "broadcast" else None
    return _Reading(runs, op, world_size, numel, src).recording()


def first_divergence(recording: Recording, reference: Recording) -> Divergence | None:
    """The first step at which the messages, or after which the buffers, are not the reference's.

    None if there is no such step and both end the same way.
    """
    for number in range(max(len(recording.frames), len(reference.frames))):
        if number >= len(recording.frames):
            wanted = reference.frames[number].messages[0]
            return Divergence(
                number - 1, wanted.src, _stopped(recording, reference, number, wanted)
            )
        if number >= len(reference.frames):
            extra = recording.frames[number].messages[0]
            return Divergence(
                number,
                extra.src,
                f"Everything should be done after step {number - 2}, but in step {number - 1} "
                f"{recording.describe(extra)}.",
            )
        difference = _difference(recording, reference, number)
        if difference:
            return Divergence(number, *difference)
    if recording.error and not reference.error:
        return Divergence(recording.steps, 0, recording.error)
    return None


def _difference(recording: Recording, reference: Recording, number: int) -> tuple[int, str] | None:
    """(rank, sentence) for what differs in step `number` or in what is returned after it."""
    ours, theirs = recording.frames[number], reference.frames[number]
    for rank in range(reference.world_size):
        is_ = [m for m in ours.messages if m.src == rank]
        should = [m for m in theirs.messages if m.src == rank]
        for got, wanted in zip(is_, should, strict=False):
            if _matter(got) != _matter(wanted):
                return rank, (
                    f"In step {number - 1}, {reference.describe(wanted, verb='should send')}; "
                    f"instead {reference.describe(got, subject='it')}."
                )
        if len(is_) > len(should):
            extra = reference.describe(is_[len(should)], subject="it")
            more = "anything more" if should else "anything"
            return (
                rank,
                f"In step {number - 1}, rank {rank} should not send {more}; instead {extra}.",
            )
        if len(should) > len(is_):
            return rank, _stopped(recording, reference, number, should[len(is_)])
        lost = next((m for m in is_ if not m.received), None)
        if lost and all(m.received for m in should) and not recording.error:
            return rank, (
                f"In step {number - 1}, {recording.describe(lost)}, but rank {lost.dst} never "
                "receives it."
            )
    if number == recording.steps == reference.steps and not recording.error:
        return _wrong_result(recording, reference)
    return None


def _stopped(recording: Recording, reference: Recording, number: int, missing: Message) -> str:
    """The sentence for a message that is not sent; if the run has failed, with the reason."""
    what = f"In step {number - 1}, {reference.describe(missing, verb='should send')}"
    if recording.error:
        return f"{what}, but the run stops before that: {recording.error}"
    return f"{what}; instead it sends nothing."


def _matter(message: Message) -> tuple[Any, ...]:
    """A message without its padding and without who padded how much."""
    pairs = zip(message.elements, message.cells, strict=True)
    return message.dst, [(e, c.parts) for e, c in pairs if e is not None or c.parts != ()]


def _wrong_result(recording: Recording, reference: Recording) -> tuple[int, str] | None:
    for rank in range(reference.world_size):
        got, wanted = recording.results[rank], reference.results[rank]
        if got is None and wanted is not None:
            return rank, f"Rank {rank} returns no tensor."
        if got is None or wanted is None or got == wanted:
            continue
        if len(got) != len(wanted):
            return rank, f"Rank {rank} returns {len(got)} numbers instead of {len(wanted)}."
        at = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
        return rank, (
            f"At the end, number {at} of what rank {rank} returns should be "
            f"{wanted[at].value}, {reference.made_of([wanted[at]])}, but is "
            f"{got[at].value}, {reference.made_of([got[at]])}."
        )
    return None


def _and(names: Sequence[Any]) -> str:
    *rest, last = map(str, names)
    return f"{', '.join(rest)} and {last}" if rest else last


# --- the run -------------------------------------------------------------------------------------


class _TaggedRun:
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
        tags = [_tag(number - first) for number in range(world_size * numel)]
        inputs = [
            torch.tensor(tags[rank * numel : (rank + 1) * numel], dtype=torch.int64)
            for rank in range(world_size)
        ]
        self.logs = [_Log(tensor) for tensor in inputs]
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


def _tag(digit: int) -> int:
    return (1 << BITS * digit) + (1 << BITS * DIGITS) if 0 <= digit < DIGITS else 0


def _digits(number: Any) -> list[int] | None:
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


class _Log:
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
    """A Mesh that writes a _Log. It shares the state of the mesh it stands for."""

    def __init__(self, mesh: Mesh, log: _Log):
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


# --- from runs to pictures -----------------------------------------------------------------------


@lru_cache
def _inputs(world_size: int, numel: int) -> tuple[tuple[int, ...], ...]:
    """The numbers that are shown: 1 to 9, all ranks different at each element."""
    dice = random.Random(SEED)
    columns = [dice.sample(range(1, 10), world_size) for _ in range(numel)]
    return tuple(tuple(column[rank] for column in columns) for rank in range(world_size))


def _cell(
    parts: Sequence[tuple[int, int, int]], inputs: tuple[tuple[int, ...], ...], op: str
) -> Cell:
    numel = len(inputs[0])
    value = 0
    for rank, element, times in parts:
        value += times * inputs[rank][element % numel if op == "allgather" else element]
    return Cell(tuple(sorted(parts)), value)


class _Reading:
    """The runs put together: tags decoded, memory turned into logical buffers, time into frames."""

    def __init__(
        self, runs: list[_TaggedRun], op: str, world_size: int, numel: int, src: int | None
    ):
        self.op, self.world_size, self.numel, self.src = op, world_size, numel, src
        self.total = world_size * numel if op == "allgather" else numel
        self.inputs = _inputs(world_size, numel)
        self.runs = runs
        self.logs = runs[0].logs
        self.known: dict[tuple[Any, ...], Cell] = {}
        self.homes: dict[tuple[int, int], list[int | None]] = {}
        self._pair_messages()

    def recording(self) -> Recording:
        error = self.runs[0].error
        messages = self._messages()
        steps = max(messages, default=0)
        states = [self._states(rank) for rank in range(self.world_size)]
        buffers = [tuple(self._start(rank) for rank in range(self.world_size))]
        for step in range(1, steps + 1):
            buffers.append(tuple(self._at(step, r, states[r]) for r in range(self.world_size)))
        if steps == 0 and not error:
            buffers[0] = tuple(state[-1] for state in states)
        chunks = self._chunks([m for ms in messages.values() for m in ms])
        layout, parents = _layout(self.world_size, self._links())
        draft = Recording(
            op=self.op,
            world_size=self.world_size,
            src=self.src,
            layout=layout,
            parents=parents,
            inputs=self.inputs,
            chunks=chunks,
            tensor_bytes=self.numel * torch.int64.itemsize,
            frames=(),
            results=tuple(self._result(rank) for rank in range(self.world_size)),
            touched=tuple(r for r in range(self.world_size) if self._was_touched(r)),
            error=error,
        )
        frames, sent = [], [0] * self.world_size
        for step in range(steps + 1):
            for message in messages.get(step, []):
                sent[message.src] += message.nbytes
            frames.append(
                Frame(step, tuple(messages.get(step, [])), buffers[step], tuple(sent), "")
            )
        draft = replace(draft, frames=tuple(frames))
        return replace(
            draft, frames=tuple(replace(f, text=_sentence(draft, f.step)) for f in frames)
        )

    # messages

    def _pair_messages(self) -> None:
        """First in, first out between each pair: which receive took which send."""
        self.taken_by: dict[tuple[int, int], int] = {}  # (rank, its send) -> the receive over there
        self.came_from: dict[tuple[int, int], tuple[int, int]] = {}  # the other way round
        lines = defaultdict(list)
        for rank, log in enumerate(self.logs):
            for number, sent in enumerate(log.sent):
                lines[rank, sent.dst].append((rank, number))
        for rank, log in enumerate(self.logs):
            for number, received in enumerate(log.received):
                origin = lines[received.src, rank].pop(0)
                self.taken_by[origin] = number
                self.came_from[rank, number] = origin

    def _messages(self) -> dict[int, list[Message]]:
        """By step. A message belongs to the step in which its receiver takes it in."""
        by_step = defaultdict(list)
        for rank, log in enumerate(self.logs):
            for number, sent in enumerate(log.sent):
                cells = self._decoded(rank, lambda log, n=number: log.sent[n].content)
                homes = self._homes(rank, sent.storage)
                elements = [
                    cell.element if homes[place] is None else homes[place]
                    for place, cell in zip(sent.places, cells, strict=True)
                ]
                taken = self.taken_by.get((rank, number))
                received = None if taken is None else self.logs[sent.dst].received[taken]
                end = received.end if received else sent.start + 1
                by_step[round(end)].append(
                    Message(
                        rank,
                        sent.dst,
                        tuple(elements),
                        tuple(cells),
                        sent.nbytes,
                        taken is not None,
                    )
                )
        return dict(by_step)

    def _links(self) -> set[tuple[int, int]]:
        return {(rank, sent.dst) for rank, log in enumerate(self.logs) for sent in log.sent}

    def _chunks(self, messages: list[Message]) -> tuple[tuple[int, int], ...]:
        cuts = {0, self.total}
        parts = {"allgather": self.numel, "reduce_scatter": self.total // self.world_size}
        if parts.get(self.op):
            cuts.update(range(0, self.total, parts[self.op]))
        for message in messages:
            inside = {e for e in message.elements if e is not None}
            cuts.update(e for e in range(1, self.total) if (e in inside) != (e - 1 in inside))
        edges = sorted(cuts)
        return tuple(pairwise(edges))

    # memory

    def _decoded(self, rank: int, content: Callable[[_Log], list[Any]]) -> list[Cell]:
        """The cells of a piece of memory, of which each run has seen other digits."""
        try:
            seen = [content(tagged.logs[rank]) for tagged in self.runs]
            return [self._decode(numbers) for numbers in zip(*seen, strict=True)]
        except (IndexError, ValueError):  # this memory was not the same thing in all runs
            return [Cell(None, None)] * len(content(self.logs[rank]))

    def _decode(self, numbers: tuple[Any, ...]) -> Cell:
        if numbers not in self.known:
            self.known[numbers] = self._decode_new(numbers)
        return self.known[numbers]

    def _decode_new(self, numbers: tuple[Any, ...]) -> Cell:
        parts = []
        for run_number, number in enumerate(numbers):
            counts = _digits(number)
            if counts is None:
                return Cell(None, None)
            for digit, times in enumerate(counts):
                if times:
                    rank, i = divmod(run_number * DIGITS + digit, self.numel)
                    parts.append((rank, self._element(rank, i), times))
        return _cell(parts, self.inputs, self.op)

    def _element(self, rank: int, i: int) -> int:
        """The number that element i of rank's input goes by."""
        return rank * self.numel + i if self.op == "allgather" else i

    def _look(self, rank: int, storage: int, look: int) -> list[Cell]:
        first = self.logs[rank].storages[storage].first_look
        return self._decoded(rank, lambda log: log.storages[storage].looks[look - first])

    def _differs(self, rank: int, storage: int, look: int) -> bool:
        """Whether any run saw something else in this storage than at the look before."""
        for tagged in self.runs:
            seen = tagged.logs[rank].storages[storage : storage + 1]
            at = look - seen[0].first_look if seen else 0
            if (
                at == 0
                or at >= len(seen[0].looks)
                or seen[0].looks[at] is not seen[0].looks[at - 1]
            ):
                return True
        return False

    def _homes(self, rank: int, number: int) -> list[int | None]:
        """Which element's place each place of a storage is: kept even if a wrong one gets there."""
        key = (rank, number)
        if key not in self.homes:
            self.homes[key] = self._find_homes(rank, number)
        return self.homes[key]

    def _find_homes(self, rank: int, number: int) -> list[int | None]:
        storage = self.logs[rank].storages[number]
        size = len(storage.tensor)
        if number == 0:  # the input
            return [self._element(rank, i) for i in range(size)]
        if storage.received is not None:
            # What comes belongs where it was sent from.
            origin_rank, origin = self.came_from[rank, storage.received]
            sent = self.logs[origin_rank].sent[origin]
            there = self._homes(origin_rank, sent.storage)
            cells = self._decoded(origin_rank, lambda log: log.sent[origin].content)
            return [
                cell.element if there[place] is None else there[place]
                for place, cell in zip(sent.places, cells, strict=True)
            ]
        homes: list[int | None] = [None] * size
        for look in range(storage.first_look, storage.first_look + len(storage.looks)):
            cells = self._look(rank, number, look)
            shifts = {p - cell.element for p, cell in enumerate(cells) if cell.element is not None}
            if len(shifts) == 1 and not any(homes):
                # In order, so the places that are still empty are known too.
                shift = shifts.pop()
                return [p - shift if 0 <= p - shift < self.total else None for p in range(size)]
            for place, cell in enumerate(cells):
                if homes[place] is None:
                    homes[place] = self._home_by_content(rank, cell)
        return homes

    @staticmethod
    def _home_by_content(rank: int, cell: Cell) -> int | None:
        if cell.element is not None:
            return cell.element
        own = [element for giver, element, _ in cell.parts or () if giver == rank]
        return own[0] if len(own) == 1 else None

    def _start(self, rank: int) -> tuple[Cell, ...]:
        buffer = [EMPTY] * self.total
        for i in range(self.numel):
            element = self._element(rank, i)
            buffer[element] = _cell([(rank, element, 1)], self.inputs, self.op)
        return tuple(buffer)

    def _states(self, rank: int) -> list[tuple[Cell, ...]]:
        """The logical buffer at each look.

        Several pieces of memory may hold the same element (the input, a working copy, what was
        just received): the one whose content is newest counts. A received tensor counts only if it
        is sent on or returned; else it was a temporary, and shows only where nothing else is.
        """
        log = self.logs[rank]
        start = self._start(rank)
        content: dict[int, list[Cell]] = {}
        newest: dict[int, tuple[Any, Cell]] = {}
        states = []
        for look in range(log.looks):
            for number, storage in enumerate(log.storages):
                if look < storage.first_look or not self._differs(rank, number, look):
                    continue
                cells = self._look(rank, number, look)
                homes = self._homes(rank, number)
                age = (look, 1)  # a change comes after a receive
                if number in content:
                    before = content[number]
                elif number == 0:
                    before = [start[e] for e in homes if e is not None]
                    newest = {e: ((True, (-1, 0), 0), start[e]) for e in homes if e is not None}
                else:
                    before = [EMPTY] * len(cells)
                    age = (look, 0 if storage.received is not None else 1)
                content[number] = cells
                kept = (
                    storage.received is None or storage.sent_from or number in log.result_storages
                )
                for element, was, cell in zip(homes, before, cells, strict=True):
                    rating = (kept, age, number)
                    if element is None or cell == was:
                        continue
                    if element not in newest or newest[element][0] < rating:
                        newest[element] = (rating, cell)
            states.append(tuple(newest[e][1] if e in newest else EMPTY for e in range(self.total)))
        result = self._result(rank)
        if log.finished and result is not None:
            part = self.total // self.world_size
            first, size = (rank * part, part) if self.op == "reduce_scatter" else (0, self.total)
            if len(result) == size:
                last = list(states[-1])
                last[first : first + size] = result
                states[-1] = tuple(last)
        return states or [start]

    def _at(self, step: int, rank: int, states: list[tuple[Cell, ...]]) -> tuple[Cell, ...]:
        """Rank's buffer after `step`: what it saw at the first look after the step's last verb."""
        verbs = sum(end <= step for end in self.logs[rank].done)
        return states[min(verbs, len(states) - 1)]

    def _result(self, rank: int) -> tuple[Cell, ...] | None:
        if self.logs[rank].result is None:
            return None
        return tuple(self._decoded(rank, lambda log: log.result or []))

    def _was_touched(self, rank: int) -> bool:
        return any(log.tensor.tolist() != log.initial for log in (t.logs[rank] for t in self.runs))


def _layout(
    world_size: int, links: set[tuple[int, int]]
) -> tuple[str, tuple[int | None, ...] | None]:
    """How to place the ranks, and for a tree each rank's parent."""
    ranks = range(world_size)
    one_way = all((dst, src) not in links for src, dst in links)
    targets = {dst for _, dst in links}
    for direction in (1, -1):
        if all((dst - src - direction) % world_size == 0 for src, dst in links):
            return "ring", None
    if one_way and world_size > 1 and len(links) == world_size - 1 == len(targets):
        parents = {dst: src for src, dst in links}
        return "tree", tuple(parents.get(rank) for rank in ranks)
    pairs = {frozenset(link) for link in links}
    if any(all(hub in pair for pair in pairs) for hub in ranks):
        return "star", None
    root = min(ranks)
    if len(pairs) == world_size - 1:
        parent: dict[int, int | None] = {root: None}
        queue = [root]
        for rank in queue:
            near = sorted(r for pair in pairs if rank in pair for r in pair if r not in parent)
            parent.update(dict.fromkeys(near, rank))
            queue.extend(near)
        if len(parent) == world_size:
            return "tree", tuple(parent[rank] for rank in ranks)
    return "mesh", None


# --- words ---------------------------------------------------------------------------------------


def _sentence(recording: Recording, step: int) -> str:
    """The step in words: one message in full, the one with chunk 0 if there is one."""
    frame, size = recording.frames[step], recording.world_size
    if step == 0:
        return _start_sentence(recording)
    head = f"Step {step - 1}: "  # counted from 0, as in the code and in every error
    if not frame.messages:
        return head + "nothing arrives."
    lead = next((m for m in frame.messages if 0 in m.elements), frame.messages[0])
    text = head + recording.describe(lead)
    if lead.received:
        before = recording.frames[step - 1].buffers[lead.dst]
        text += _effect(lead, before, frame.buffers[lead.dst], size)
    else:
        stopped = "had not received it when the run stopped"
        text += f", but rank {lead.dst} {stopped if recording.error else 'never receives it'}"
    others = len(frame.messages) - 1
    if others == 1:
        other = next(m for m in frame.messages if m is not lead)
        text += f". At the same time {recording.describe(other)}"
    elif others:
        everyone = len({m.src for m in frame.messages}) == len(frame.messages) == size
        rest = (
            f"the other {others} ranks send theirs"
            if everyone
            else f"{others} other messages travel"
        )
        text += f". At the same time {rest}"
    return text + "."


def _start_sentence(recording: Recording) -> str:
    if recording.op == "broadcast":
        return f"Start: rank {recording.src} has the tensor that every rank is to get."
    if recording.op == "allgather":
        return "Start: each rank has its own piece, and no other."
    if recording.world_size == 1:
        return "One rank alone: nothing to send."
    return "Start: each rank has its own numbers in every chunk."


def _effect(
    message: Message, before: tuple[Cell, ...], after: tuple[Cell, ...], world_size: int
) -> str:
    places = [(e, c) for e, c in zip(message.elements, message.cells, strict=True) if c.parts]
    if not places or any(e is None for e, _ in places):
        return ""
    if all(after[e] == cell for e, cell in places):
        return ", which keeps it"
    had = before[places[0][0]]
    if all(after[e].ranks == _added(cell.ranks, before[e].ranks) for e, cell in places):
        own = had.ranks == {message.dst: 1}
        return f", which adds {'its own' if own else 'it to ' + _made_of([had], world_size)}"
    if any(after[e] != before[e] for e, _ in places):
        now = [after[e] for e, _ in places]
        return f", which then holds {_made_of(now, world_size)}"
    inside = {e for e, _ in places}
    elsewhere = [e for e, cell in enumerate(after) if cell != before[e] and e not in inside]
    if elsewhere and all(after[e].element is None for e in elsewhere):
        return ", which adds it in another place"
    return ", whose buffer stays as it was there"


def _added(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    return {rank: a.get(rank, 0) + b.get(rank, 0) for rank in a.keys() | b.keys()}


def _made_of(cells: Sequence[Cell], world_size: int) -> str:
    """'the sum of ranks 0 and 1', in words, for cells that go together."""
    known = [cell for cell in cells if cell.parts != ()]
    if not known:
        return "only zeros"
    if any(cell.parts is None for cell in known):
        return "numbers that are no sum of inputs"
    if any(cell.element is None for cell in known):
        return "a mix of different elements"
    counts = known[0].ranks
    if any(cell.ranks != counts for cell in known):
        return "different sums in different places"
    names = [f"{rank}{_times(times)}" for rank, times in sorted(counts.items())]
    if len(names) == 1:
        return f"from rank {names[0]}"
    if len(names) == world_size and set(counts.values()) == {1}:
        return f"the sum of all {world_size} ranks" if world_size > 2 else "the sum of both ranks"
    return f"the sum of ranks {_and(names)}"


def _times(times: int) -> str:
    return "" if times == 1 else " (twice)" if times == 2 else f" ({times} times)"
