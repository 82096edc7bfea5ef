"""After the tree, every rank hands the tensor to its right neighbour once more, to be safe."""

import torch

CHECK = "messages"
SAYS = "receives"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    from_root = (rank - src) % n
    result, have = tensor.clone(), 1
    while have < n:
        if from_root < have and from_root + have < n:
            mesh.send((rank + have) % n, result)
        elif have <= from_root < 2 * have:
            result = mesh.recv((rank - have) % n)
        have *= 2
    if n > 1:
        result = mesh.sendrecv((rank + 1) % n, result, (rank - 1) % n)
    return result
