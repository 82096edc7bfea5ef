"""Only rank 0 asks for the sum."""

import torch

CHECK = "agree"
SAYS = "A rank has come to the end without talking"


def average_gradients(module: torch.nn.Module, comm) -> None:
    def average(parameter):
        parameter.grad /= comm.world_size
        if comm.rank == 0:
            comm.all_reduce(parameter.grad)

    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)
