"""Broadcasts a copy of each parameter."""

import torch

CHECK = "parameters"
SAYS = "not in a copy"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        comm.broadcast(parameter.detach().clone(), 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= comm.world_size
            comm.all_reduce(parameter.grad)
