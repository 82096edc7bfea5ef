"""Loops until all rows are there, and counts none."""

import torch

CHECK = "terminates"
SAYS = "That is the line at which it was when time was up"


def ring_allgather(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    rows = torch.zeros(n, *tensor.shape, dtype=tensor.dtype)
    rows[rank] = tensor
    received = 0
    while received < n - 1:
        rows[(rank - 1) % n] = tensor
    return rows
