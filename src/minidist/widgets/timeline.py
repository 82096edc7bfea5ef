"""The timeline: a recorded training step, lane by lane, and which bucket cap makes it shortest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from minidist import palette
from minidist.cost import ring_allreduce_cost
from minidist.ddp.buckets import MIB
from minidist.overlap import Layer, Step, best_cap, layers, predict, steps
from minidist.trace import Trace
from minidist.widgets.common import code, size_name, style, time_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALPHAS = (1e-7, 1e-1)  # seconds per message: the ends of the slider
BANDWIDTHS = (1e6, 1e13)  # bytes per second
Traces = Trace | Mapping[float | None, Trace]


class Timeline(anywidget.AnyWidget):
    """A training step of a DDP as lanes per rank, and its length as a curve over the bucket cap.

    runs: recorded ones, as `timeline` makes them. run, step: which of them is shown, by index.
    mode: "recorded", or "model" for what an alpha-beta model expects at `cap` bytes per bucket.
    at: where it stands, in seconds since the step began; -1 for its end.
    layers: [name, seconds, bytes] in the order of backward; forward: seconds. form: the steps of an
    all-reduce, and the part of the tensor that each carries. alpha: seconds per message. bandwidth:
    bytes per second. layer_seconds: mean backward time per layer.
    """

    _esm = code("timeline")
    _css = style("timeline")
    runs = traitlets.List(traitlets.Dict()).tag(sync=True)
    run = traitlets.Int(0).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    mode = traitlets.Enum(("recorded", "model"), "recorded").tag(sync=True)
    at = traitlets.Float(-1.0).tag(sync=True)
    layers = traitlets.List(traitlets.List()).tag(sync=True)
    forward = traitlets.Float().tag(sync=True)
    form = traitlets.List(traitlets.Float()).tag(sync=True)
    alpha = traitlets.Float().tag(sync=True)
    bandwidth = traitlets.Float().tag(sync=True)
    layer_seconds = traitlets.Float().tag(sync=True)
    cap = traitlets.Float().tag(sync=True)


def timeline(
    traces: Traces,
    *,
    start: float | None = None,
    mode: str = "recorded",
    alpha: float | None = None,
    bandwidth: float | None = None,
) -> Timeline:
    """A timeline of recorded runs of one model, one for each bucket cap.

    traces: {bucket_cap_mb: trace} (None: PyTorch's default caps), or the trace of a single run.
    start: the cap shown first; if not given, the one whose steps were the shortest.
    mode: what is shown first, "recorded" or "model". The reader can change it.
    alpha, bandwidth: of the model's wire, seconds per message and bytes per second; if not given,
    those that fit the recorded all-reduces best. The model's layers are taken from the run with the
    fewest buckets, where communication disturbs the backward pass least.
    Raises ValueError if a trace has no finished training step, if the runs differ in world size or
    in their gradients, or for a `start` that is not among them.

        def train(mesh, cap):
            ddp = DistributedDataParallel(model, bucket_cap_mb=cap, record=mesh.mark)
            for x in batches:
                ddp(x).sum().backward()

        traces = {cap: run(train, 2, cap, process_group="gloo").trace for cap in (0.5, 2, 8)}
        timeline(traces)
    """
    recorded = read_runs(traces)
    shown = recorded.index(opened(recorded, start))
    model = Model.of(recorded, alpha, bandwidth)
    cost = ring_allreduce_cost(model.world_size, 1.0)
    return Timeline(
        runs=[run.to_dict() for run in recorded],
        run=shown,
        step=recorded[shown].shown.index(recorded[shown].typical),
        mode=mode,
        layers=[[layer.name, layer.seconds, layer.nbytes] for layer in model.layers],
        forward=model.forward,
        form=[cost.steps, cost.step_bytes],
        alpha=model.alpha,
        bandwidth=model.bandwidth,
        layer_seconds=statistics.fmean(layer.seconds for layer in model.layers),
        cap=float(model.best),
    )


def show_timeline(traces: Traces, **options: Any) -> None:
    """Display `timeline(...)` and under it, for print and for readers without scripts, its figure.

    Takes what `timeline` takes.
    """
    from IPython.display import display

    display(timeline(traces, **options))
    options.pop("mode", None)
    display(timeline_figure(traces, **options))


# What is read from the traces


@dataclass(frozen=True)
class Run:
    """A recorded run at one cap: `steps[i][r]` is rank r's view of step i."""

    cap_mb: float | None
    steps: list[list[Step]]

    @property
    def label(self) -> str:
        return "default" if self.cap_mb is None else size_name(self.cap_mb * MIB)

    @property
    def settled(self) -> list[int]:
        """Steps with the last one's buckets, less the first step, in which all is still cold."""
        last = _layout(self.steps[-1])
        same = [i for i, step in enumerate(self.steps) if _layout(step) == last]
        return [i for i in same if i] or same

    @property
    def seconds(self) -> list[float]:
        """Of the settled steps: how long each took on the rank that took longest."""
        return [max(view.seconds for view in self.steps[i]) for i in self.settled]

    @property
    def typical(self) -> int:
        """The settled step whose time is the median."""
        middle = statistics.median_low(self.seconds)
        return self.settled[self.seconds.index(middle)]

    @property
    def shown(self) -> list[int]:
        """The first two, between which the buckets are rebuilt, and the typical one."""
        return sorted({*range(len(self.steps))[:2], self.typical})

    def to_dict(self) -> dict[str, Any]:
        names = sorted({(r.name, r.nbytes) for views in self.steps for v in views for r in v.ready})
        quartiles = _quartiles(self.seconds)
        return {
            "label": self.label,
            "cap": None if self.cap_mb is None else self.cap_mb * MIB,
            "parameters": names,
            "low": quartiles[0],
            "seconds": quartiles[1],
            "high": quartiles[2],
            "count": len(self.seconds),
            "typical": self.shown.index(self.typical),
            "steps": [{"number": i, "ranks": _views(self.steps[i], names)} for i in self.shown],
        }


def _quartiles(values: list[float]) -> list[float]:
    if len(values) < 2:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def _layout(views: Sequence[Step]) -> list[tuple[int, int]]:
    return [(bucket.index, bucket.nbytes) for bucket in views[0].buckets]


def _views(views: Sequence[Step], names: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """One step for the page: times in seconds since it began on the first rank."""
    began = min(view.forward for view in views)

    def since(at: float) -> float:
        return round(at - began, 7)

    return [
        {
            "forward": since(v.forward),
            "backward": since(v.backward),
            "ready": [[names.index((r.name, r.nbytes)), r.bucket, since(r.at)] for r in v.ready],
            "buckets": [[b.index, b.nbytes, since(b.launch), since(b.done)] for b in v.buckets],
            "wait": since(v.wait),
            "finalize": since(v.finalize),
        }
        for v in views
    ]


def read_runs(traces: Traces) -> list[Run]:
    """The runs in the order of their caps, checked; the default caps come last."""
    if isinstance(traces, Trace):
        traces = {None: traces}
    if not traces:
        raise ValueError("a timeline needs the trace of at least one run")
    runs = []
    for cap in sorted(traces, key=lambda cap: float("inf") if cap is None else cap):
        views = [steps(traces[cap], rank) for rank in range(traces[cap].world_size)]
        run = Run(cap, [list(step) for step in zip(*views, strict=False)])
        if not run.steps or not any(view.ready for step in run.steps for view in step):
            raise ValueError(
                f"the trace of bucket_cap_mb={cap} has no finished training step: give "
                "DistributedDataParallel record=mesh.mark"
            )
        runs.append(run)
    for what in (_ranks, _gradients):
        if len({what(run) for run in runs}) > 1:
            raise ValueError(f"the runs differ in their {what.__name__[1:]}: record one model")
    return runs


def _ranks(run: Run) -> int:
    return len(run.steps[0])


def _gradients(run: Run) -> frozenset[tuple[str, int]]:
    return frozenset((r.name, r.nbytes) for r in run.steps[-1][0].ready)


def fastest(runs: Sequence[Run]) -> Run:
    """The one whose median step is the shortest."""
    return min(runs, key=lambda run: statistics.median(run.seconds))


def opened(runs: Sequence[Run], start: float | None) -> Run:
    """The one that is shown first."""
    if start is None:
        return fastest(runs)
    found = [run for run in runs if run.cap_mb == start]
    if not found:
        raise ValueError(f"start is {start}, but the caps are {[run.cap_mb for run in runs]}")
    return found[0]


# The model beside them


@dataclass(frozen=True)
class Model:
    """The recorded model's layers, its forward's seconds, and the wire."""

    layers: list[Layer]
    forward: float
    world_size: int
    alpha: float
    bandwidth: float

    @classmethod
    def of(
        cls, runs: Sequence[Run], alpha: float | None = None, bandwidth: float | None = None
    ) -> Model:
        quiet = min(runs, key=lambda run: len(run.steps[-1][0].buckets))
        views = [quiet.steps[i][0] for i in quiet.settled]
        order = [r.name for r in views[-1].ready]
        views = [view for view in views if [r.name for r in view.ready] == order]
        forward = statistics.median(view.backward - view.forward for view in views)
        fitted = fit_wire(runs)
        return cls(
            layers(views),
            forward,
            _ranks(quiet),
            fitted[0] if alpha is None else alpha,
            fitted[1] if bandwidth is None else bandwidth,
        )

    @property
    def best(self) -> int:
        """The cap in bytes that makes the step shortest."""
        return best_cap(self.layers, self.world_size, self.alpha, 1 / self.bandwidth)

    def seconds(self, cap: float) -> float:
        """Of a whole step with this cap, in bytes."""
        wire = (self.world_size, self.alpha, 1 / self.bandwidth)
        return predict(self.layers, *wire, cap, forward=self.forward).seconds


def fit_wire(runs: Sequence[Run]) -> tuple[float, float]:
    """(alpha, bandwidth) with which a ring's time comes closest to the recorded all-reduces.

    A bucket counts from when all ranks have launched it and the bucket before it is done; of each
    bucket the median over the steps. Least squares of the relative error, within the sliders' ends.
    """
    found = []
    for run in runs:
        took: dict[tuple[int, int], list[float]] = {}
        for i in run.settled:
            free = 0.0
            for buckets in zip(*(view.buckets for view in run.steps[i]), strict=True):
                start = max(free, *(bucket.launch for bucket in buckets))
                free = max(bucket.done for bucket in buckets)
                took.setdefault((buckets[0].index, buckets[0].nbytes), []).append(free - start)
        found += [(nbytes, statistics.median(times)) for (_, nbytes), times in took.items()]
    world_size = _ranks(runs[0])
    rows = []
    for nbytes, seconds in found:
        cost = ring_allreduce_cost(world_size, nbytes)
        if seconds > 0:
            rows.append((cost.steps / seconds, cost.steps * cost.step_bytes / seconds))
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = (sum(x[i] for x in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    alpha = (a1 * bb - b1 * ab) / determinant if determinant > 1e-9 * aa * bb else 0.0
    alpha = min(max(alpha, ALPHAS[0]), ALPHAS[1])
    beta = (b1 - alpha * ab) / bb if bb else 0.0  # the best one for this alpha
    beta = min(max(beta, 1 / BANDWIDTHS[1]), 1 / BANDWIDTHS[0])
    return float(f"{alpha:.3g}"), float(f"{1 / beta:.3g}")


# On paper

LANES = {"compute": 0.9, "hooks": 0.5, "buckets": 1.3, "all-reduce": 1.3}  # heights
GAP, TITLE = 0.25, 0.85


def timeline_figure(
    traces: Traces,
    *,
    start: float | None = None,
    alpha: float | None = None,
    bandwidth: float | None = None,
) -> Figure:
    """The timeline on paper: the typical step of one run, and the step time over the bucket cap.

    Takes what `timeline` takes. Drawn in the light palette, which the book turns dark by itself.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    runs = read_runs(traces)
    shown = opened(runs, start)
    views = shown.steps[shown.typical]
    rank_height = TITLE + sum(LANES.values()) + len(LANES) * GAP
    heights = [0.22 * rank_height * len(views) + 0.45, 2.3]
    with mpl.rc_context():
        palette.figure_style()
        figure = Figure(figsize=(6.8, sum(heights)), layout="constrained")
        upper, lower = figure.subplots(2, height_ratios=heights)
        _draw_lanes(upper, views, rank_height)
        count = len(views[0].buckets)
        upper.set_title(
            f"bucket cap {shown.label}, step {shown.typical}: {count} bucket"
            f"{'' if count == 1 else 's'}, {time_name(max(v.seconds for v in views))}",
            fontsize=10,
        )
        _draw_caps(lower, runs, Model.of(runs, alpha, bandwidth))
    return figure


def _draw_lanes(axes: Axes, views: Sequence[Step], rank_height: float) -> None:
    began = min(view.forward for view in views)
    end = max(view.finalize for view in views) - began
    unit, name = (1.0, "s") if end >= 1 else (1e3, "ms") if end >= 1e-3 else (1e6, "\u00b5s")

    def at(seconds: float) -> float:
        return (seconds - began) * unit

    labels: dict[float, str] = {}
    for rank, view in enumerate(views):
        top = rank * rank_height + TITLE
        axes.text(0, top - 0.3, f"rank {rank}", fontsize=9, fontweight="bold")
        for lane, height in LANES.items():
            labels[top + height / 2] = lane
            _LANE[lane](axes, view, top, height, at)
            top += height + GAP
    axes.set(xlim=(0, 1.005 * end * unit), ylim=(len(views) * rank_height + 0.1, 0))
    axes.set_xlabel(name)
    axes.set_yticks(list(labels), list(labels.values()), fontsize=8.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def _colour(bucket: int) -> str:
    return palette.PALETTE_LIGHT[bucket % len(palette.PALETTE_LIGHT)]


def _begins(view: Step) -> list[float]:
    """When each gradient's computation begins: with the one before it ready."""
    return [view.backward, *(ready.at for ready in view.ready)][: len(view.ready)]


def _compute(axes: Axes, view: Step, top: float, height: float, at: Any) -> None:
    def bar(start: float, end: float, **look: Any) -> None:
        axes.barh(top, at(end) - at(start), height, at(start), align="edge", **look)

    names = palette.LIGHT
    bar(view.forward, view.backward, facecolor=names["surface"], edgecolor=names["line"])
    for ready, start in zip(view.ready, _begins(view), strict=True):
        bar(start, ready.at, facecolor=_colour(ready.bucket), alpha=0.4, edgecolor=names["paper"])
    bar(view.wait, view.finalize, fill=False, edgecolor=names["bad"], linestyle=(0, (3, 2)))
    for word, start, end in (
        ("forward", view.forward, view.backward),
        ("waits", view.wait, view.finalize),
    ):
        if end - start > 0.09 * (view.finalize - view.forward):
            axes.text(
                at((start + end) / 2),
                top + height / 2,
                word,
                ha="center",
                va="center",
                fontsize=8,
                color=names["muted"],
            )


def _hooks(axes: Axes, view: Step, top: float, height: float, at: Any) -> None:
    for ready in view.ready:
        x = at(ready.at)
        axes.plot([x, x], [top, top + height], color=_colour(ready.bucket), linewidth=1.4)


def _fillings(axes: Axes, view: Step, top: float, height: float, at: Any) -> None:
    begins = _begins(view)
    spans = []
    for bucket in view.buckets:
        mine = [i for i, ready in enumerate(view.ready) if ready.bucket == bucket.index]
        spans.append((begins[mine[0]] if mine else bucket.launch, bucket.launch))
    rows, count = _rows(spans, 0.01 * view.seconds)
    least = 0.006 * (view.finalize - view.forward)  # a bucket of one gradient is a stroke
    for bucket, (start, launch), row in zip(view.buckets, spans, rows, strict=True):
        high = height / count
        floor = top + high * (row + 1)
        colour = _colour(bucket.index)
        look = {"align": "edge", "facecolor": colour}
        axes.barh(floor, at(launch) - at(start), -high, at(start), alpha=0.12, **look)
        xs, ys, filled = [at(start)], [floor], 0
        for ready in view.ready:
            if ready.bucket == bucket.index:
                filled += ready.nbytes
                xs.append(at(min(ready.at, launch - least)))
                ys.append(floor - high * min(1.0, filled / max(1, bucket.nbytes)))
        axes.fill_between([*xs, at(launch)], [*ys, ys[-1]], floor, step="post", color=colour, lw=0)


def _flights(axes: Axes, view: Step, top: float, height: float, at: Any) -> None:
    rows, count = _rows([(b.launch, b.done) for b in view.buckets], 0.001 * view.seconds)
    high = height / max(count, 2)
    for bucket, row in zip(view.buckets, rows, strict=True):
        start, width = at(bucket.launch), at(bucket.done) - at(bucket.launch)
        axes.barh(
            top + high * row,
            width,
            0.92 * high,
            start,
            align="edge",
            facecolor=_colour(bucket.index),
            linewidth=0,
        )
        if high >= 0.4 and width > 0.025 * (at(view.finalize) - at(view.forward)):
            axes.text(
                start + width / 2,
                top + high * (row + 0.46),
                str(bucket.index),
                ha="center",
                va="center",
                fontsize=7.5,
                fontweight="bold",
                color=palette.on_chunk(bucket.index % len(palette.PALETTE_LIGHT)),
            )


_LANE = {"compute": _compute, "hooks": _hooks, "buckets": _fillings, "all-reduce": _flights}


def _rows(spans: Sequence[tuple[float, float]], slack: float) -> tuple[list[int], int]:
    """For spans that overlap by more than `slack`: the first row that is free, and the count."""
    free: list[float] = []
    rows = []
    for start, end in spans:
        row = next((k for k, until in enumerate(free) if until <= start + slack), len(free))
        free[row : row + 1] = [end]
        rows.append(row)
    return rows, max(1, len(free))


def _draw_caps(axes: Axes, runs: Sequence[Run], model: Model) -> None:
    import matplotlib as mpl

    points = [run for run in runs if run.cap_mb is not None]
    caps = [run.cap_mb * MIB for run in points]
    total = sum(layer.nbytes for layer in model.layers)
    low = max(1, min([total / 64, model.best, *(cap / 2 for cap in caps)]) / 1.3)
    high = 1.4 * max([total, *caps])
    samples = [low * (high / low) ** (i / 300) for i in range(301)]
    samples = sorted([*samples, model.best])
    ink, accent = palette.LIGHT["ink"], palette.LIGHT["accent"]
    expected = [model.seconds(cap) for cap in samples]
    axes.step(samples, expected, where="pre", color=ink, label="model")
    if points:
        low_, middle, high_ = zip(*(_quartiles(run.seconds) for run in points), strict=True)
        below = [m - q for m, q in zip(middle, low_, strict=True)]
        above = [q - m for m, q in zip(middle, high_, strict=True)]
        axes.errorbar(
            caps,
            middle,
            [below, above],
            fmt="D",
            color=accent,
            markersize=5,
            linewidth=1.4,
            label="recorded: median, middle half",
        )
        first = fastest(points)
        said = f"fastest recorded {first.label}, "
    else:
        said = ""
    axes.axvline(model.best, color=ink, linewidth=1, dashes=(4, 3))
    axes.set_title(f"{said}best by the model {size_name(model.best)}", fontsize=10, pad=20)
    axes.set(xscale="log", xlim=(low, high), xlabel="bucket cap")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda x, _: size_name(x)))
    axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda y, _: time_name(y)))
    over = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    axes.legend(ncols=2, fontsize=8.5, **over)
