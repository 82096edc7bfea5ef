"""Allreduce by the algorithm that suits the size, the number of ranks and the wire."""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor

from minidist.collectives.allreduce import naive_allreduce, ring_allreduce
from minidist.collectives.broadcast import broadcast
from minidist.collectives.direct import one_shot_allreduce_, two_shot_allreduce_
from minidist.collectives.halving_doubling import halving_doubling_allreduce
from minidist.collectives.tree import tree_allreduce
from minidist.collectives.two_shot import two_shot_allreduce
from minidist.cost import choose
from minidist.mesh import Mesh

ALGORITHMS = {
    "ring": ring_allreduce,
    "tree": tree_allreduce,
    "halving_doubling": halving_doubling_allreduce,
    "two_shot": two_shot_allreduce,
    "naive": naive_allreduce,
    "two_shot_": two_shot_allreduce_,  # a name with a tail works in place
    "one_shot_": one_shot_allreduce_,
}
ROUND_TRIPS = 9
IN_A_ROW = 8
PROBE_BYTES = 1 << 20


def allreduce(
    mesh: Mesh,
    tensor: Tensor,
    algorithm: str = "auto",
    link: tuple[float, float, float | None] | None = None,
) -> Tensor:
    """Sum over ranks by `algorithm`, a key of ALGORITHMS, or by the one that should be fastest.

    link: (alpha, beta, gap) as of `measured_link`, the same on every rank; without it they are
    measured, once per mesh. `print(minidist.cost.choose(world_size, nbytes, *link))` says what is
    chosen and why.
    tensor: any shape, the same on every rank, which then choose alike. Returns a new tensor.
    Raises ValueError if there is no such algorithm.
    """
    if algorithm == "auto":
        nbytes = tensor.numel() * tensor.element_size()
        algorithm = choose(mesh.world_size, nbytes, *(link or measured_link(mesh))).algorithm
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{algorithm!r} is none of auto, {', '.join(ALGORITHMS)}")
    if algorithm.endswith("_"):
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        ALGORITHMS[algorithm](mesh, total)
        return total
    return ALGORITHMS[algorithm](mesh, tensor)


def measured_link(mesh: Mesh) -> tuple[float, float, float | None]:
    """(alpha, beta, gap) between rank 0 and rank 1, from round trips; the same on every rank.

    alpha: seconds of a message that is waited for. beta: seconds per byte. gap: seconds of each
    further message in a row; None on a wire where a send waits for its receiver.
    All ranks must call it. The first call measures, later ones on the same mesh remember.
    """
    if not hasattr(mesh, "link_measured"):
        measured = torch.zeros(3, dtype=torch.float64)
        if mesh.world_size > 1 and mesh.rank < 2:
            alpha, probe = _round_trip(mesh, 0) / 2, _round_trip(mesh, PROBE_BYTES) / 2
            measured[0], measured[1] = alpha, max(0.0, probe - alpha) / PROBE_BYTES
            if mesh.link.buffered:
                row = _round_trip(mesh, 0, IN_A_ROW) - 2 * alpha
                measured[2] = min(max(0.0, row / (IN_A_ROW - 1)), alpha)
        # Two ranks never measure the same, and ranks that choose differently wait for ever.
        alpha, beta, gap = broadcast(mesh, measured).tolist()
        mesh.link_measured = alpha, beta, gap if mesh.link.buffered else None
    return mesh.link_measured


def _round_trip(mesh: Mesh, nbytes: int, in_a_row: int = 1) -> float:
    """Seconds of so many messages from rank 0 to rank 1 and one back."""
    ball = torch.zeros(nbytes, dtype=torch.uint8)
    times = []
    for _ in range(ROUND_TRIPS):
        start = mesh.link.now()
        if mesh.rank == 0:
            for _ in range(in_a_row):
                mesh.send(1, ball)
            mesh.recv(1, like=ball)
        else:
            for _ in range(in_a_row):
                mesh.recv(0, like=ball)
            mesh.send(0, ball)
        times.append(mesh.link.now() - start)
    return median(times)
