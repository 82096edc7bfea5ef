"""Buckets: which gradients travel together, and the flat tensor in which they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MIB = 1024 * 1024
DEFAULT_CAP_MB = 25
FIRST_BUCKET_BYTES = MIB  # small, so that the first all-reduce starts early
UNBOUNDED = (1 << 63) - 1


def compute_bucket_assignment_by_size(
    tensors: Sequence[Tensor],
    bucket_size_limits: Sequence[int],
    expect_sparse_gradient: Sequence[bool] = (),
    tensor_indices: Sequence[int] = (),
) -> tuple[list[list[int]], list[int]]:
    """Deal tensors into buckets, in their order; per bucket its indices, and the limit it had.

    A bucket holds one dtype on one device, and is closed as soon as it holds `limit` bytes: it may
    hold more, by the tensor that came last. Each kind of tensor goes through the limits by itself;
    the last limit repeats. A tensor whose gradient will be sparse is alone in its bucket.
    tensor_indices: what to call tensor i (else i). Then the buckets stay in the order in which they
    were closed; without, they are sorted by their first index.
    Raises ValueError for no tensors, no limits, or a sparse tensor.
    As torch.distributed._compute_bucket_assignment_by_size (C++).
    """
    if not tensors or not bucket_size_limits:
        raise ValueError("buckets need at least one tensor and one size limit")
    if any(tensor.layout != torch.strided for tensor in tensors):
        raise ValueError("a bucket is for dense tensors; of a sparse gradient, give the parameter")
    indices = tensor_indices or range(len(tensors))
    closed: list[tuple[list[int], int]] = []
    open_: dict[tuple[torch.dtype, torch.device], _Open] = {}
    for index, tensor in zip(indices, tensors, strict=True):
        if expect_sparse_gradient and expect_sparse_gradient[index]:
            closed.append(([index], 0))
            continue
        bucket = open_.setdefault((tensor.dtype, tensor.device), _Open())
        bucket.indices.append(index)
        bucket.nbytes += tensor.numel() * tensor.element_size()
        limit = bucket_size_limits[min(bucket.closed, len(bucket_size_limits) - 1)]
        if bucket.nbytes >= limit:
            closed.append((bucket.indices, limit))
            bucket.indices, bucket.nbytes, bucket.closed = [], 0, bucket.closed + 1
    # The C++ one walks a hash map here, which in practice gives the newest kind first.
    for bucket in reversed(open_.values()):
        if bucket.indices:
            limit = bucket_size_limits[min(bucket.closed, len(bucket_size_limits) - 1)]
            closed.append((bucket.indices, limit))
    if not tensor_indices:
        closed.sort(key=lambda bucket: bucket[0][0])
    return [indices for indices, _ in closed], [limit for _, limit in closed]


@dataclass
class _Open:
    """The bucket of one kind of tensor that is being filled."""

    indices: list[int] = field(default_factory=list)
    nbytes: int = 0
    closed: int = 0  # buckets of this kind before it


def size_limits(
    bucket_cap_mb: float | None, bucket_cap_mb_list: Sequence[float] | None, *, unordered: bool
) -> tuple[list[int], list[int]]:
    """The limits, in bytes, of the buckets of the first iteration and of those after it.

    The order in which gradients become ready is not known in the first iteration. With
    `unordered`, it is not guessed either: one bucket for all (per dtype and device).
    The small first bucket exists only if no cap is given.
    """
    if bucket_cap_mb_list:
        caps = [int(mb * MIB) for mb in bucket_cap_mb_list]
        return caps, caps
    if bucket_cap_mb is None:
        caps = [FIRST_BUCKET_BYTES, DEFAULT_CAP_MB * MIB]
    else:
        caps = [int(bucket_cap_mb * MIB)]
    return ([UNBOUNDED] if unordered else caps), caps


class Bucket:
    """Some parameters, and one flat tensor in which their gradients travel.

    `views[k]` is the place of parameter k's gradient in `flat`, in that parameter's own strides, so
    that a gradient is copied element by element whatever the layout. A bucket whose gradient is
    sparse has no flat tensor: it holds the gradient itself while that travels.
    """

    def __init__(self, indices: list[int], parameters: Sequence[Tensor], sparse: bool):
        self.indices = indices
        self.parameters = list(parameters)
        self.sparse = sparse
        self.pending = len(indices)  # gradients that are not ready yet
        self.reduction: Reduction | None = None  # once it is launched
        first = self.parameters[0]
        if any((p.dtype, p.device) != (first.dtype, first.device) for p in self.parameters):
            raise ValueError("the parameters of a bucket must have one dtype and one device")
        self._dense = [is_dense(p) for p in self.parameters]
        self.flat: Tensor | None = None
        self.views: list[Tensor] = []
        if not sparse:
            self.flat = torch.empty(
                sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device
            )
            self.views = self.views_of(self.flat)

    @property
    def nbytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.parameters)

    def zeros(self) -> Tensor:
        """What a rank sends that has no gradient for this bucket."""
        if not self.sparse:
            return torch.zeros_like(self.flat)
        (parameter,) = self.parameters
        # As of an embedding: its indices say which rows, and the values are whole rows.
        no_rows = torch.empty(1, 0, dtype=torch.int64, device=parameter.device)
        values = torch.empty_like(parameter[:0])
        return torch.sparse_coo_tensor(
            no_rows, values, parameter.shape, is_coalesced=True, check_invariants=True
        )

    def views_of(self, flat: Tensor) -> list[Tensor]:
        """The gradients in a flat tensor of this bucket's size, each in its parameter's strides."""
        views, offset = [], 0
        for parameter, dense in zip(self.parameters, self._dense, strict=True):
            part = flat[offset : offset + parameter.numel()]
            offset += parameter.numel()
            if dense:
                views.append(part.as_strided(parameter.shape, parameter.stride()))
            else:
                views.append(part.view(parameter.shape))
        return views


class Reduction:
    """A bucket on its way: the work of a collective, or the future of a communication hook."""

    def __init__(self, result: Tensor | None = None, work: Any = None, future: Any = None):
        self._result, self._work, self._future = result, work, future

    def wait(self) -> Tensor:
        """The flat tensor that came of it."""
        if self._work:
            self._work.wait()
            return self._result
        return self._future.wait()

    def when_done(self, call: Callable[[], object]) -> None:
        future = self._work.get_future() if self._work else self._future
        future.add_done_callback(lambda _: call())


def is_alias(one: Tensor, other: Tensor) -> bool:
    """Whether the two are views of one storage."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill their storage range without gaps or overlaps, in any order."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()
