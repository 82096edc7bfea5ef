"""Counts ranks from the root, but receives from the rank counted from 0: sender and receiver miss."""

import torch

CHECK = "terminates"
SAYS = "which has already returned"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    from_root = (rank - src) % n
    result, have = tensor.clone(), 1
    while have < n:
        if from_root < have and from_root + have < n:
            mesh.send((rank + have) % n, result)
        elif have <= from_root < 2 * have:
            peer = from_root - have
            result = mesh.recv(peer if peer != rank else (rank + 1) % n)
        have *= 2
    return result
