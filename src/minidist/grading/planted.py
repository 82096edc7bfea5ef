"""Collectives with a bug, and some without, for the bug hunt. Do not use them for anything else.

`SHOWN` are the six that the exercise lets the reader look at; `ALL` has more, so that a finder
cannot simply know the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minidist.collectives import broadcast, halving_doubling_allreduce, ring_allreduce
from minidist.collectives.chunks import join, split
from minidist.collectives.ring import gather_pass_, reduce_pass_
from minidist.mesh import Mesh


def everybody_listens(mesh: Mesh, tensor: Tensor) -> Tensor:
    """An allreduce."""
    n = mesh.world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(n - 1):
        came = mesh.recv((mesh.rank - 1) % n)
        mesh.send((mesh.rank + 1) % n, travelling)
        travelling = came
        total += travelling
    return total


ROUNDS = {1: 0, 2: 1, 3: 1, 4: 2, 5: 3, 6: 3, 7: 3, 8: 3}


def rounds_from_a_table(mesh: Mesh, tensor: Tensor) -> Tensor:
    """An allreduce."""
    rank, n = mesh.rank, mesh.world_size
    rounds = ROUNDS[n]
    total = tensor.clone()
    for distance in (1 << k for k in range(rounds)):
        if rank % (2 * distance) == distance:
            mesh.send(rank - distance, total)
            break
        if rank + distance < n and rank % (2 * distance) == 0:
            total += mesh.recv(rank + distance)
    for distance in reversed([1 << k for k in range(rounds)]):
        if rank % (2 * distance) == distance:
            total = mesh.recv(rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < n:
            mesh.send(rank + distance, total)
    return total


def renumbered(mesh: Mesh, tensor: Tensor, root: int) -> Tensor:
    """A broadcast."""
    rank, n = mesh.rank, mesh.world_size
    shift = root if root > 1 else 0
    virtual = (rank - shift) % n
    result, have = tensor.clone(), 1
    while have < n:
        if virtual < have and virtual + have < n:
            mesh.send((rank + have) % n, result)
        elif have <= virtual < 2 * have:
            result = mesh.recv((rank - have) % n)
        have *= 2
    return result


def carefully_exact(mesh: Mesh, tensor: Tensor) -> Tensor:
    """An allreduce."""
    return ring_allreduce(mesh, tensor.to(torch.complex128)).real.to(tensor.dtype)


def straight_from_memory(mesh: Mesh, tensor: Tensor) -> Tensor:
    """An allreduce."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return ring_allreduce(mesh, flat).reshape(tensor.shape)


def by_arrival(mesh: Mesh, tensor: Tensor) -> Tensor:
    """An allreduce."""
    rank, n = mesh.rank, mesh.world_size
    chunks = split(tensor, n)
    reduce_pass_(mesh, chunks)
    finished = [chunks[(rank + 1) % n].clone()]
    for _ in range(n - 1):
        finished.append(mesh.sendrecv((rank + 1) % n, finished[-1], (rank - 1) % n))
    return join(torch.stack(finished), like=tensor)


# --- not shown


def five_wait(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Hangs with five ranks, and only then: rank 0 waits for a message too many."""
    total = ring_allreduce(mesh, tensor)
    if mesh.world_size == 5 and mesh.rank == 0:
        mesh.recv(4)
    return total


def last_root(mesh: Mesh, tensor: Tensor, root: int) -> Tensor:
    """A broadcast, wrong for root 3 and only then."""
    return broadcast(mesh, tensor, root if root != 3 else 0)


def no_tail(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Wrong for lengths that do not divide, and only then: the tail is not added up."""
    n, flat = mesh.world_size, tensor.reshape(-1).clone()
    whole = flat.numel() // n * n
    flat[:whole] = ring_allreduce(mesh, flat[:whole])
    return flat.reshape(tensor.shape)


def twice_around(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Twice the bytes from three ranks on: the second pass goes around two times."""
    n, chunks = mesh.world_size, split(tensor, mesh.world_size)
    reduce_pass_(mesh, chunks)
    for _ in range(4 if n > 2 else 1):
        gather_pass_(mesh, chunks, first=(mesh.rank + 1) % n)
    return join(chunks, like=tensor)


def strided_root(mesh: Mesh, tensor: Tensor, root: int) -> Tensor:
    """A broadcast, wrong only for a strided tensor and a root that is not 0."""
    if root and not tensor.is_contiguous():
        tensor = tensor.as_strided((tensor.numel(),), (1,)).reshape(tensor.shape)
    return broadcast(mesh, tensor, root)


@dataclass(frozen=True)
class Planted:
    """A collective, and where it fails first: None, or what, world size, root, strided."""

    function: Callable[..., Tensor]
    op: str
    fails: tuple[str, int, int, bool] | None

    @property
    def name(self) -> str:
        return self.function.__name__


SHOWN = (
    Planted(everybody_listens, "allreduce", ("hangs", 2, 0, False)),
    Planted(rounds_from_a_table, "allreduce", ("wrong", 3, 0, False)),
    Planted(renumbered, "broadcast", ("wrong", 2, 1, False)),
    Planted(carefully_exact, "allreduce", ("bytes", 2, 0, False)),
    Planted(straight_from_memory, "allreduce", ("wrong", 1, 0, True)),
    Planted(by_arrival, "allreduce", ("wrong", 2, 0, False)),
)
HIDDEN = (
    Planted(five_wait, "allreduce", ("hangs", 5, 0, False)),
    Planted(last_root, "broadcast", ("wrong", 4, 3, False)),
    Planted(no_tail, "allreduce", ("wrong", 2, 0, False)),
    Planted(twice_around, "allreduce", ("bytes", 3, 0, False)),
    Planted(strided_root, "broadcast", ("wrong", 2, 1, True)),
)
RIGHT = (
    Planted(ring_allreduce, "allreduce", None),
    Planted(halving_doubling_allreduce, "allreduce", None),
    Planted(broadcast, "broadcast", None),
)
ALL = {p.name: p for p in (*SHOWN, *HIDDEN, *RIGHT)}
