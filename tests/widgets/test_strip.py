"""The strip says on paper what the recording says."""

from __future__ import annotations

import io

import broken
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import minidist
from minidist.palette import LIGHT, PALETTE_LIGHT
from minidist.provenance import record
from minidist.widgets import strip


def parts(figure, kind):
    return [p for p in figure.axes[0].patches if isinstance(p, kind)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
def test_every_cell_and_message_of_the_ring_is_there(world_size):
    recording = record(minidist.ring_allreduce, world_size, world_size)
    figure = strip(recording)
    panels = len(recording.frames)
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts.count("start") == 1
    assert [t for t in texts if t.startswith("step")] == [f"step {s}" for s in range(panels - 1)]
    numbers = sorted(int(t) for t in texts if t.isdigit())
    shown = [c.value for f in recording.frames for buffer in f.buffers for c in buffer]
    assert numbers == sorted(shown)
    assert len(parts(figure, FancyArrowPatch)) == sum(len(f.messages) for f in recording.frames)


def test_colour_is_the_chunk_and_solid_means_complete():
    recording = record(minidist.ring_allreduce, 4, 4)
    boxes = parts(strip(recording), FancyBboxPatch)
    solid = [to_hex(b.get_facecolor()) for b in boxes if b.get_facecolor()[3] == 1]
    done = [
        element
        for frame in recording.frames
        for rank, buffer in enumerate(frame.buffers)
        for element, cell in enumerate(buffer)
        if cell == recording.expected(rank)[element]
    ]
    assert sorted(solid) == sorted(PALETTE_LIGHT[e] for e in done)
    new = [b for b in boxes if to_hex(b.get_edgecolor()) == LIGHT["ink"]]
    assert len(new) == 6 * 4  # one cell per rank and step


def test_empty_cells_have_no_number():
    figure = strip(record(minidist.allgather, 4, 1, op="allgather"))
    assert sum(t.get_text().isdigit() for t in figure.axes[0].texts) == 4 + 8 + 12 + 16


@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize(
    "fn, op",
    [
        (minidist.ring_allreduce, "allreduce"),
        (minidist.naive_allreduce, "allreduce"),
        (minidist.broadcast, "broadcast"),
        (minidist.allgather, "allgather"),
    ],
)
def test_it_fits_the_page_and_brings_its_paper(fn, op, world_size):
    figure = strip(record(fn, world_size, 1 if op == "allgather" else world_size, op=op))
    width, height = figure.get_size_inches()
    assert width <= 6.81 and height < 20
    assert to_hex(figure.get_facecolor()) == LIGHT["paper"]  # or a dark notebook hides the ink
    for text in figure.axes[0].texts:
        assert text.get_fontsize() >= 6
        box = text.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        assert box.x0 >= -0.01 and box.x1 <= width + 0.01
        assert box.y0 >= -0.01 and box.y1 <= height + 0.01
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg")
    assert len(drawn.getvalue()) < 1_500_000


def test_broken_runs_can_be_drawn():
    for fn in (broken.off_by_one, broken.adds_twice, broken.all_receive_first, broken.whole_tensor):
        strip(record(fn, 4, 7 if fn is broken.whole_tensor else 8))
    assert strip(record(broken.sends_too_much, 4, 4)).axes
