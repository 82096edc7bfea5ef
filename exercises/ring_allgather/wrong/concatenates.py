"""Puts the tensors behind one another instead of stacking them: another shape."""

import torch

CHECK = "result"
SAYS = "another shape"


def ring_allgather(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    rows = [tensor.clone()] * n
    for step in range(n - 1):
        outgoing = rows[(rank - step) % n]
        rows[(rank - step - 1) % n] = mesh.sendrecv((rank + 1) % n, outgoing, (rank - 1) % n)
    return torch.cat([row.reshape(-1) for row in rows])
