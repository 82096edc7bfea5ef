"""broadcast: one rank has a tensor, afterwards every rank has it."""

from __future__ import annotations

from torch import Tensor

from minidist.mesh import Mesh


def broadcast(mesh: Mesh, tensor: Tensor, src: int = 0) -> Tensor:
    """Rank `src`'s tensor, on every rank, down a tree that doubles at each step.

    tensor: on `src` what is sent; elsewhere it only says which dtype and shape to expect. Returns
    a new tensor; the input is left alone. Any world size, any `src`: ranks are renumbered so that
    `src` is 0, and a step in which there is nobody left to reach is skipped.
    Steps: ceil(log2 N). Bytes: `src` sends the tensor ceil(log2 N) times, all ranks together
    N - 1 times.
    Raises ValueError if `src` is no rank, MessageMismatch if dtype or shape differ.
    """
    rank, world_size = mesh.rank, mesh.world_size
    if not 0 <= src < world_size:
        raise ValueError(f"src is {src}, but ranks go from 0 to {world_size - 1}")
    virtual = (rank - src) % world_size  # how far this rank stands from src
    result = tensor.detach().clone()
    reached = 1  # virtual ranks 0 .. reached - 1 have the tensor
    while reached < world_size:
        if virtual < reached and virtual + reached < world_size:
            mesh.send((rank + reached) % world_size, result)
        elif reached <= virtual < 2 * reached:
            result = mesh.recv((rank - reached) % world_size, like=tensor)
        reached *= 2
    return result
