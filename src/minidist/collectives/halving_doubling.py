"""Allreduce by recursive halving and doubling: as few bytes as the ring, as few steps as a tree."""

from __future__ import annotations

from torch import Tensor

from minidist.collectives.chunks import join, split
from minidist.mesh import Mesh


def halving_doubling_allreduce(mesh: Mesh, tensor: Tensor) -> Tensor:
    """Sum over ranks: halve what you are responsible for until it is one chunk, then double back.

    tensor: any shape and length, the same on every rank. Returns a new tensor, bit for bit the
    same on every rank; the input is left alone.
    Steps: 2 log2 P for P the largest power of two up to N. Bytes sent per rank: 2(P - 1)/P T. If N
    is no power of two, N - P ranks first hand their tensor to a neighbour and get the sum at the
    end, two more steps of T bytes.
    Raises MessageMismatch if a rank's dtype or chunk size differs.
    Source: Rabenseifner's algorithm, in Thakur, Rabenseifner and Gropp, 2005.
    """
    rank, world_size = mesh.rank, mesh.world_size
    size = 1 << (world_size.bit_length() - 1)  # P
    extra = world_size - size
    chunks = split(tensor, size)

    # Fold: of the first 2 * extra ranks, the even ones lean on the odd ones.
    if rank < 2 * extra and rank % 2 == 0:
        mesh.send(rank + 1, chunks)
        return join(mesh.recv(rank + 1, like=chunks), like=tensor)
    if rank < 2 * extra:
        chunks += mesh.recv(rank - 1, like=chunks)
    member = rank // 2 if rank < 2 * extra else rank - extra

    def partner_at(distance: int) -> int:
        other = member ^ distance
        return 2 * other + 1 if other < extra else other + extra

    # Halve: of a block of 2 * distance chunks keep the half that `member` lies in.
    distance = size // 2
    while distance:
        mine = member & ~(distance - 1)
        theirs = mine ^ distance
        partner = partner_at(distance)
        kept = chunks[mine : mine + distance]
        kept += mesh.sendrecv(partner, chunks[theirs : theirs + distance], partner)
        distance //= 2
    # Double: swap finished blocks, each twice as long as the one before.
    distance = 1
    while distance < size:
        mine = member & ~(distance - 1)
        theirs = mine ^ distance
        partner = partner_at(distance)
        chunks[theirs : theirs + distance] = mesh.sendrecv(
            partner, chunks[mine : mine + distance], partner
        )
        distance *= 2

    if rank < 2 * extra:
        mesh.send(rank - 1, chunks)
    return join(chunks, like=tensor)
