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
    raise NotImplementedError
