"""Sends zeros for what has no gradient."""

import torch

CHECK = "averages"
SAYS = "not zeros"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        comm.broadcast(parameter, 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad /= comm.world_size
        comm.all_reduce(parameter.grad)
