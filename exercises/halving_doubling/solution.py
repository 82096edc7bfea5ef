"""Exercise: recursive halving and doubling, the bytes of a ring in the steps of a tree."""

import torch


def halving_doubling(mesh, tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' tensors, on every rank.

    P is the largest power of two up to N. The tensor is made flat, padded with zeros to a multiple
    of P and cut into P chunks. Fold: N - P ranks are too many; rank 2k, for k < N - P, first sends
    all it has to rank 2k + 1, which adds it, and gets the sum from there at the end. The ranks that
    are left take the places 0 to P - 1 in their order. Halving: they swap with the partner at
    distance P/2, P/4, ..., 1 (in places); each keeps half of the chunks that it still had, sends
    the other half and adds what arrives. Then each rank has one finished chunk. Doubling: the same
    partners in the opposite order; each sends all finished chunks that it has, so that their number
    doubles.

    mesh: mesh.rank, mesh.world_size, mesh.sendrecv(dst, tensor, src) -> tensor (also send, recv).
    tensor: any shape (also 0-dim and empty), any number of elements, any dtype, strided or not, the
    same on every rank. It is left alone.
    Returns a new tensor of the same shape and dtype, without the padding.
    Price: 2 log2 P steps, and each of the P ranks sends 2(P - 1)/P of the padded tensor; where N is
    no power of two, two more steps of the whole padded tensor.
    """
    rank, world_size = mesh.rank, mesh.world_size
    size = 1 << (world_size.bit_length() - 1)  # P
    numel = tensor.numel()
    per_chunk = -(-numel // size)  # division, rounded up
    padded = torch.zeros(size * per_chunk, dtype=tensor.dtype)
    padded[:numel] = tensor.reshape(-1)
    chunks = padded.view(size, per_chunk)  # row k is chunk k

    extra = world_size - size
    if rank < 2 * extra and rank % 2 == 0:  # the fold: this rank leans on its right neighbour
        mesh.send(rank + 1, padded)
        return mesh.recv(rank + 1)[:numel].reshape(tensor.shape)
    if rank < 2 * extra:
        padded += mesh.recv(rank - 1)
    place = rank // 2 if rank < 2 * extra else rank - extra  # among the P

    def rank_at(place):
        return 2 * place + 1 if place < extra else place + extra

    distance = size // 2
    while distance:  # halve: of 2 * distance chunks keep those on the own side
        mine = place // distance * distance  # the block of chunks that `place` lies in
        theirs = mine ^ distance
        partner = rank_at(place ^ distance)
        came = mesh.sendrecv(partner, chunks[theirs : theirs + distance], partner)
        chunks[mine : mine + distance] += came
        distance //= 2
    distance = 1
    while distance < size:  # double: swap finished blocks, each twice as long as the one before
        mine = place // distance * distance
        theirs = mine ^ distance
        partner = rank_at(place ^ distance)
        came = mesh.sendrecv(partner, chunks[mine : mine + distance], partner)
        chunks[theirs : theirs + distance] = came
        distance *= 2

    if rank < 2 * extra:
        mesh.send(rank - 1, padded)
    return padded[:numel].reshape(tensor.shape)
