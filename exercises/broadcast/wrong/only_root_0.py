"""Ignores src: the tree always starts at rank 0."""

import torch

CHECK = "values"
SAYS = "The tensor of rank 0 was handed out, but src is"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    result, have = tensor.clone(), 1
    while have < n:
        if rank < have and rank + have < n:
            mesh.send(rank + have, result)
        elif have <= rank < 2 * have:
            result = mesh.recv(rank - have)
        have *= 2
    return result
