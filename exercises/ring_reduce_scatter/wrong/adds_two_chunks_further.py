"""Adds what arrived two chunks further on than it belongs; two ranks do not show it."""

import torch

CHECK = "values"
SAYS = "what arrived was added to another chunk than the one it belongs to"


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    if tensor.dim() == 0 or tensor.shape[0] % n:
        raise ValueError("cannot be cut into equal parts")
    chunks = tensor.reshape(n, tensor.shape[0] // n, *tensor.shape[1:]).clone()
    for step in range(n - 1):
        outgoing = chunks[(rank - step - 1) % n]
        chunks[(rank - step) % n] += mesh.sendrecv((rank + 1) % n, outgoing, (rank - 1) % n)
    return chunks[rank].clone()
