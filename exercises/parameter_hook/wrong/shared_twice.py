"""A shared weight gets two hooks: an average of averages hides it."""

import torch

CHECK = "ready"
SAYS = "A shared weight is one parameter"


def average_gradients(module: torch.nn.Module, comm) -> None:

    def average(parameter):
        parameter.grad /= comm.world_size
        comm.all_reduce(parameter.grad)

    for _, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)
