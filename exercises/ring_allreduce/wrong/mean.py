"""Divides by N at the end, as DDP does with gradients: allreduce means the sum."""

import torch

CHECK = "values"
SAYS = "This is the mean"


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    size = -(-tensor.numel() // n)
    padded = torch.zeros(n * size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(n, size)
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank - step) % n], (rank - 1) % n)
        chunks[(rank - step - 1) % n] += came
    for step in range(n - 1):
        came = mesh.sendrecv((rank + 1) % n, chunks[(rank + 1 - step) % n], (rank - 1) % n)
        chunks[(rank - step) % n] = came
    return (padded[: tensor.numel()].reshape(tensor.shape) / n).to(tensor.dtype)
