"""Exercise: ring allgather, the second pass around the ring."""

import torch


def ring_allgather(mesh, tensor: torch.Tensor) -> torch.Tensor:
    """All ranks' tensors on every rank, stacked: row k is the tensor of rank k.

    The ranks form a ring: each sends to its right neighbour (rank + 1) % N and receives from its
    left one. First every rank sends its own tensor; from then on, what arrived last.

    mesh: mesh.rank, mesh.world_size, mesh.sendrecv(dst, tensor, src) -> tensor (also send, recv).
    tensor: any shape (also 0-dim and empty), any dtype, strided or not, the same on every rank.
    It is left alone.
    Returns a new tensor of shape (N, *tensor.shape) and the same dtype.
    Price: N - 1 steps, and each rank sends N - 1 tensors, one per step.
    """
    raise NotImplementedError
