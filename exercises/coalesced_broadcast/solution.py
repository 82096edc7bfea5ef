"""Exercise: many tensors in few messages."""

from collections import defaultdict

import torch


def send(tensors: list[torch.Tensor], src: int, comm) -> None:
    """One broadcast for tensors of one dtype."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    comm.broadcast(flat, src)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view(tensor.shape))


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
    waiting = defaultdict(list)
    for tensor in tensors:
        tensor = tensor.detach()  # the same memory; autograd does not look on
        group = waiting[tensor.dtype]
        group.append(tensor)
        if sum(t.numel() * t.element_size() for t in group) >= cap:
            send(waiting.pop(tensor.dtype), src, comm)
    for rest in waiting.values():
        send(rest, src, comm)
