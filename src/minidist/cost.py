"""What a collective costs: closed forms in the alpha-beta model, bounds, and bandwidths.

alpha is the time a message costs however small it is (seconds), beta the time per byte (seconds).
A message of n bytes takes alpha + n * beta. Every algorithm here is a chain of equal steps, so its
time is steps * (alpha + step_bytes * beta). The simulated transport reaches the same numbers by
running the real functions; the tests hold the two against each other.
On many a wire most of alpha is waiting: for a rank that sleeps to wake up, for the light to arrive.
Messages that follow each other without waiting cost only a gap each, and that is what makes direct
algorithms fast there. Where gap is alpha, as on the simulated wire, it makes no difference.
Sources: of the forms Thakur, Rabenseifner and Gropp, 2005; of the gap LogP, Culler et al., 1993.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from minidist.trace import Trace


@dataclass(frozen=True)
class Cost:
    """`steps` messages one after another, of `step_bytes` bytes each, on the longest chain.

    in_a_row: how many of them follow the one before without waiting for anything.
    """

    steps: int
    step_bytes: float
    in_a_row: int = 0

    def time(self, alpha: float, beta: float, gap: float | None = None) -> float:
        """Seconds. gap: of each message in a row instead of alpha, where it is known."""
        gap = alpha if gap is None else gap
        waiting = (self.steps - self.in_a_row) * alpha + self.in_a_row * gap
        return waiting + self.steps * self.step_bytes * beta


def naive_allreduce_cost(world_size: int, nbytes: float) -> Cost:
    """Collect on rank 0, then hand out: 2(N - 1) steps of the whole tensor."""
    return Cost(2 * (world_size - 1), nbytes, in_a_row=2 * max(0, world_size - 2))


def ring_allreduce_cost(world_size: int, nbytes: float) -> Cost:
    """Two passes around the ring: 2(N - 1) steps of one chunk. nbytes: the padded tensor."""
    return Cost(2 * (world_size - 1), nbytes / world_size)


def broadcast_cost(world_size: int, nbytes: float) -> Cost:
    """A tree that doubles: ceil(log2 N) steps of the whole tensor."""
    return Cost((world_size - 1).bit_length(), nbytes)


def allgather_cost(world_size: int, nbytes: float) -> Cost:
    """N - 1 steps around the ring. nbytes: one rank's tensor (the result is N times that)."""
    return Cost(world_size - 1, nbytes)


def reduce_scatter_cost(world_size: int, nbytes: float) -> Cost:
    """N - 1 steps around the ring of one chunk. nbytes: one rank's whole tensor."""
    return Cost(world_size - 1, nbytes / world_size)


def tree_allreduce_cost(world_size: int, nbytes: float) -> Cost:
    """Up a tree and down again: 2 ceil(log2 N) steps of the whole tensor."""
    return Cost(2 * (world_size - 1).bit_length(), nbytes)


def halving_doubling_allreduce_cost(world_size: int, nbytes: float) -> Cost:
    """2 log2 P steps that halve and double, 2(P - 1)/P of the tensor in all; P <= N < 2P.

    If N is no power of two, two more steps of the whole tensor. The steps differ in size; this
    Cost has as many of their average size, which takes as long. nbytes: padded to a multiple of P.
    A lower bound if N is no power of two: ranks that need not fold run ahead, and their messages
    are now and then in the way of others (simulated runs of small tensors take up to a quarter
    longer, which is longer than a tree takes; this form does not see it).
    """
    size = 1 << (world_size.bit_length() - 1)
    fold = 2 if world_size > size else 0
    steps = 2 * (size.bit_length() - 1) + fold
    chain_bytes = 2 * (size - 1) / size * nbytes + fold * nbytes
    return Cost(steps, chain_bytes / max(steps, 1))


def two_shot_allreduce_cost(world_size: int, nbytes: float) -> Cost:
    """2(N - 1) messages of one chunk, like the ring's, if a rank sends one at a time."""
    return Cost(2 * (world_size - 1), nbytes / world_size)


def two_shot_allreduce_in_place_cost(world_size: int, nbytes: float) -> Cost:
    """The same messages, each shot's in a row: 2(N - 1) of one chunk, and two that wait."""
    return Cost(2 * (world_size - 1), nbytes / world_size, in_a_row=2 * max(0, world_size - 2))


def one_shot_allreduce_in_place_cost(world_size: int, nbytes: float) -> Cost:
    """The whole tensor to everybody, in a row: N - 1 messages, and one that waits."""
    return Cost(world_size - 1, nbytes, in_a_row=max(0, world_size - 2))


def hierarchical_allreduce_cost(
    world_size: int, nbytes: float, node_size: int
) -> tuple[Cost, Cost]:
    """(inside the nodes, across them); the time is the sum of both, each with its own link.

    Two passes of a ring in each node and a tree across, all of T/node_size. Full nodes only
    (ValueError if node_size does not divide N). nbytes: padded to a multiple of node_size.
    """
    if world_size % node_size:
        raise ValueError(f"{world_size} ranks do not fill nodes of {node_size}")
    chunk = nbytes / node_size
    inside = Cost(2 * (node_size - 1), chunk)
    return inside, tree_allreduce_cost(world_size // node_size, chunk)


ALLREDUCE_COSTS = {
    "ring": ring_allreduce_cost,
    "tree": tree_allreduce_cost,
    "halving_doubling": halving_doubling_allreduce_cost,
    "two_shot": two_shot_allreduce_cost,
    "naive": naive_allreduce_cost,
    "two_shot_": two_shot_allreduce_in_place_cost,
    "one_shot_": one_shot_allreduce_in_place_cost,
}
BUFFERED_ONLY = ("two_shot_", "one_shot_")  # where a send waits for its receiver, they never end


@dataclass(frozen=True)
class Choice:
    """The fastest allreduce by the model; `seconds` has the predicted time of every candidate."""

    algorithm: str
    world_size: int
    nbytes: int
    alpha: float
    beta: float
    gap: float | None
    seconds: dict[str, float]

    def __str__(self) -> str:
        ranked = sorted(self.seconds.items(), key=lambda item: item[1])
        times = ", ".join(f"{name} {seconds * 1e6:.4g} us" for name, seconds in ranked)
        gap = "" if self.gap is None else f", gap = {self.gap * 1e6:.4g} us"
        bandwidth = 1e-9 / self.beta if self.beta else float("inf")
        return (
            f"{self.algorithm}: {self.nbytes:,} bytes on {self.world_size} ranks, at alpha = "
            f"{self.alpha * 1e6:.4g} us{gap} and {bandwidth:.4g} "
            f"GB/s, take {times}"
        )


def choose(
    world_size: int, nbytes: int, alpha: float, beta: float, gap: float | None = None
) -> Choice:
    """Which allreduce of `nbytes` bytes on `world_size` ranks is the fastest by the model.

    gap: seconds of each further message in a row, on a wire that buffers what is sent. Without it
    sends may wait for their receivers, and those of BUFFERED_ONLY are no candidates.
    The same arguments give the same choice; of equals the first in ALLREDUCE_COSTS is taken.
    """
    seconds = {
        name: cost(world_size, nbytes).time(alpha, beta, gap)
        for name, cost in ALLREDUCE_COSTS.items()
        if gap is not None or name not in BUFFERED_ONLY
    }
    best = min(seconds, key=seconds.__getitem__)
    return Choice(best, world_size, nbytes, alpha, beta, gap, seconds)


def crossover_surface(
    world_sizes: Iterable[int], sizes: Iterable[int], alpha: float, beta: float
) -> list[list[Choice]]:
    """The choice for every world size (rows) and every number of bytes (columns)."""
    sizes = list(sizes)
    return [[choose(n, nbytes, alpha, beta) for nbytes in sizes] for n in world_sizes]


def crossover(first: str, second: str, world_size: int, alpha: float, beta: float) -> float | None:
    """For how many bytes two of ALLREDUCE_COSTS take as long; None if one is always faster.

    Below, the one with fewer steps is faster; above, the one with fewer bytes.
    """
    a, b = (ALLREDUCE_COSTS[name](world_size, 1.0) for name in (first, second))
    more_steps = a.steps - b.steps
    fewer_bytes = b.steps * b.step_bytes - a.steps * a.step_bytes  # for each byte of the tensor
    if more_steps * fewer_bytes <= 0:
        return None
    return more_steps * alpha / (fewer_bytes * beta)


def allreduce_lower_bound(world_size: int, nbytes: float) -> float:
    """Bytes that each rank must send at least, 2(N - 1)/N of the tensor, if all send the same.

    Why: N - 1 contributions must leave the place where they are made, and N - 1 copies of the sum
    must reach the ranks that lack it. Source: Patarasuk and Yuan, 2009.
    """
    return 2 * (world_size - 1) / world_size * nbytes


def padded_nbytes(world_size: int, numel: int, itemsize: int) -> int:
    """Bytes of a tensor of `numel` elements once it is padded to a multiple of `world_size`."""
    return world_size * ceil(numel / world_size) * itemsize


def algbw(trace: Trace, nbytes: float) -> float:
    """Algorithm bandwidth in bytes per second: the tensor's bytes over the time of the run.

    Infinite for one rank, which sends nothing and needs no time.
    """
    return nbytes / trace.duration if len(trace) else float("inf")


def busbw(primitive: str, trace: Trace, nbytes: float) -> float:
    """Bus bandwidth in bytes per second: comparable with what one link can carry.

    algbw times the fraction that must cross each link whatever the algorithm, as nccl-tests
    defines it. nbytes: for allgather and reduce_scatter the whole array, all ranks' parts.
    """
    n = trace.world_size
    factor = {
        "allreduce": 2 * (n - 1) / n,
        "allgather": (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "broadcast": 1.0,
    }[primitive]
    return algbw(trace, nbytes) * factor
