"""Exercise: ring reduce-scatter, the first pass around the ring."""

import torch


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    """Rank r's part of the sum over all ranks: chunk r of N equal chunks along dimension 0.

    The ranks form a ring: each sends to its right neighbour (rank + 1) % N and receives from its
    left one. In each of N - 1 steps every rank sends one chunk and adds the chunk that arrives to
    its own copy of the same chunk. Choose the first chunk so that the one which is complete at the
    end, on rank r, is chunk r.

    mesh: mesh.rank, mesh.world_size, mesh.sendrecv(dst, tensor, src) -> tensor (also send, recv).
    tensor: shape (d, ...), any dtype, strided or not, the same shape on every rank; N divides d.
    It is left alone.
    Returns a new tensor of shape (d / N, ...) and the same dtype.
    Raises ValueError, before anything is sent, if tensor is 0-dim or N does not divide d.
    Price: N - 1 steps, and each rank sends (N - 1)/N of the tensor.
    """
    raise NotImplementedError
