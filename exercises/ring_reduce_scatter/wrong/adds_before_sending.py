"""Adds what arrived to the chunk that was just sent instead of the one that is sent next."""

import torch

CHECK = "values"
SAYS = "nothing was added to it"


def ring_reduce_scatter(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    if tensor.dim() == 0 or tensor.shape[0] % n:
        raise ValueError("cannot be cut into equal parts")
    chunks = tensor.reshape(n, tensor.shape[0] // n, *tensor.shape[1:]).clone()
    for step in range(n - 1):
        outgoing = chunks[(rank - step - 1) % n]
        chunks[(rank - step - 1) % n] += mesh.sendrecv((rank + 1) % n, outgoing, (rank - 1) % n)
    return chunks[rank].clone()
