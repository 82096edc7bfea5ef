"""Sums over the ranks and does not divide."""

import torch

CHECK = "averages"
SAYS = "It is the sum over ranks"


def average_gradients(module: torch.nn.Module, comm) -> None:

    def average(parameter):
        comm.all_reduce(parameter.grad)

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)
