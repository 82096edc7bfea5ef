"""Sends what is open when the dtype changes."""

from collections import defaultdict

import torch

CHECK = "messages"
SAYS = "keeps its flat tensor open"


def send(tensors: list[torch.Tensor], src: int, comm) -> None:
    """One broadcast for tensors of one dtype."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    comm.broadcast(flat, src)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view(tensor.shape))


def coalesced_broadcast(tensors: list[torch.Tensor], cap: int, src: int, comm) -> None:
    waiting = defaultdict(list)
    for tensor in tensors:
        tensor = tensor.detach()  # the same memory; autograd does not look on
        if tensor.dtype not in waiting:
            for others in waiting.values():
                send(others, src, comm)
            waiting.clear()
        group = waiting[tensor.dtype]
        group.append(tensor)
        if sum(t.numel() * t.element_size() for t in group) >= cap:
            send(waiting.pop(tensor.dtype), src, comm)
    for rest in waiting.values():
        send(rest, src, comm)
