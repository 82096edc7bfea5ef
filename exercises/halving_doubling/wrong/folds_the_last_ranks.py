"""The last N - P ranks lean on the first: right, but other pairs than agreed upon."""

import torch

CHECK = "messages"
SAYS = "leans on"


def halving_doubling(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    power = 1 << (n.bit_length() - 1)
    size = -(-tensor.numel() // power)
    padded = torch.zeros(power * size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(power, size)
    extra = n - power
    if rank >= power:
        mesh.send(rank - power, padded)
        return mesh.recv(rank - power)[: tensor.numel()].reshape(tensor.shape)
    if rank < extra:
        padded += mesh.recv(rank + power)
    ranks = [r for r in range(n) if r < power]
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
    if rank < extra:
        mesh.send(rank + power, padded)
    return padded[: tensor.numel()].reshape(tensor.shape)
