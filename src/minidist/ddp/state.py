"""The state of a module on all ranks: verified, made equal, its buffers kept so."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minidist.ddp.buckets import compute_bucket_assignment_by_size
from minidist.ddp.errors import RanksDisagree
from minidist.ddp.roll_call import RollCall

BROADCAST_BYTES = 250 * 1024 * 1024  # a cap on what is flattened at once, not what is sent
IN_FLIGHT = 2


def broadcast_coalesced(
    group: dist.ProcessGroup, tensors: Sequence[Tensor], cap: int, src: int
) -> None:
    """Give every rank the values of rank `src` (of the group): few large messages, not many small.

    Tensors of one dtype and device are flattened together, up to `cap` bytes; two flat tensors are
    on their way at most. Bytes: those of the tensors, plus a copy of as many.
    Autograd does not count it as a change of the tensors: a buffer that a graph has saved may be
    synchronised before that graph's backward.
    """
    if not tensors:
        return
    on_the_way: deque[tuple[dist.Work, Tensor, list[Tensor]]] = deque()

    def land() -> None:
        work, flat, parts = on_the_way.popleft()
        work.wait()
        if dist.get_rank(group) != src:
            for part, piece in zip(parts, flat.split([p.numel() for p in parts]), strict=True):
                part.copy_(piece.view(part.shape))

    detached = [tensor.data for tensor in tensors]
    for indices in compute_bucket_assignment_by_size(detached, [cap])[0]:
        if len(on_the_way) == IN_FLIGHT:
            land()
        parts = [detached[i] for i in indices]
        flat = torch.cat([part.reshape(-1) for part in parts])
        work = dist.broadcast(flat, group=group, group_src=src, async_op=True)
        on_the_way.append((work, flat, parts))
    while on_the_way:
        land()


def state_of(module: nn.Module, ignored: set[str], with_buffers: bool = True) -> list[Tensor]:
    """Its parameters, then its buffers, less the ignored ones."""
    named = [*module.named_parameters(), *(module.named_buffers() if with_buffers else ())]
    return [tensor for name, tensor in named if name not in ignored]


def modules_of(module: nn.Module) -> list[nn.Module]:
    """It and all modules inside it, each once: `modules()` without the time that names take.

    For what must be looked at in every forward.
    """
    found = {module: None}
    todo = [module]
    while todo:
        for child in todo.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                todo.append(child)
    return list(found)


def buffers_of(module: nn.Module, ignored: set[str]) -> dict[str, Tensor]:
    """Its buffers by name: collected anew at each use, for a module may assign new ones."""
    return {name: buffer for name, buffer in module.named_buffers() if name not in ignored}


def verify_parameters(named: Sequence[tuple[str, Tensor]], roll_call: RollCall) -> None:
    """Check that all ranks have the same parameters: as many, in one order, of one layout.

    PyTorch compares each rank with rank 0: one that differs raises, the others wait for it. Here
    every rank learns the layouts of all, and all raise the same RanksDisagree.
    """
    mine = [Layout(name, str(p.dtype), tuple(p.shape), p.stride()) for name, p in named]
    layouts = roll_call.gather(mine)
    for rank, theirs in enumerate(layouts):
        for i, (first, other) in enumerate(zip_longest(layouts[0], theirs)):
            if first != other:
                raise RanksDisagree(
                    f"the modules differ at parameter {i}: rank 0 has {first or 'none there'}, "
                    f"rank {rank} has {other or 'none there'}. All ranks must wrap the same module."
                )


class Layout(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __str__(self) -> str:
        dtype = self.dtype.removeprefix("torch.")
        return f"{self.name} ({dtype} {[*self.shape]}, strides {[*self.stride]})"
