"""The timeline's Python half: what it reads from traces, its model, its figure."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex

from minidist import overlap, palette
from minidist.cost import ring_allreduce_cost
from minidist.overlap import Layer
from minidist.trace import Mark, Trace
from minidist.widgets import show_timeline, timeline, timeline_figure
from minidist.widgets.timeline import Model, fastest, fit_wire, read_runs

MIB = 1 << 20


def trace_of(*steps_of_ranks):
    """A trace with, for each rank, overlap.Steps one after the other."""
    return Trace([[] for _ in steps_of_ranks], [list(_marks(steps)) for steps in steps_of_ranks])


def _marks(steps):
    for step in steps:
        rank = step.rank
        yield Mark(rank, "forward", "", None, 0, step.forward)
        yield Mark(rank, "output", "", None, 0, step.output)
        yield Mark(rank, "backward", "", None, 0, step.backward)
        for ready in step.ready:
            yield Mark(rank, "ready", ready.name, ready.bucket, ready.nbytes, ready.at)
        for bucket in step.buckets:
            yield Mark(rank, "launch", "", bucket.index, bucket.nbytes, bucket.launch)
            yield Mark(rank, "done", "", bucket.index, bucket.nbytes, bucket.done)
        yield Mark(rank, "wait", "", None, 0, step.wait)
        yield Mark(rank, "finalize", "", None, 0, step.finalize)


LAYERS = [Layer(name, 2e-3 + 1e-4 * i, (i + 1) * MIB) for i, name in enumerate("abcdef")]
ALPHA, BANDWIDTH = 2e-4, 2e9


def ideal(caps, world_size=3, steps=4):
    """Traces of runs that do what the model expects."""
    found = {}
    for cap in caps:
        step = overlap.predict(LAYERS, world_size, ALPHA, 1 / BANDWIDTH, cap * MIB, forward=5e-3)
        found[cap] = trace_of(*([step] * steps for _ in range(world_size)))
    return found


def test_a_recorded_run(ddp_traces):
    view = timeline(ddp_traces)
    assert [run["label"] for run in view.runs] == ["10 KiB", "41 KiB", "1 MiB"]
    assert [run["cap"] for run in view.runs] == [cap * MIB for cap in (0.01, 0.04, 1)]
    counts = [[len(s["ranks"][0]["buckets"]) for s in run["steps"]] for run in view.runs]
    assert [set(c[1:]) for c in counts] == [{4}, {2}, {1}]
    assert all(c[0] == 1 for c in counts)  # before the rebuild there is one bucket
    for cap, run in zip(ddp_traces, view.runs, strict=True):
        steps = [overlap.steps(ddp_traces[cap], rank) for rank in range(2)]
        times = [max(views[i].seconds for views in steps) for i in range(1, 4)]
        assert run["seconds"] == pytest.approx(statistics.median(times))
        assert run["low"] <= run["seconds"] <= run["high"] and run["count"] == 3
        for shown in run["steps"]:
            began = min(views[shown["number"]].forward for views in steps)
            for rank, page in enumerate(shown["ranks"]):
                step = steps[rank][shown["number"]]
                names = [run["parameters"][i][0] for i, _, _ in page["ready"]]
                assert names == [r.name for r in step.ready]
                assert [b for _, b, _ in page["ready"]] == [r.bucket for r in step.ready]
                assert [at for *_, at in page["ready"]] == pytest.approx(
                    [r.at - began for r in step.ready], abs=2e-7
                )
                assert [b[:2] for b in page["buckets"]] == [
                    [b.index, b.nbytes] for b in step.buckets
                ]
                for name in ("forward", "backward", "wait", "finalize"):
                    assert page[name] == pytest.approx(getattr(step, name) - began, abs=2e-7)
    numbers = [s["number"] for s in view.runs[0]["steps"]]
    assert numbers[:2] == [0, 1] and view.runs[0]["typical"] < len(numbers)


def test_it_opens_on_the_fastest_run_and_its_typical_step(ddp_traces):
    view = timeline(ddp_traces)
    seconds = [run["seconds"] for run in view.runs]
    assert seconds[view.run] == min(seconds)
    assert view.step == view.runs[view.run]["typical"]
    assert timeline(ddp_traces, start=0.04).run == 1
    assert timeline(ddp_traces, mode="model").mode == "model"
    with pytest.raises(ValueError, match="start is 3"):
        timeline(ddp_traces, start=3)
    with pytest.raises(ValueError, match="start is 3"):
        timeline_figure(ddp_traces, start=3)


def test_one_trace_and_the_default_caps(ddp_traces):
    alone = timeline(ddp_traces[0.04])
    assert [(run["label"], run["cap"]) for run in alone.runs] == [("default", None)]
    mixed = timeline({None: ddp_traces[1], 0.04: ddp_traces[0.04]}, start=None)
    assert [run["label"] for run in mixed.runs] == ["41 KiB", "default"]


def test_the_typical_step_is_the_median_of_the_settled_ones():
    def step(slow, cap):
        layers = [Layer(layer.name, layer.seconds * slow, layer.nbytes) for layer in LAYERS]
        return overlap.predict(layers, 2, ALPHA, 1 / BANDWIDTH, cap)

    steps = [step(9, MIB), step(7, 99 * MIB), step(5, MIB), step(1, MIB), step(3, MIB)]
    (run,) = read_runs({1: trace_of(steps, steps)})
    assert run.settled == [2, 3, 4] and run.typical == 4 and run.shown == [0, 1, 4]


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_the_wire_is_found_in_the_all_reduces(world_size):
    runs = read_runs(ideal((0.5, 2, 30), world_size))
    alpha, bandwidth = fit_wire(runs)
    assert alpha == pytest.approx(ALPHA, rel=0.02) and bandwidth == pytest.approx(
        BANDWIDTH, rel=0.02
    )


def test_a_bucket_counts_from_when_all_ranks_have_launched_it():
    """A slow rank must not make the wire look slow."""
    fast = overlap.predict(LAYERS, 2, ALPHA, 1 / BANDWIDTH, MIB)
    early = replace(
        fast,
        forward=-1.0,
        output=-1.0,
        backward=-1.0,
        buckets=tuple(replace(b, launch=b.launch - 1.0) for b in fast.buckets),
    )
    alpha, bandwidth = fit_wire(read_runs({1: trace_of([early] * 3, [fast] * 3)}))
    assert alpha == pytest.approx(ALPHA, rel=0.02) and bandwidth == pytest.approx(
        BANDWIDTH, rel=0.02
    )


def test_a_run_that_does_what_the_model_expects():
    runs = read_runs(ideal((0.5, 2, 3, 30)))
    model = Model.of(runs)
    assert [(layer.name, layer.nbytes) for layer in model.layers] == [
        (layer.name, layer.nbytes) for layer in LAYERS
    ]
    assert [layer.seconds for layer in model.layers] == pytest.approx(
        [layer.seconds for layer in LAYERS]
    )
    assert model.forward == pytest.approx(5e-3) and model.world_size == 3
    for run in runs:
        assert statistics.median(run.seconds) == pytest.approx(
            model.seconds(run.cap_mb * MIB), rel=0.01
        )
    assert Model.of(runs, alpha=1e-3, bandwidth=1e8).alpha == 1e-3
    best = overlap.best_cap(LAYERS, 3, ALPHA, 1 / BANDWIDTH)
    assert timeline(ideal((0.5, 30)), alpha=ALPHA, bandwidth=BANDWIDTH).cap == best
    form = ring_allreduce_cost(3, 1.0)
    assert timeline(ideal((1,))).form == [form.steps, form.step_bytes]


def test_layers_are_taken_where_communication_disturbs_least(ddp_traces):
    runs = read_runs(ddp_traces)
    quiet = [runs[-1].steps[i][0] for i in runs[-1].settled]
    assert Model.of(runs).layers == overlap.layers(quiet)


def test_wrong_arguments(ddp_traces):
    for make in (timeline, timeline_figure):
        with pytest.raises(ValueError, match="at least one run"):
            make({})
        with pytest.raises(ValueError, match="bucket_cap_mb=4 has no finished training step"):
            make({4: Trace([[], []])})
        with pytest.raises(ValueError, match="differ in their ranks"):
            make({**ideal((1,), 2), **ideal((2,), 3)})
        with pytest.raises(ValueError, match="differ in their gradients"):
            make({**ideal((2,), 2), 1: ddp_traces[1]})


def test_it_fits_in_a_page(ddp_traces):
    state = {k: v for k, v in timeline(ddp_traces).get_state().items() if not k.startswith("_m")}
    assert len(json.dumps(state, default=str)) < 100_000


def test_it_is_shown_with_its_figure(monkeypatch, ddp_traces):
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    show_timeline(ddp_traces, start=0.04, mode="model")
    view, figure = displayed
    assert (view.run, view.mode) == (1, "model")
    assert figure.axes[0].get_title(loc="left").startswith("bucket cap 41 KiB, step")


def test_the_lanes_of_the_figure():
    traces = ideal((2,))
    upper, _ = timeline_figure(traces, alpha=ALPHA, bandwidth=BANDWIDTH).axes
    step = overlap.steps(traces[2], 0)[0]
    assert [t.get_text() for t in upper.get_yticklabels()] == [
        "compute", "hooks", "buckets", "all-reduce"
    ] * 3  # fmt: skip
    bars = [
        (p.get_x(), p.get_width(), to_hex(p.get_facecolor())) for p in upper.patches if p.get_fill()
    ]
    for bucket in step.buckets:
        colour = palette.PALETTE_LIGHT[bucket.index]
        flights = [
            bar for bar in bars
            if bar[0] == pytest.approx(1e3 * bucket.launch)
            and bar[1] == pytest.approx(1e3 * (bucket.done - bucket.launch))
        ]  # fmt: skip
        assert [flight[2] for flight in flights] == [colour] * 3
    hooks = [(line.get_xdata()[0], line.get_color()) for line in upper.lines]
    assert (
        hooks
        == [(pytest.approx(1e3 * r.at), palette.PALETTE_LIGHT[r.bucket]) for r in step.ready] * 3
    )
    words = [text.get_text() for text in upper.texts]
    assert {"rank 0", "rank 1", "rank 2", "forward"} <= set(words)


def test_the_curve_of_the_figure():
    caps = (0.5, 3, 30)
    traces = ideal(caps)
    _, axes = timeline_figure(traces, alpha=ALPHA, bandwidth=BANDWIDTH).axes
    curve = next(line for line in axes.lines if line.get_label() == "model")
    for cap, seconds in list(zip(curve.get_xdata(), curve.get_ydata(), strict=True))[::25]:
        expected = overlap.predict(LAYERS, 3, ALPHA, 1 / BANDWIDTH, cap, forward=5e-3).seconds
        assert seconds == pytest.approx(expected, rel=1e-6)
    best = overlap.best_cap(LAYERS, 3, ALPHA, 1 / BANDWIDTH)
    assert any(set(line.get_xdata()) == {best} for line in axes.lines)
    first = fastest(read_runs(traces)).label
    assert axes.get_title(loc="left").startswith(f"fastest recorded {first}, best by the model")
    marks = next(line for line in axes.lines if line.get_marker() == "D")
    assert list(marks.get_xdata()) == [cap * MIB for cap in caps]


def test_colours_repeat_after_eight_buckets():
    layers = [Layer(str(i), 1e-3, MIB) for i in range(10)]
    step = overlap.predict(layers, 2, ALPHA, 1 / BANDWIDTH, MIB)
    upper, _ = timeline_figure({1: trace_of([step] * 2, [step] * 2)}).axes
    hooks = [line.get_color() for line in upper.lines][:10]
    assert hooks == [*palette.PALETTE_LIGHT, *palette.PALETTE_LIGHT[:2]]
