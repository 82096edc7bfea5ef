"""Puts what arrives one below the other instead of in the row of the rank that it comes from."""

import torch

CHECK = "values"
SAYS = "The rows stand in the order of arrival"


def ring_allgather(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    arrived = [tensor.clone()]
    for _ in range(n - 1):
        arrived.append(mesh.sendrecv((rank + 1) % n, arrived[-1], (rank - 1) % n))
    return torch.stack(arrived)
