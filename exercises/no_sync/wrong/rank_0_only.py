"""Only rank 0 asks for the sum."""

import contextlib

import torch

CHECK = "agree"
SAYS = "A rank has come to the end without talking"


class Replica(torch.nn.Module):

    def __init__(self, module, comm):
        super().__init__()
        self.module, self.comm = module, comm
        self.sync = True  # what the next forward will go by
        self.average_now = False  # what the last forward went by
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.average)

    def forward(self, *inputs):
        self.average_now = self.sync
        return self.module(*inputs)

    def average(self, parameter):
        if self.average_now and self.comm.rank == 0:
            parameter.grad /= self.comm.world_size
            self.comm.all_reduce(parameter.grad)

    @contextlib.contextmanager
    def no_sync(self):
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before


def data_parallel(module: torch.nn.Module, comm) -> torch.nn.Module:
    return Replica(module, comm)
