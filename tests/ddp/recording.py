"""The torch.distributed backend "recording": gloo, and a list of what was asked of it.

A group of this backend forwards every call to a gloo group on the same ranks and notes the name of
the call and how much it moves. That shows what PyTorch's DDP really sends: its C++ calls come
through here, too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Recording(dist.ProcessGroup):
    def __init__(self, options: Any):
        super().__init__(options.group_rank, options.group_size)
        self._group_name = options.group_id
        self._gloo = dist.ProcessGroupGloo(
            options.store, options.group_rank, options.group_size, options.timeout
        )
        self.calls: list[tuple[str, list[int], str]] = []  # name, shape, dtype

    def _note(self, name: str, tensors: list[Tensor]) -> None:
        (tensor,) = tensors
        if (
            tensor.is_complex()
        ):  # as torch.distributed's Python half does, and its C++ half does not
            tensor = torch.view_as_real(tensor)
        # How many entries a sparse gradient has depends on the data: its shape is enough.
        shape = [*tensor.shape] if tensor.is_sparse else [tensor.numel()]
        self.calls.append((name, shape, str(tensor.dtype).removeprefix("torch.")))

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        if isinstance(tensors, Tensor):  # PyTorch's Join does so
            tensors, opts = [tensors], dist.AllreduceOptions()
        self._note("all_reduce", tensors)
        return self._gloo.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        self._note(f"broadcast from {opts.rootRank}", tensors)
        return self._gloo.broadcast(tensors, opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        self._note("all_gather", inputs)
        return self._gloo.allgather(outputs, inputs, opts)

    def barrier(self, opts: Any) -> Any:
        return self._gloo.barrier(opts)

    def getBackendName(self) -> str:
        return "recording"

    def name(self) -> str:
        return "recording"

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]


dist.Backend.register_backend(
    "recording", lambda options, _: Recording(options), extended_api=True, devices=["cpu"]
)
