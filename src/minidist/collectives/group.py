"""A part of the ranks as a mesh of their own, so that every collective also runs inside it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from minidist.mesh import Mesh


def group(mesh: Mesh, ranks: Sequence[int]) -> Mesh:
    """The mesh of `ranks` alone: rank ranks[0] is rank 0 there, ranks[1] is rank 1, and so on.

    It translates numbers and does nothing else: messages go through `mesh`, whose events, steps
    and errors keep the numbers of `mesh`. Only the ranks in `ranks` may call it. In another order
    it is the same mesh with other neighbours: `group(mesh, [3, 2, 1, 0])` turns a ring around.
    Raises ValueError if this rank is not in `ranks`, or if a rank is there twice or does not exist.
    """
    return _Group(mesh, list(ranks))


class _Group(Mesh):
    def __init__(self, mesh: Mesh, ranks: list[int]):
        if len({*ranks}) < len(ranks) or not {*ranks} <= {*range(mesh.world_size)}:
            raise ValueError(
                f"a group of ranks {ranks}: each must be there once, from 0 to "
                f"{mesh.world_size - 1}"
            )
        if mesh.rank not in ranks:
            raise ValueError(f"rank {mesh.rank} is not in the group of ranks {ranks}")
        super().__init__(
            rank=ranks.index(mesh.rank),
            world_size=len(ranks),
            link=mesh.link,
            recv_timeout_s=mesh.recv_timeout_s,
            events=mesh.events,
        )
        self.mesh = mesh
        self.ranks = ranks

    def send(self, dst: int, tensor: Tensor) -> None:
        self._check_peer("send to", dst)
        self.mesh.send(self.ranks[dst], tensor)
        self.step = self.mesh.step

    def recv(self, src: int, like: Tensor | None = None) -> Tensor:
        self._check_peer("recv from", src)
        tensor = self.mesh.recv(self.ranks[src], like)
        self.step = self.mesh.step
        return tensor

    def sendrecv(self, dst: int, tensor: Tensor, src: int, like: Tensor | None = None) -> Tensor:
        self._check_peer("send to", dst)
        self._check_peer("recv from", src)
        received = self.mesh.sendrecv(self.ranks[dst], tensor, self.ranks[src], like)
        self.step = self.mesh.step
        return received
