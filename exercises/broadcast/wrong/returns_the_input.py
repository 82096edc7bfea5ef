"""The root has the tensor already and returns that very tensor."""

import torch

CHECK = "input"
SAYS = "Whoever writes to the result would change the input"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    from_root = (rank - src) % n
    result, have = tensor, 1
    while have < n:
        if from_root < have and from_root + have < n:
            mesh.send((rank + have) % n, result)
        elif have <= from_root < 2 * have:
            result = mesh.recv((rank - have) % n)
        have *= 2
    return result
