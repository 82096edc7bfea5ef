"""The explorer: time against size for several allreduces, and who is the fastest where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from minidist import palette
from minidist.cost import ALLREDUCE_COSTS, crossover
from minidist.transports.simulated import ALPHA, BETA
from minidist.widgets.common import code, size_name, style, time_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDWIDTH = 1 / BETA
WORLD_SIZES = (*range(2, 17), 24, 32, 48, 64, 96, 128, 256, 512, 1024)
SMALLEST, LARGEST = 1 << 6, 1 << 30  # bytes: the ends of the axis
EQUAL = 1e-9  # relative: times that differ by less are the same

# name -> (in words, colour, dashes, marker); a ring and a two-shot cost the same in this model.
CURVES: dict[str, tuple[str, int, tuple[float, ...], str]] = {
    "naive": ("naive", 0, (2, 3), "o"),
    "ring": ("ring", 1, (), "s"),
    "tree": ("tree", 3, (9, 4), "D"),
    "halving_doubling": ("halving-doubling", 4, (9, 3, 2, 3), "v"),
}


class Explorer(anywidget.AnyWidget):
    """Sliders for alpha, bandwidth, world size and size; a curve of time for each algorithm.

    curves: what is known of each algorithm; its `forms` give, for each of `world_sizes`, the steps
    and the part of the tensor that a step carries, so that a tensor of T bytes takes
    steps * (alpha + part * T / bandwidth). shown: the names of those drawn. points: measured ones.
    alpha is in seconds, bandwidth in bytes per second, nbytes what the vertical line stands at.
    """

    _esm = code("explorer")
    _css = style("explorer")
    curves = traitlets.List(traitlets.Dict()).tag(sync=True)
    world_sizes = traitlets.List(traitlets.Int()).tag(sync=True)
    shown = traitlets.List(traitlets.Unicode()).tag(sync=True)
    alpha = traitlets.Float(ALPHA).tag(sync=True)
    bandwidth = traitlets.Float(BANDWIDTH).tag(sync=True)
    world_size = traitlets.Int(8).tag(sync=True)
    nbytes = traitlets.Int(1 << 20).tag(sync=True)
    points = traitlets.List(traitlets.Dict()).tag(sync=True)


def explorer(
    points: Iterable[Mapping[str, Any]] = (),
    *,
    alpha: float = ALPHA,
    bandwidth: float = BANDWIDTH,
    world_size: int = 8,
    nbytes: int = 1 << 20,
    shown: Sequence[str] = ("naive", "ring", "tree"),
) -> Explorer:
    """An explorer that starts with these values; the reader moves all of them.

    points: rows of `python -m minidist bench --json` or any dicts with "algorithm", "world_size",
    "nbytes" and "seconds"; those of algorithms without a curve are left out.
    alpha: seconds per message. bandwidth: bytes per second. shown: of CURVES.
    Raises ValueError for a world size that is not in WORLD_SIZES, a name that is not in CURVES, or
    a point that lacks something.
    """
    _check(world_size, alpha, bandwidth, shown)
    return Explorer(
        curves=_curves(),
        world_sizes=list(WORLD_SIZES),
        shown=list(shown),
        alpha=alpha,
        bandwidth=bandwidth,
        world_size=world_size,
        nbytes=nbytes,
        points=_points(points),
    )


def show_explorer(points: Iterable[Mapping[str, Any]] = (), **options: Any) -> None:
    """Display `explorer(...)` and under it, for print and for readers without scripts, its figure.

    Takes what `explorer` takes.
    """
    from IPython.display import display

    points = list(points)
    display(explorer(points, **options))
    options.pop("nbytes", None)
    display(crossover_figure(points, **options))


def _check(world_size: int, alpha: float, bandwidth: float, shown: Sequence[str]) -> None:
    if world_size not in WORLD_SIZES:
        raise ValueError(f"world_size is {world_size}; the explorer has {WORLD_SIZES}")
    if not (0 < alpha < inf and 0 < bandwidth < inf):
        raise ValueError(f"alpha is {alpha} s, bandwidth {bandwidth} bytes/s: both must be above 0")
    if unknown := [name for name in shown if name not in CURVES]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(CURVES)}")


def _curves() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "label": label,
            "colour": colour,
            "dashes": list(dashes),
            "marker": marker,
            "forms": [_form(name, n) for n in WORLD_SIZES],
        }
        for name, (label, colour, dashes, marker) in CURVES.items()
    ]


def _form(name: str, world_size: int) -> list[float]:
    """Steps, and the part of the tensor that each carries."""
    whole = ALLREDUCE_COSTS[name](world_size, 1.0)
    return [whole.steps, whole.step_bytes]


def _points(points: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    for point in points:
        if missing := {"algorithm", "world_size", "nbytes", "seconds"} - set(point):
            raise ValueError(f"a measured point lacks {', '.join(sorted(missing))}: {dict(point)}")
        name = point["algorithm"].rstrip("_")  # in place or not, the messages are the same
        if name in CURVES and point["nbytes"] > 0 and point["seconds"] > 0:
            kept.append(
                {
                    "algorithm": name,
                    "world_size": point["world_size"],
                    "nbytes": point["nbytes"],
                    "seconds": point["seconds"],
                    "transport": point.get("transport", ""),
                }
            )
    return kept


@dataclass(frozen=True)
class Region:
    """From `low` to `high` bytes, `names` are the fastest (several if they cost the same)."""

    low: float
    high: float
    names: tuple[str, ...]


def regions(
    world_size: int,
    alpha: float = ALPHA,
    bandwidth: float = BANDWIDTH,
    shown: Sequence[str] = tuple(CURVES),
) -> list[Region]:
    """Which of `shown` is the fastest at which size, from SMALLEST to LARGEST bytes."""
    _check(world_size, alpha, bandwidth, shown)
    forms = {name: _form(name, world_size) for name in shown}

    def time(name: str, nbytes: float) -> float:
        steps, part = forms[name]
        return steps * (alpha + part * nbytes / bandwidth)

    meetings = (
        crossover(a, b, world_size, alpha, 1 / bandwidth) for a, b in combinations(shown, 2)
    )
    inside = {cut for cut in meetings if cut and SMALLEST < cut < LARGEST}
    ends = [SMALLEST, *sorted(inside), LARGEST]
    found: list[Region] = []
    for low, high in pairwise(ends):
        times = {name: time(name, sqrt(low * high)) for name in shown}
        least = min(times.values(), default=0.0)
        names = tuple(name for name in shown if times[name] <= least * (1 + EQUAL))
        if found and found[-1].names == names:
            found[-1] = Region(found[-1].low, high, names)
        elif names:
            found.append(Region(low, high, names))
    return found


def crossover_figure(
    points: Iterable[Mapping[str, Any]] = (),
    *,
    alpha: float = ALPHA,
    bandwidth: float = BANDWIDTH,
    world_size: int = 8,
    shown: Sequence[str] = ("naive", "ring", "tree"),
) -> Figure:
    """The explorer on paper: the curves, who is fastest where, where it changes, what was measured.

    Takes what `explorer` takes. Drawn in the light palette, which the book turns dark by itself.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    found = regions(world_size, alpha, bandwidth, shown)
    kept = [p for p in _points(points) if p["world_size"] == world_size and p["algorithm"] in shown]
    with mpl.rc_context():
        palette.figure_style()
        figure = Figure(figsize=(6.8, 3.6), layout="constrained")
        axes = figure.subplots()
        ends = (SMALLEST, LARGEST)
        sizes = [SMALLEST * (LARGEST / SMALLEST) ** (i / 200) for i in range(201)]
        low = inf
        for name in shown:
            label, k, dashes, marker = CURVES[name]
            steps, part = _form(name, world_size)
            times = [steps * (alpha + part * size / bandwidth) for size in sizes]
            axes.plot(
                sizes,
                times,
                color=palette.PALETTE_LIGHT[k],
                dashes=[d / 2 for d in dashes] or (None, None),
                label=label,
            )
            mine = [p for p in kept if p["algorithm"] == name]
            axes.plot(
                [p["nbytes"] for p in mine],
                [p["seconds"] for p in mine],
                linestyle="none",
                marker=marker,
                markersize=5,
                color=palette.PALETTE_LIGHT[k],
                markeredgecolor=palette.LIGHT["ink"],
            )
            low = min(low, times[0], *(p["seconds"] for p in mine))
        axes.set(xscale="log", yscale="log", xlim=ends, xlabel="bytes per rank")
        axes.set_xticks(
            [1 << k for k in range(10, 31, 5)], [size_name(1 << k) for k in range(10, 31, 5)]
        )
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda y, _: time_name(y)))
        axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())
        if shown:  # room for the band
            high = axes.get_ylim()[1]
            axes.set_ylim(low * (low / high) ** 0.16, high)
        axes.set_title(
            f"{world_size} ranks, alpha {time_name(alpha)}, {bandwidth / 1e9:.3g} GB/s",
            fontsize=10,
            pad=18,
        )
        for region in found:
            label = " = ".join(CURVES[name][0] for name in region.names)
            k = CURVES[region.names[0]][1]
            axes.axvspan(
                region.low, region.high, 0, 0.09, color=palette.PALETTE_LIGHT[k], linewidth=0
            )
            if region.low > SMALLEST:
                axes.axvline(region.low, color=palette.LIGHT["ink"], linewidth=1, dashes=(2, 2))
                axes.annotate(
                    size_name(region.low),
                    (region.low, 1.0),
                    (0, 3),
                    xycoords=axes.get_xaxis_transform(),
                    textcoords="offset points",
                    ha="center",
                    fontsize=9,
                    fontweight="bold",
                )
            if region.high > 20 * region.low:
                axes.text(
                    sqrt(region.low * region.high),
                    0.045,
                    label,
                    transform=axes.get_xaxis_transform(),
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    fontweight="bold",
                    color=palette.on_chunk(k),
                )
        title = "marks: measured" if kept else None
        if shown:
            axes.legend(loc="upper left", title=title, title_fontsize=9, fontsize=9)
    return figure
