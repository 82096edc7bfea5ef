"""N - 2 steps instead of N - 1: the tensor of the right neighbour never arrives."""

import torch

CHECK = "values"
SAYS = "was never filled"


def ring_allgather(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    rows = torch.zeros(n, *tensor.shape, dtype=tensor.dtype)
    rows[rank] = tensor
    for step in range(n - 2):
        outgoing = rows[(rank - step) % n]
        rows[(rank - step - 1) % n] = mesh.sendrecv((rank + 1) % n, outgoing, (rank - 1) % n)
    return rows
