"""Exercise: many tensors in few messages."""

from collections import defaultdict

import torch


def coalesced_broadcast(tensors: list[torch.Tensor], cap: int, src: int, comm) -> None:
    """Give every rank the values of rank src, in place: few large messages, not many small.

    Tensors of one dtype are flattened together, in their order; a flat tensor is sent as soon as it
    holds cap bytes or more. What is left over at the end is sent too.

    tensors: of the same dtypes and shapes on every rank; parameters among them, empty ones, and
    such as are transposed in memory. There may be none. cap: at least 1.
    comm: comm.rank, comm.world_size, comm.broadcast(tensor, src), which gives every rank the values
    of rank src, in place.
    Price: one broadcast for each flat tensor, of its bytes.
    """
    raise NotImplementedError
