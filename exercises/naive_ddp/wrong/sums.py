"""Takes the sum for the average."""

import torch

CHECK = "averages"
SAYS = "It is the sum"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        comm.broadcast(parameter, 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            comm.all_reduce(parameter.grad)
