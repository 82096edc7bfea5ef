"""Leaves out the frozen parameters at the start."""

import torch

CHECK = "parameters"
SAYS = "take part in the forward"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad:
            comm.broadcast(parameter, 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= comm.world_size
            comm.all_reduce(parameter.grad)
