"""Sends only what is full."""

from collections import defaultdict

import torch

CHECK = "values"
SAYS = "full or not"


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
        group.append(tensor)
        if sum(t.numel() * t.element_size() for t in group) >= cap:
            send(waiting.pop(tensor.dtype), src, comm)
