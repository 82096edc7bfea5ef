"""Communication hooks: what happens to a full bucket instead of a plain average.

A hook gets its state and a GradBucket whose gradients are *not* divided by the world size yet, and
returns a Future of the flat tensor that takes their place. PyTorch's own hooks
(torch.distributed.algorithms.ddp_comm_hooks: PowerSGD, for example) run on these buckets as they
are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from minidist.ddp.buckets import Bucket


@dataclass
class GradBucket:
    """A full bucket, as a hook sees it. As torch.distributed.GradBucket."""

    _bucket: Bucket
    _index: int
    _count: int
    _buffer: Tensor

    def index(self) -> int:
        """Its place in the order in which buckets are reduced."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is the last bucket of this backward pass."""
        return self._index == self._count - 1

    def buffer(self) -> Tensor:
        """The flat tensor of all its gradients, (n,); of a sparse bucket, the gradient."""
        return self._buffer

    def set_buffer(self, tensor: Tensor) -> None:
        """Let another tensor of the same size take the place of the flat tensor."""
        self._buffer = tensor

    def gradients(self) -> list[Tensor]:
        """Each parameter's gradient, as a view into buffer()."""
        return [self._buffer] if self._bucket.sparse else self._bucket.views_of(self._buffer)

    def parameters(self) -> list[Tensor]:
        """The parameters whose gradients these are, in the same order."""
        return self._bucket.parameters


def allreduce_hook(group: dist.ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """The average: what DDP does without a hook. One all-reduce of the bucket's bytes."""
    buffer = bucket.buffer().div_(dist.get_world_size(group))
    return _all_reduced(buffer, group, lambda total: total)


def fp16_compress_hook(group: dist.ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """The average of gradients rounded to float16: half of float32's bytes travel."""
    return _compressed(torch.float16, group, bucket)


def bf16_compress_hook(group: dist.ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """The average of gradients rounded to bfloat16: half of float32's bytes, and its range."""
    return _compressed(torch.bfloat16, group, bucket)


def _compressed(
    dtype: torch.dtype, group: dist.ProcessGroup | None, bucket: GradBucket
) -> Future[Tensor]:
    buffer = bucket.buffer()
    # Divided before the sum: the sum of large float16 gradients would be infinite.
    small = buffer.to(dtype).div_(dist.get_world_size(group))
    return _all_reduced(small, group, buffer.copy_)


def _all_reduced(
    tensor: Tensor, group: dist.ProcessGroup | None, then: Callable[[Tensor], Tensor]
) -> Future[Tensor]:
    future: Any = dist.all_reduce(tensor, group=group, async_op=True).get_future()
    return future.then(lambda done: then(done.value()[0]))
