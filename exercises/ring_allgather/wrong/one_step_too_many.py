"""N steps instead of N - 1: in the last one every rank gets its own tensor back."""

import torch

CHECK = "bytes"
SAYS = "messages where"


def ring_allgather(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    rows = torch.zeros(n, *tensor.shape, dtype=tensor.dtype)
    rows[rank] = tensor
    for step in range(n if n > 1 else 0):
        outgoing = rows[(rank - step) % n]
        rows[(rank - step - 1) % n] = mesh.sendrecv((rank + 1) % n, outgoing, (rank - 1) % n)
    return rows
