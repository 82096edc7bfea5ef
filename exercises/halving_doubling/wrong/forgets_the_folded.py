"""The ranks too many get the sum, but their own part is not in it."""

import torch

CHECK = "values"
SAYS = "the part of rank 0 is missing"


def halving_doubling(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    power = 1 << (n.bit_length() - 1)
    size = -(-tensor.numel() // power)
    padded = torch.zeros(power * size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(power, size)
    extra = n - power
    if rank < 2 * extra and rank % 2 == 0:
        return mesh.recv(rank + 1)[: tensor.numel()].reshape(tensor.shape)
    ranks = [r for r in range(n) if r >= 2 * extra or r % 2]
    place = ranks.index(rank)
    d = power // 2
    while d:
        mine, partner = place // d * d, ranks[place ^ d]
        theirs = mine ^ d
        chunks[mine : mine + d] += mesh.sendrecv(partner, chunks[theirs : theirs + d], partner)
        d //= 2
    d = 1
    while d < power:
        mine, partner = place // d * d, ranks[place ^ d]
        theirs = mine ^ d
        chunks[theirs : theirs + d] = mesh.sendrecv(partner, chunks[mine : mine + d], partner)
        d *= 2
    if rank < 2 * extra:
        mesh.send(rank - 1, padded)
    return padded[: tensor.numel()].reshape(tensor.shape)
