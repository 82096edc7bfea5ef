"""Rounds the chunk size down: what does not divide stays out of every chunk."""

import torch

CHECK = "values"
SAYS = "the tail is forgotten"


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    flat = tensor.reshape(-1).clone()
    size = flat.numel() // n
    chunks = [flat[k * size : (k + 1) * size] for k in range(n)]
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank - step) % n], (rank - 1) % n)
        chunks[(rank - step - 1) % n] += came
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank + 1 - step) % n], (rank - 1) % n)
        chunks[(rank - step) % n].copy_(came)
    return flat.reshape(tensor.shape)
