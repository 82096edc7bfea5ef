"""Partners by rank ^ distance among all N ranks: there are none for some, unless N is a power of two."""

import torch

CHECK = "runs"
SAYS = "the world size is not a power of two"


def halving_doubling(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    power = 1 << (n - 1).bit_length()
    size = -(-tensor.numel() // power)
    padded = torch.zeros(power * size, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    chunks = padded.view(power, size)
    place, ranks = rank, range(power)
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
    return padded[: tensor.numel()].reshape(tensor.shape)
