"""Receives into the tensor that it was given, as torch.distributed's broadcast does."""

import torch

CHECK = "input"
SAYS = "changed its input"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    from_root = (rank - src) % n
    have = 1
    while have < n:
        if from_root < have and from_root + have < n:
            mesh.send((rank + have) % n, tensor)
        elif have <= from_root < 2 * have:
            tensor.copy_(mesh.recv((rank - have) % n))
        have *= 2
    return tensor.clone()
