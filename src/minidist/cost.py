"""What a collective costs: closed forms in the alpha-beta model, bounds, and bandwidths.

alpha is the time a message costs however small it is (seconds), beta the time per byte (seconds).
A message of n bytes takes alpha + n * beta. Every algorithm here is a chain of equal steps, so its
time is steps * (alpha + step_bytes * beta). The simulated transport reaches the same numbers by
running the real functions; the tests hold the two against each other.
Source of the forms: Thakur, Rabenseifner and Gropp, 2005.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from minidist.trace import Trace


@dataclass(frozen=True)
class Cost:
    """`steps` messages one after another, of `step_bytes` bytes each, on the longest chain."""

    steps: int
    step_bytes: float

    def time(self, alpha: float, beta: float) -> float:
        """Seconds."""
        return self.steps * (alpha + self.step_bytes * beta)


def naive_allreduce_cost(world_size: int, nbytes: float) -> Cost:
    """Collect on rank 0, then hand out: 2(N - 1) steps of the whole tensor."""
    return Cost(2 * (world_size - 1), nbytes)


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
