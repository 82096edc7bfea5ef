"""Averages a copy, and leaves it at that."""

import torch

CHECK = "averages"
SAYS = "in .grad itself"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        comm.broadcast(parameter, 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            comm.all_reduce(parameter.grad / comm.world_size)
