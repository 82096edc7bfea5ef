"""Halves what there is, rounded down: partners disagree on how much that is."""

import torch

CHECK = "runs"
SAYS = "Pad so that all chunks have one size"


def halving_doubling(mesh, tensor: torch.Tensor) -> torch.Tensor:
    rank, n = mesh.rank, mesh.world_size
    power = 1 << (n.bit_length() - 1)
    flat = tensor.reshape(-1).clone()
    if rank >= power:
        mesh.send(rank - power, flat)
        return mesh.recv(rank - power).reshape(tensor.shape)
    if rank + power < n:
        flat += mesh.recv(rank + power)
    d, low, high, cuts = power // 2, 0, flat.numel(), []
    while d:
        middle = (low + high) // 2
        cuts.append((low, middle, high))
        mine, theirs = ((low, middle), (middle, high))[:: 1 if rank & d == 0 else -1]
        came = mesh.sendrecv(rank ^ d, flat[slice(*theirs)], rank ^ d)
        flat[slice(*mine)] += came
        (low, high), d = mine, d // 2
    d = 1
    for low, middle, high in reversed(cuts):
        mine, theirs = ((low, middle), (middle, high))[:: 1 if rank & d == 0 else -1]
        flat[slice(*theirs)] = mesh.sendrecv(rank ^ d, flat[slice(*mine)], rank ^ d)
        d *= 2
    if rank + power < n:
        mesh.send(rank + power, flat)
    return flat.reshape(tensor.shape)
