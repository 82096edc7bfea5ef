"""The root sends to everyone itself: N - 1 steps instead of ceil(log2 N)."""

import torch

CHECK = "bytes"
SAYS = "The root sends to everyone itself"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    if mesh.rank != src:
        return mesh.recv(src)
    for dst in range(mesh.world_size):
        if dst != src:
            mesh.send(dst, tensor)
    return tensor.clone()
