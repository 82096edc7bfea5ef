"""Overlap: how much of a step's communication was hidden behind its backward pass.

`steps(trace, rank)` reads what a DDP has marked in a run; `predict` says what an alpha-beta model
expects, for any bucket cap. Both give a Step, so that the two can be held, or drawn, against each
other.

Communication is on its way while at least one bucket is between its launch and its end, as this
rank sees it: time that a bucket waits for the one before it, or for a slower rank, counts, and time
in which two buckets are on their way counts once. It is hidden as long as the backward pass still
computes, which is until the last gradient is ready. The rest is exposed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from minidist.cost import Cost, ring_allreduce_cost
from minidist.trace import Mark, Trace


@dataclass(frozen=True, slots=True)
class Ready:
    """A gradient that has been computed and copied into its bucket."""

    name: str  # of the parameter
    bucket: int
    nbytes: int
    at: float


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """One bucket's all-reduce, from its launch to its end, by the clock of one rank."""

    index: int
    nbytes: int
    launch: float
    done: float


@dataclass(frozen=True)
class Step:
    """One training step of one rank: a forward and a backward whose gradients were reduced.

    Times are seconds since the run began. `ready` is in the order of time, `buckets` in the order
    of their indices, in which they are reduced.
    """

    rank: int
    forward: float  # the forward begins
    output: float  # the forward ends
    backward: float  # the backward pass begins
    ready: tuple[Ready, ...]
    buckets: tuple[BucketTimes, ...]
    wait: float  # the backward pass is over, and what has not been reduced yet is waited for
    finalize: float  # every gradient is averaged and in its place

    @property
    def backward_end(self) -> float:
        """When the last gradient is ready.

        If none was seen to become ready (the first iteration of a static graph, where all buckets
        are launched at the end): when the first bucket is launched.
        """
        if self.ready:
            return self.ready[-1].at
        return min((b.launch for b in self.buckets), default=self.wait)

    @property
    def seconds(self) -> float:
        """From the beginning of the forward to the last averaged gradient."""
        return self.finalize - self.forward

    @property
    def communication(self) -> float:
        """Seconds in which at least one bucket was on its way."""
        return _length((b.launch, b.done) for b in self.buckets)

    @property
    def hidden(self) -> float:
        """Seconds of `communication` in which the backward pass still computed."""
        return _length((b.launch, min(b.done, self.backward_end)) for b in self.buckets)

    @property
    def exposed(self) -> float:
        """Seconds of `communication` after the backward pass: the step waits for these."""
        return self.communication - self.hidden

    @property
    def hidden_fraction(self) -> float:
        """`hidden` over `communication`, 0 to 1; 0 if there was none."""
        return self.hidden / self.communication if self.communication else 0.0


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    """Of the union of some intervals; one that ends before it begins is empty."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def steps(trace: Trace, rank: int) -> list[Step]:
    """The training steps that `rank` has marked, in their order.

    Left out: forwards without a reduction (under no_sync(), in evaluation), and a step that did not
    come to its end. If several forwards share a backward, the step begins with the last of them.
    The end of an all-reduce is marked by another thread, which may come to it late: a bucket counts
    as done when its step is, at the latest.
    """
    marks = trace.marks[rank]
    ends: dict[int | None, deque[float]] = defaultdict(deque)  # per bucket: the n-th launch's is
    for mark in marks:  # the n-th end, in whatever step it is marked
        if mark.kind == "done":
            ends[mark.bucket].append(mark.at)
    found: list[Step] = []
    forward = output = backward = wait = None
    ready: list[Mark] = []
    launched: list[tuple[Mark, float]] = []
    for mark in marks:
        if mark.kind == "forward":
            forward = mark.at
        elif mark.kind == "output":
            output, start, backward, wait, ready, launched = mark.at, forward, None, None, [], []
        elif mark.kind == "backward" and backward is None:
            backward = mark.at
        elif mark.kind == "ready":
            ready.append(mark)
        elif mark.kind == "launch":
            mine = ends[mark.bucket]
            launched.append((mark, mine.popleft() if mine else float("inf")))
        elif mark.kind == "wait":
            wait = mark.at
        elif mark.kind == "finalize" and output is not None:
            found.append(_step(rank, start, output, backward, ready, launched, wait, mark.at))
            output = None
    return found


def _step(
    rank: int,
    forward: float,
    output: float,
    backward: float | None,
    ready: list[Mark],
    launched: list[tuple[Mark, float]],
    wait: float,
    finalize: float,
) -> Step:
    return Step(
        rank,
        forward,
        output,
        output if backward is None else backward,  # it came through no output of the forward
        tuple(Ready(m.name, m.bucket, m.nbytes, m.at) for m in ready),
        tuple(
            BucketTimes(m.bucket, m.nbytes, m.at, min(done, finalize))
            for m, done in sorted(launched, key=lambda pair: pair[0].bucket)
        ),
        wait,
        finalize,
    )


TORCH_TIMES = (
    "avg_forward_compute_time",
    "avg_backward_compute_time",
    "avg_backward_comm_time",
    "avg_backward_compute_comm_overlap_time",
)


def torch_times(steps: Sequence[Step]) -> dict[str, int]:
    """What PyTorch's DDP would say of these steps: TORCH_TIMES, means in nanoseconds.

    The names and definitions of `ddp._get_ddp_logging_data()`. There, communication lasts from the
    first launch until every gradient is in its place, also if no bucket is on its way in between;
    the backward pass begins where the forward ends; and the overlap is the time from the first
    launch until the backward pass is over, hooks and launches included.
    Source: Logger::set_runtime_stats_and_log (torch/csrc/distributed/c10d/logger.cpp).
    """
    spans: list[list[float]] = [[] for _ in TORCH_TIMES]
    for step in steps:
        launch = min((b.launch for b in step.buckets), default=step.finalize)
        spans[0].append(step.output - step.forward)
        spans[1].append(step.wait - step.output)
        spans[2].append(step.finalize - launch)
        spans[3].append(max(0.0, step.wait - launch))
    return {
        name: round(1e9 * statistics.fmean(span or [0.0]))
        for name, span in zip(TORCH_TIMES, spans, strict=True)
    }


# The model


@dataclass(frozen=True, slots=True)
class Layer:
    """A parameter, or several whose gradients come at once: how long its backward takes, its bytes.

    Models are lists of layers in the order in which their gradients become ready.
    """

    name: str
    seconds: float
    nbytes: int


AllreduceCost = Callable[[int, float], Cost]  # of world_size and bytes, as in minidist.cost


def layers(steps: Sequence[Step]) -> list[Layer]:
    """The model's layers out of recorded steps: medians of the times from gradient to gradient.

    Record them with one bucket, so that communication does not slow the backward pass down. Raises
    ValueError if there are no steps, or not the same gradients in all of them.
    """
    if not steps:
        raise ValueError("no steps to take the layers from")
    names = [[(r.name, r.nbytes) for r in step.ready] for step in steps]
    if any(other != names[0] for other in names):
        raise ValueError("gradients became ready in different orders; take the steps of one order")
    gaps = [
        [b - a for a, b in pairwise([step.backward, *(r.at for r in step.ready)])] for step in steps
    ]
    return [
        Layer(name, statistics.median(times), nbytes)
        for (name, nbytes), times in zip(names[0], zip(*gaps, strict=True), strict=True)
    ]


def predict(
    layers: Sequence[Layer],
    world_size: int,
    alpha: float,
    beta: float,
    cap: float,
    *,
    first_cap: float | None = None,
    forward: float = 0.0,
    allreduce: AllreduceCost = ring_allreduce_cost,
) -> Step:
    """The step that the model expects, beginning at time 0.

    A bucket is closed, and launched, as soon as it holds `cap` bytes (the first: `first_cap`, if
    that is given), and with the last gradient. Buckets are reduced one after the other, each for
    the time of `allreduce` at `alpha` seconds per message and `beta` seconds per byte. Copying, the
    hooks, and what communication takes from the computation cost nothing here.
    forward: seconds that the forward takes.
    """
    at = list(accumulate((layer.seconds for layer in layers), initial=forward))
    first_cap = cap if first_cap is None else first_cap
    ready, buckets = [], []
    for index, (start, end, done) in enumerate(
        _reduced(layers, at, world_size, alpha, beta, first_cap, cap, allreduce)
    ):
        inside = layers[start:end]
        for layer, when in zip(inside, at[start + 1 : end + 1], strict=True):
            ready.append(Ready(layer.name, index, layer.nbytes, when))
        buckets.append(BucketTimes(index, sum(layer.nbytes for layer in inside), at[end], done))
    finalize = max(at[-1], buckets[-1].done) if buckets else at[-1]
    return Step(0, 0.0, forward, forward, tuple(ready), tuple(buckets), at[-1], finalize)


def _reduced(
    layers: Sequence[Layer],
    at: list[float],
    world_size: int,
    alpha: float,
    beta: float,
    first_cap: float,
    cap: float,
    allreduce: AllreduceCost,
) -> list[tuple[int, int, float]]:
    """(first layer, last layer + 1, when it is reduced) of each bucket; at[i]: layer i begins."""
    buckets: list[tuple[int, int, float]] = []
    start, nbytes, free = 0, 0, 0.0
    for end, layer in enumerate(layers, 1):
        nbytes += layer.nbytes
        if nbytes >= (cap if buckets else first_cap) or end == len(layers):
            free = max(free, at[end]) + allreduce(world_size, nbytes).time(alpha, beta)
            buckets.append((start, end, free))
            start, nbytes = end, 0
    return buckets


def best_cap(
    layers: Sequence[Layer],
    world_size: int,
    alpha: float,
    beta: float,
    *,
    first_cap: float | None = None,
    allreduce: AllreduceCost = ring_allreduce_cost,
) -> int:
    """The cap, in bytes, with which `predict` expects the shortest step; of equals the largest.

    Only a cap at which some buckets change can be the best, and those are the sizes of runs of
    neighbouring layers, so all of them are tried: for n layers n^2 / 2 caps. Raises ValueError if
    there are no layers.
    """
    if not layers:
        raise ValueError("no layers, so no cap is better than another")
    at = list(accumulate((layer.seconds for layer in layers), initial=0.0))
    sums = list(accumulate((layer.nbytes for layer in layers), initial=0))
    caps = {sums[j] - sums[i] for i in range(len(layers)) for j in range(i + 1, len(sums))}

    def finalize(cap: int) -> float:
        first = cap if first_cap is None else first_cap
        return _reduced(layers, at, world_size, alpha, beta, first, cap, allreduce)[-1][2]

    return min(sorted(caps, reverse=True), key=finalize)
