"""Only rank 0 broadcasts."""

import torch

CHECK = "agree"
SAYS = "same collectives"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if comm.rank == 0:
            comm.broadcast(parameter, 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= comm.world_size
            comm.all_reduce(parameter.grad)
