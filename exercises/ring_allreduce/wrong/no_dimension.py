"""Asks a 0-dim tensor for its first dimension."""

import torch

CHECK = "runs"
SAYS = "A 0-dim tensor has no dimension 0"


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    rows = tensor.shape[0]
    size = -(-rows // n)
    padded = torch.zeros(n * size, *tensor.shape[1:], dtype=tensor.dtype)
    padded[:rows] = tensor
    chunks = padded.view(n, size, *tensor.shape[1:])
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank - step) % n], (rank - 1) % n)
        chunks[(rank - step - 1) % n] += came
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank + 1 - step) % n], (rank - 1) % n)
        chunks[(rank - step) % n] = came
    return padded[:rows]
