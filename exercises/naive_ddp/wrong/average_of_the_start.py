"""Averages the parameters of the ranks at the start."""

import torch

CHECK = "parameters"
SAYS = "of rank 0 that all"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        with torch.no_grad():
            parameter /= comm.world_size
        comm.all_reduce(parameter)


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= comm.world_size
            comm.all_reduce(parameter.grad)
