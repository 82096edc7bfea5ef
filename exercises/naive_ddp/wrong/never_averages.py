"""Sends no gradients."""

import torch

CHECK = "averages"
SAYS = "Nothing was sent"


def share_parameters(module: torch.nn.Module, comm) -> None:
    for parameter in module.parameters():
        comm.broadcast(parameter, 0)


def average_gradients(module: torch.nn.Module, comm) -> None:
    pass
