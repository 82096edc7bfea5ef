"""Flattens first, which may make a copy."""

import torch

CHECK = "parameters"
SAYS = "row after row"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        comm.broadcast(parameter.detach().reshape(-1), 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= comm.world_size
            comm.all_reduce(parameter.grad)
