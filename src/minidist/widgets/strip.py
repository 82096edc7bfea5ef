"""The strip: a recorded run on paper, one panel per step."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from minidist.palette import LIGHT, PALETTE_LIGHT
from minidist.provenance import Cell, Message, Recording

WIDTH = 6.8  # inches, as wide as the page
LABELS = 0.55  # room for "rank 0" at the left of a line
TITLE = 0.34
ASIDE = 0.2  # room at the left of a panel for messages that do not go to the next row


def strip(recording: Recording) -> Figure:
    """A panel for the start and one after each step; ranks are rows, chunks are columns.

    A cell is tinted in its chunk's colour and has a slot for each rank, filled when that rank's
    contribution is in; a complete cell is solid. What arrived in a step has a dark frame and an
    arrow from where it came. Drawn in the light palette, which the book turns dark by itself.
    """
    return _Strip(recording).figure


class _Strip:
    """Everything in inches, y upwards."""

    def __init__(self, recording: Recording):
        self.recording = recording
        ranks, elements = recording.world_size, recording.numel
        chunks = len(recording.chunks)
        self.gap = 0.03  # between chunks
        self.aside = ASIDE if recording.layout in ("tree", "star", "mesh") else 0.04
        most = max(1, min(len(recording.frames), int((WIDTH - LABELS) // (0.19 * elements + 0.4))))
        lines = -(-len(recording.frames) // most)
        per_line = -(-len(recording.frames) // lines)  # no short last line if it can be helped
        room = (WIDTH - LABELS) / per_line - self.aside - 0.14 - self.gap * (chunks - 1)
        self.cell = min(0.36, max(0.12, room / elements))
        self.high = min(0.36, max(0.28, self.cell * 1.1))
        self.row = self.high + 0.13
        self.panel = elements * self.cell + self.gap * (chunks - 1) + self.aside + 0.14
        line = ranks * self.row + TITLE + 0.12
        used = LABELS + per_line * self.panel
        self.figure = Figure(figsize=(used, lines * line), facecolor=LIGHT["paper"], layout="none")
        axes = self.figure.add_axes((0, 0, 1, 1), facecolor="none")
        axes.set(xlim=(0, used), ylim=(-lines * line, 0), aspect="equal")
        axes.set_axis_off()
        for number in range(len(recording.frames)):
            column, at_line = number % per_line, number // per_line
            x = LABELS + column * self.panel + self.aside
            self._panel(axes, number, x, -at_line * line - TITLE, first=column == 0)

    def _panel(self, axes: Axes, number: int, x: float, y: float, first: bool) -> None:
        recording = self.recording
        frame = recording.frames[number]
        title = f"step {number - 1}" if number else "start"
        axes.text(x, y + 0.13, title, fontsize=9, fontweight="bold", color=LIGHT["ink"])
        arrived = {
            (m.dst, e) for m in frame.messages if m.received for e in m.elements if e is not None
        }
        for rank in range(recording.world_size):
            top = y - rank * self.row
            if first:
                axes.text(
                    x - self.aside - 0.04,
                    top - self.high / 2,
                    f"rank {rank}",
                    fontsize=8.5,
                    ha="right",
                    va="center",
                    color=LIGHT["ink"],
                )
            self._buffer(axes, number, rank, x, top, arrived)
        for message in frame.messages:
            self._arrow(axes, message, x, y)

    def _left(self, element: int) -> float:
        return element * self.cell + self._chunk(element) * self.gap

    def _chunk(self, element: int) -> int:
        chunks = self.recording.chunks
        return next(k for k, (start, stop) in enumerate(chunks) if start <= element < stop)

    def _buffer(
        self,
        axes: Axes,
        number: int,
        rank: int,
        x: float,
        top: float,
        arrived: set[tuple[int, int]],
    ) -> None:
        buffer = self.recording.frames[number].buffers[rank]
        goals = self.recording.expected(rank)

        def looks(element: int) -> object:
            cell = buffer[element]
            done = cell == goals[element]
            return self._chunk(element), cell.parts and sorted(cell.ranks.items()), done

        for _, group in groupby(range(len(buffer)), looks):
            elements = list(group)
            left = x + self._left(elements[0])
            width = x + self._left(elements[-1]) + self.cell - left
            cells = [buffer[e] for e in elements]
            done = cells[0] == goals[elements[0]]
            new = any((rank, e) in arrived for e in elements)
            self._box(axes, cells, done, new, left, top, width)

    def _box(
        self,
        axes: Axes,
        cells: list[Cell],
        done: bool,
        new: bool,
        left: float,
        top: float,
        width: float,
    ) -> None:
        first = cells[0]
        empty = first.parts == ()
        colour = LIGHT["muted"]
        if first.element is not None:
            colour = PALETTE_LIGHT[self._chunk(first.element) % 8]
        box = FancyBboxPatch(
            (left + 0.015, top - self.high + 0.015),
            width - 0.03,
            self.high - 0.03,
            boxstyle="round,pad=0,rounding_size=0.04",
            facecolor="none" if empty else (colour, 1.0 if done else 0.18),
            edgecolor=LIGHT["ink"] if new else LIGHT["line"] if empty else colour,
            linewidth=1.3 if new else 0.6,
            linestyle="--" if empty and not new else "-",
        )
        axes.add_patch(box)
        if empty:
            return
        gauge = 0.0 if done or first.parts is None else 0.3 * self.high
        if gauge:
            self._slots(axes, first, left, top, width, gauge)
        size = min(10.0, 72 * self.cell * 0.5)
        for i, cell in enumerate(cells):
            axes.text(
                left + (i + 0.5) * width / len(cells),
                top - (self.high - gauge) / 2 - 0.01,
                "?" if cell.value is None else str(cell.value),
                fontsize=size,
                fontweight="bold" if done else "normal",
                ha="center",
                va="center",
                color=LIGHT["paper"] if done else LIGHT["ink"],
            )

    def _slots(
        self, axes: Axes, cell: Cell, left: float, top: float, width: float, gauge: float
    ) -> None:
        size = self.recording.world_size
        room = min(width - 0.08, 0.1 * size)
        start = left + (width - room) / 2
        element_of = {rank: element for rank, element, _ in cell.parts or ()}
        slots = defaultdict(list)  # one shape per colour keeps the file small
        for rank in range(size):
            times = cell.ranks.get(rank, 0)
            colour = LIGHT["paper"]
            if times:
                colour = PALETTE_LIGHT[self._chunk(element_of[rank]) % 8]
            slots[colour if times < 2 else LIGHT["bad"]].append(
                Path.unit_rectangle().transformed(
                    Affine2D()
                    .scale(0.8 * room / size, gauge - 0.03)
                    .translate(start + (rank + 0.1) * room / size, top - self.high + 0.035)
                )
            )
        for colour, shapes in slots.items():
            shape = Path.make_compound_path(*shapes)
            axes.add_patch(PathPatch(shape, facecolor=colour, edgecolor="none"))

    def _arrow(self, axes: Axes, message: Message, x: float, y: float) -> None:
        """Down to the next row inside the column; over the edge; or around the left side."""
        inside = [e for e in message.elements if e is not None]
        if not inside:
            return
        last = self.recording.world_size - 1
        middle = x + (self._left(min(inside)) + self._left(max(inside)) + self.cell) / 2
        down = message.dst - message.src
        wraps = self.recording.layout == "ring" and last > 1 and abs(down) == last
        look = {"color": LIGHT["ink"], "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}
        look |= {"arrowstyle": "-|>,head_width=1.6,head_length=2.6", "mutation_scale": 1.0}
        look["linestyle"] = "-" if message.received else ":"
        bottom = y - message.src * self.row - self.high
        if abs(down) == 1 and not wraps:
            start = bottom + 0.01 if down > 0 else bottom + self.high - 0.01
            end = start - down * (self.row - self.high + 0.0)
            axes.add_patch(FancyArrowPatch((middle, start), (middle, end), **look))
        elif wraps:
            out = -0.1 if message.src == last else 0.1
            start = bottom if message.src == last else bottom + self.high
            axes.plot([middle, middle], [start, start + out], color=LIGHT["ink"], linewidth=1.0)
            entry = y - message.dst * self.row - (self.high if message.dst == last else 0)
            axes.add_patch(FancyArrowPatch((middle, entry - out), (middle, entry), **look))
        else:
            rows = [y - rank * self.row - self.high / 2 for rank in (message.src, message.dst)]
            bend = f"arc3,rad={0.35 if down > 0 else -0.35}"
            points = [(x - 0.01, row) for row in rows]
            axes.add_patch(FancyArrowPatch(*points, connectionstyle=bend, **look))
