"""Hands whole tensors around the ring and adds each as it comes by: N - 1 tensors per rank."""

import torch

CHECK = "bytes"
SAYS = "Each step sends the whole tensor"


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    total, travelling = tensor.clone(), tensor
    for _ in range(n - 1):
        travelling = mesh.sendrecv((rank + 1) % n, travelling, (rank - 1) % n)
        total += travelling
    return total
