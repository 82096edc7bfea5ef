"""The explorer's Python half: its formulas, who wins where, its points, its figure, its colours."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

import minidist
from minidist import cost, palette
from minidist.widgets import crossover_figure, explorer, show_explorer
from minidist.widgets.explorer import CURVES, LARGEST, SMALLEST, WORLD_SIZES, Region, regions

FOLDER = Path(minidist.__file__).parent / "widgets"
POINT = {"algorithm": "ring", "world_size": 4, "nbytes": 1 << 20, "seconds": 2e-3}


def seconds(name, world_size, nbytes, alpha, bandwidth):
    return cost.ALLREDUCE_COSTS[name](world_size, nbytes).time(alpha, 1 / bandwidth)


def test_the_forms_are_those_of_cost():
    view = explorer()
    assert [c["name"] for c in view.curves] == list(CURVES)
    for curve in view.curves:
        for n, (steps, part) in zip(view.world_sizes, curve["forms"], strict=True):
            time = steps * (3e-6 + part * 1e6 / 2e9)
            assert time == pytest.approx(seconds(curve["name"], n, 1e6, 3e-6, 2e9))


@given(
    st.sampled_from(WORLD_SIZES),
    st.floats(1e-8, 1e-1),
    st.floats(1e6, 1e13),
    st.lists(st.sampled_from(list(CURVES)), unique=True, min_size=1),
)
def test_in_each_region_nobody_is_faster(world_size, alpha, bandwidth, shown):
    found = regions(world_size, alpha, bandwidth, shown)
    assert found[0].low == SMALLEST and found[-1].high == LARGEST
    for region, following in pairwise(found):
        assert region.high == following.low and region.names != following.names
    for region in found:
        for share in (0.01, 0.5, 0.99):
            nbytes = region.low * (region.high / region.low) ** share
            times = {name: seconds(name, world_size, nbytes, alpha, bandwidth) for name in shown}
            least = min(times.values())
            assert all(times[name] == pytest.approx(least, rel=1e-6) for name in region.names)
            best = min(times, key=times.__getitem__)
            assert best in region.names or times[best] == pytest.approx(least, rel=1e-6)


def test_ring_or_tree():
    alpha, bandwidth = 10e-6, 25e9
    tree, ring = regions(8, alpha, bandwidth, ["ring", "tree"])
    assert (tree.names, ring.names) == (("tree",), ("ring",))
    assert tree.high == pytest.approx(alpha * bandwidth * (7 - 3) / (3 - 7 / 8))


def test_equals_share_a_region():
    assert regions(2, shown=["naive", "tree"]) == [Region(SMALLEST, LARGEST, ("naive", "tree"))]
    assert regions(8, shown=[]) == []


def test_points():
    rows = [
        POINT,
        {**POINT, "algorithm": "ring_", "transport": "tcp", "busbw": 1e9},
        {**POINT, "algorithm": "backend"},
        {**POINT, "nbytes": 0},
    ]
    kept = explorer(rows).points
    assert [(p["algorithm"], p["transport"]) for p in kept] == [("ring", ""), ("ring", "tcp")]
    assert set(kept[1]) == {*POINT, "transport"}
    with pytest.raises(ValueError, match="lacks nbytes, seconds"):
        explorer([{"algorithm": "ring", "world_size": 4}])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"world_size": 17}, "world_size is 17"),
        ({"alpha": 0.0}, "alpha is 0.0 s"),
        ({"bandwidth": float("inf")}, "both must be above 0"),
        ({"shown": ["ring", "star"]}, "'star' is none of naive, ring"),
    ],
)
def test_wrong_arguments(options, says):
    for make in (explorer, crossover_figure):
        with pytest.raises(ValueError, match=says):
            make(**options)


def test_it_fits_in_a_page():
    state = {k: v for k, v in explorer().get_state().items() if not k.startswith("_model")}
    assert len(json.dumps(state, default=str)) < 60_000
    assert "render" in state["_esm"] and ".minidist-explorer" in state["_css"]


def test_it_is_shown_with_its_figure(monkeypatch):
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    show_explorer(iter([POINT]), world_size=4, nbytes=2048)
    view, figure = displayed
    assert (view.world_size, view.nbytes, len(view.points)) == (4, 2048, 1)
    assert figure.axes[0].get_title(loc="left").startswith("4 ranks")
    assert any(list(line.get_ydata()) == [2e-3] for line in figure.axes[0].lines)


def test_the_figure():
    (axes,) = crossover_figure(alpha=10e-6, bandwidth=25e9, shown=["ring", "tree"]).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    curves = {line.get_label(): line for line in axes.lines if len(line.get_xdata()) > 100}
    assert set(curves) == {"ring", "tree"}
    for name, line in curves.items():
        for nbytes, time in list(zip(line.get_xdata(), line.get_ydata(), strict=True))[::40]:
            assert time == pytest.approx(seconds(name, 8, nbytes, 10e-6, 25e9))
    words = [text.get_text() for text in axes.texts]
    assert words == ["tree", "460 KiB", "ring"]
    bands = [to_hex(band.get_facecolor()) for band in axes.patches]
    assert bands == [palette.PALETTE_LIGHT[CURVES[name][1]] for name in ("tree", "ring")]
    (empty,) = crossover_figure(shown=[]).axes
    assert not empty.texts


def test_the_view_never_moves():
    text = (FOLDER / "explorer.js").read_text() + (FOLDER / "explorer.css").read_text()
    assert not re.search(r"animation|transition|requestAnimationFrame|setTimeout", text)
