"""Sends before a tensor that would not fit."""

from collections import defaultdict

import torch

CHECK = "messages"
SAYS = "it may hold more"


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
        group = waiting[tensor.dtype]
        if group and sum(t.numel() * t.element_size() for t in [*group, tensor]) > cap:
            send(waiting.pop(tensor.dtype), src, comm)
        waiting[tensor.dtype].append(tensor)
    for rest in waiting.values():
        send(rest, src, comm)
