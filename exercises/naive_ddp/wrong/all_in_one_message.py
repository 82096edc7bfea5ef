"""Sends all gradients together."""

import torch

CHECK = "collectives"
SAYS = "goes by itself"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        comm.broadcast(parameter, 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / comm.world_size
    comm.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view(gradient.shape))
