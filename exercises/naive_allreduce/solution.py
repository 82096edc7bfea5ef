"""Exercise: naive allreduce, everything through rank 0."""

import torch


def naive_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' tensors, on every rank.

    Rank 0 receives every other rank's tensor, adds it to its own, and sends the sum back to each.

    mesh: mesh.rank, mesh.world_size, mesh.send(dst, tensor), mesh.recv(src) -> tensor.
    tensor: any shape and dtype, the same on every rank. It is left alone.
    Returns a new tensor of the same shape and dtype, also when world_size is 1.
    Price, with N ranks: 2(N - 1) steps. Rank 0 sends N - 1 tensors, every other rank one.
    """
    total = tensor.clone()  # a copy: += would otherwise write into the caller's tensor
    if mesh.rank == 0:
        for src in range(1, mesh.world_size):
            total += mesh.recv(src)
        for dst in range(1, mesh.world_size):
            mesh.send(dst, total)
        return total
    mesh.send(0, tensor)
    return mesh.recv(0)
