"""What a recording is: cells, messages, frames; plain values that can be drawn without a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
        return cell_of([(rank, element, 1) for rank in givers], self.inputs, self.op)

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
        return made_of(cells, self.world_size)

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
            return f"element{'s' if len(inside) > 1 else ''} {listed(sorted(inside))}"
        return f"chunk{'s' if len(names) > 1 else ''} {listed(names)}"

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


def cell_of(
    parts: Sequence[tuple[int, int, int]], inputs: tuple[tuple[int, ...], ...], op: str
) -> Cell:
    numel = len(inputs[0])
    value = 0
    for rank, element, times in parts:
        value += times * inputs[rank][element % numel if op == "allgather" else element]
    return Cell(tuple(sorted(parts)), value)


def made_of(cells: Sequence[Cell], world_size: int) -> str:
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
    return f"the sum of ranks {listed(names)}"


def _times(times: int) -> str:
    return "" if times == 1 else " (twice)" if times == 2 else f" ({times} times)"


def listed(names: Sequence[Any]) -> str:
    *rest, last = map(str, names)
    return f"{', '.join(rest)} and {last}" if rest else last
