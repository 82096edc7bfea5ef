"""Never asks whether the rank to send to exists: fails unless N is a power of two."""

import torch

CHECK = "runs"
SAYS = "the world size is not a power of two"


def broadcast(mesh, tensor: torch.Tensor, src: int) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    from_root = (rank - src) % n
    result, have = tensor.clone(), 1
    while have < n:
        if from_root < have:
            partner = from_root + have
            assert partner < n, "nobody there"
            mesh.send((partner + src) % n, result)
        elif from_root < 2 * have:
            result = mesh.recv((rank - have) % n)
        have *= 2
    return result
