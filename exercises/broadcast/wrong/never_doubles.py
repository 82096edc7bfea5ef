"""Forgets to double: the loop never ends."""

import torch

CHECK = "terminates"
SAYS = "endless loop"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    from_root = (rank - src) % n
    result, have = tensor.clone(), 1
    while have < n:
        if have <= from_root < 2 * have and from_root < 0:
            result = mesh.recv((rank - have) % n)
    return result
