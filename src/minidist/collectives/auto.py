"""Allreduce by the algorithm that suits the size, the number of ranks and the wire."""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor

from minidist.collectives.allreduce import naive_allreduce, ring_allreduce
from minidist.collectives.broadcast import broadcast
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
}
ROUND_TRIPS = 9
PROBE_BYTES = 1 << 20


def allreduce(
    mesh: Mesh,
    tensor: Tensor,
    algorithm: str = "auto",
    link: tuple[float, float] | None = None,
) -> Tensor:
    """Sum over ranks by `algorithm`, a key of ALGORITHMS, or by the one that should be fastest.

    link: (alpha, beta) in seconds and seconds per byte, the same on every rank; without it they
    are measured, once per mesh. `minidist.cost.choose` tells what is chosen and why.
    tensor: any shape, the same on every rank, which then choose alike. Returns a new tensor.
    Raises ValueError if there is no such algorithm.
    """
    if algorithm == "auto":
        alpha, beta = link or measured_link(mesh)
        nbytes = tensor.numel() * tensor.element_size()
        algorithm = choose(mesh.world_size, nbytes, alpha, beta).algorithm
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{algorithm!r} is none of auto, {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm](mesh, tensor)


def measured_link(mesh: Mesh) -> tuple[float, float]:
    """(alpha, beta) between rank 0 and rank 1, from a few round trips; the same on every rank.

    All ranks must call it. The first call measures, later ones on the same mesh remember.
    """
    if not hasattr(mesh, "link_measured"):
        measured = torch.zeros(2, dtype=torch.float64)
        if mesh.world_size > 1 and mesh.rank < 2:
            empty, probe = _one_way(mesh, 0), _one_way(mesh, PROBE_BYTES)
            measured[0], measured[1] = empty, max(0.0, probe - empty) / PROBE_BYTES
        # Two ranks never measure the same, and ranks that choose differently wait for ever.
        mesh.link_measured = tuple(broadcast(mesh, measured).tolist())
    return mesh.link_measured


def _one_way(mesh: Mesh, nbytes: int) -> float:
    """Seconds of a message: half a round trip."""
    ball = torch.zeros(nbytes, dtype=torch.uint8)
    times = []
    for _ in range(ROUND_TRIPS):
        start = mesh.link.now()
        if mesh.rank == 0:
            mesh.send(1, ball)
            mesh.recv(1, like=ball)
        else:
            mesh.send(0, mesh.recv(0, like=ball))
        times.append(mesh.link.now() - start)
    return median(times) / 2
