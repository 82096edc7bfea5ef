"""Never averages at all."""

import contextlib

import torch

CHECK = "averages"
SAYS = "never averaged"


class Replica(torch.nn.Module):
    """A module whose gradients are averaged, unless its forward ran in no_sync()."""

    def __init__(self, module, comm):
        super().__init__()
        self.module, self.comm = module, comm
        self.sync = True  # what the next forward will go by
        self.average_now = False  # what the last forward went by
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.requires_grad_()

    def forward(self, *inputs):
        self.average_now = self.sync
        return self.module(*inputs)

    def average(self, parameter):
        if self.average_now:
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
