"""The Reducer: averages gradients, bucket by bucket, while the backward pass still runs.

A hook on every parameter says when its gradient is there. The gradient goes into its bucket,
divided by the world size; a bucket that is full is summed over all ranks, strictly in the order of
the buckets, for every rank must call the same collectives in the same order. When the backward pass
ends, the sums are waited for and put back.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from minidist.ddp.buckets import Bucket, Reduction, compute_bucket_assignment_by_size, is_alias
from minidist.ddp.comm_hooks import GradBucket
from minidist.ddp.errors import GraphChanged, NotSynchronized
from minidist.ddp.guard import Guard, queue_callback
from minidist.ddp.roll_call import BROKE_OFF, HAS_ALL, RollCall
from minidist.ddp.unused import reachable


class Reducer:
    """The gradients of one module on one rank.

    names, parameters: those to reduce, each once. buckets: the first iteration's, lists of indices
    of parameters. rebuild_limits: the size limits, in bytes, of those after it.
    record: called with (kind, name, bucket, bytes) as things happen; kinds are "backward", "ready",
    "launch", "done", "wait" and "finalize".
    Price of a synchronised backward: one all-reduce per bucket, the bytes of all gradients.
    As PyTorch's Reducer (torch/csrc/distributed/c10d/reducer.cpp).
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        buckets: list[list[int]],
        expect_sparse: Sequence[bool],
        group: dist.ProcessGroup,
        *,
        rebuild_limits: list[int],
        find_unused_parameters: bool,
        static_graph: bool,
        gradient_as_bucket_view: bool,
        roll_call: RollCall,
        record: Callable[[str, str, int | None, int], object] | None,
    ):
        self.names, self.parameters = list(names), list(parameters)
        self.expect_sparse = list(expect_sparse)
        self.group = group
        self.rebuild_limits = rebuild_limits
        self.find_unused_parameters = find_unused_parameters and not static_graph
        self.static_graph = static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.roll_call = roll_call
        self.record = record
        self.comm_hook: tuple[Any, Callable[[Any, GradBucket], Any]] | None = None

        self.expects_hooks = False  # between a synchronised forward and the end of its backward
        self.has_rebuilt = False
        self.ready_order: list[int] = []  # parameters, as their gradients came; for the rebuild
        self.unused: list[int] = []  # parameters that this backward will not reach
        self.used = torch.zeros(len(parameters), dtype=torch.int32)  # on this rank, since last sync
        self.used_anywhere: Any = None  # the sum of `used` over all ranks, on its way
        self.has_counted = not static_graph  # how often each parameter is used in an iteration
        self.hook_counts: list[int] = [0] * len(parameters)
        self.wait_before_finalize: list[Any] = []  # futures of a buffer hook
        self.nonjoined: dist.Work | None = None  # how many ranks still have batches
        self.divisor: int | None = None
        self.has_warned = False

        self._set_buckets(buckets)
        self.guard = Guard(self)
        # A node lives only as long as somebody holds it; its hook must not hold the reducer.
        self.accumulators = [get_gradient_edge(parameter).node for parameter in self.parameters]
        for index, node in enumerate(self.accumulators):
            node.register_hook(_hook(weakref.ref(self), index))

    # Before a backward pass

    def prepare_for_forward(self) -> None:
        """The last backward pass must have been completed."""
        self.guard.check_complete()

    def clear_away(self) -> None:
        """Go on after an exception in a backward pass."""
        if self.guard.broke_off:
            self.guard.forget_broken_pass()
            if self.expects_hooks:
                self.abandon(BROKE_OFF)

    def abandon(self, why: int) -> None:
        """Give a backward pass up, as all ranks must; what has been sent arrives first."""
        self.expects_hooks = False
        self.roll_call.call(why, self.next_bucket)
        for bucket in self.buckets[: self.next_bucket]:
            bucket.reduction.wait()
            bucket.reduction = None
        self.ready_order.clear()
        self.used_anywhere = self.divisor = self.nonjoined = None

    def prepare_for_backward(self, outputs: Sequence[Tensor]) -> None:
        """Forget the last backward pass; with find_unused_parameters, see what this one reaches."""
        self.expects_hooks = True
        self.next_bucket = 0
        self.marked: set[int] = set()
        self.unused_are_marked = False
        if self._first_static_iteration:
            self.hook_counts = [0] * len(self.parameters)
        self.hooks_to_come = self.hook_counts.copy()
        self.ready_order.clear()  # that of a backward pass which was not completed
        for bucket in self.buckets:
            bucket.pending = len(bucket.indices)
        # Without outputs, they are in an object of an unknown class: nobody can search there.
        if self.find_unused_parameters and outputs:
            seen = reachable([tensor.grad_fn for tensor in outputs])
            self.unused = [i for i, node in enumerate(self.accumulators) if node not in seen]
            if not self.unused and not self.has_warned:
                self.has_warned = True
                warnings.warn(
                    "find_unused_parameters=True, but this forward used all parameters: the search "
                    "costs a walk through the graph each time, and buckets are never rebuilt",
                    stacklevel=4,
                )

    # During a backward pass

    def autograd_hook(self, index: int) -> None:
        """Called by autograd when it has accumulated the gradient of parameter `index`."""
        first_static = self._first_static_iteration
        if self.find_unused_parameters or first_static:
            self.used[index] |= self.parameters[index].grad is not None
        self.guard.gradient(index, self.expects_hooks)
        if not self.expects_hooks:
            return
        if first_static:
            self.hook_counts[index] += 1  # how often it is used; all is reduced at the end
            return
        if not self.unused_are_marked:
            self.unused_are_marked = True
            for unused in self.unused:
                self.mark_variable_ready(unused)
        if self.static_graph:
            self.hooks_to_come[index] -= 1
            if self.hooks_to_come[index] > 0:
                return
            if self.hooks_to_come[index] < 0:
                raise GraphChanged(self.guard.graph_changed(index))
        if self.should_rebuild:
            self.ready_order.append(index)
        self.mark_variable_ready(index)

    def mark_variable_ready(self, index: int) -> None:
        """Copy a gradient into its bucket, divided; if it was the last, send the bucket."""
        if index in self.marked:
            raise NotSynchronized(self.guard.marked_twice(index))
        self.marked.add(index)
        bucket_index, place = self.locations[index]
        bucket = self.buckets[bucket_index]
        self._copy_into(bucket, place)
        if self.record:
            parameter = self.parameters[index]
            nbytes = parameter.numel() * parameter.element_size()
            self.record("ready", self.names[index], bucket_index, nbytes)
        bucket.pending -= 1
        while self.next_bucket < len(self.buckets) and not self.buckets[self.next_bucket].pending:
            self.all_reduce_bucket(self.next_bucket)
            self.next_bucket += 1
            if self.next_bucket == len(self.buckets):
                if self.find_unused_parameters:
                    self.all_reduce_used()
                queue_callback(self.finalize_backward)

    def _copy_into(self, bucket: Bucket, place: int) -> None:
        """Divide before the sum, so that float16 does not overflow; a hook divides by itself."""
        parameter = bucket.parameters[place]
        gradient = parameter.grad
        if bucket.sparse:
            if gradient is None:
                gradient = bucket.zeros()
            bucket.flat = gradient if self.comm_hook else gradient.div_(self._divisor())
            return
        view = bucket.views[place]
        if gradient is None:
            view.zero_()
            return
        if gradient.requires_grad:  # backward(create_graph=True); no_grad() costs more than a copy
            gradient = gradient.detach()
        if self.gradient_as_bucket_view and is_alias(gradient, view):
            if not self.comm_hook:
                view.div_(self._divisor())
        elif self.comm_hook:
            view.copy_(gradient)
        else:  # copies and divides in one pass over memory
            torch.mul(gradient, 1.0 / self._divisor(), out=view)
        if self.gradient_as_bucket_view:
            parameter.grad = view

    def _divisor(self) -> int:
        """The world size; in join(), if so asked, the number of ranks that still have batches."""
        if self.divisor is None:
            self.divisor = dist.get_world_size(self.group)
            if self.nonjoined:
                (count,) = self.nonjoined.get_future().wait()
                self.divisor = int(count)
        return self.divisor

    def all_reduce_bucket(self, index: int) -> None:
        """Start the sum of a bucket over all ranks, or what a communication hook does instead."""
        bucket = self.buckets[index]
        if self.record:
            self.record("launch", "", index, bucket.nbytes)
        bucket.reduction = self.reduction_of(index, bucket.flat)
        if self.record:
            bucket.reduction.when_done(lambda: self.record("done", "", index, bucket.nbytes))

    def reduction_of(self, index: int, flat: Tensor) -> Reduction:
        """Send `flat` in the place of bucket `index`'s gradients."""
        if self.comm_hook:
            state, hook = self.comm_hook
            bucket = GradBucket(self.buckets[index], index, len(self.buckets), flat)
            return Reduction(future=hook(state, bucket))
        work = dist.all_reduce(flat, group=self.group, async_op=True)
        return Reduction(work=work, result=flat)

    def all_reduce_used(self) -> None:
        """Count on how many ranks each parameter was used. int32, one per parameter."""
        total = self.used.to(self.parameters[0].device, copy=True)
        self.used_anywhere = dist.all_reduce(total, group=self.group, async_op=True), total

    # After a backward pass

    def finalize_backward(self) -> None:
        """Wait for the buckets in their order, and give every parameter its averaged gradient."""
        self.expects_hooks = False
        if self.record:
            self.record("wait", "", None, 0)
        self.roll_call.call(HAS_ALL)  # before a wait that would have no end
        with torch.no_grad():
            for bucket in self.buckets:
                result = bucket.reduction.wait()
                bucket.reduction = None
                if bucket.sparse:
                    if not self._unused_everywhere(bucket.indices[0]):
                        bucket.parameters[0].grad = result
                else:
                    self._give_back(bucket, result)
        for future in self.wait_before_finalize:
            future.wait()
        self.wait_before_finalize.clear()
        if self.find_unused_parameters:
            self._count_of_users()  # it may not travel into the next iteration
            self.used_anywhere = None
            self.used.zero_()
        if self.should_rebuild:
            self.ready_order += self.unused  # which have no time of their own
        self.divisor = self.nonjoined = None
        if self.record:
            self.record("finalize", "", None, 0)

    def _give_back(self, bucket: Bucket, result: Tensor) -> None:
        views = bucket.views if result is bucket.flat else bucket.views_of(result)
        for k, view in enumerate(views):
            parameter = bucket.parameters[k]
            if self.gradient_as_bucket_view and not is_alias(view, bucket.views[k]):
                bucket.views[k].copy_(view)  # a hook has put its result into a tensor of its own
            if self._unused_everywhere(bucket.indices[k]):
                continue  # its gradient stays as it was
            if self.gradient_as_bucket_view:
                self.guard.check_view(bucket.indices[k], parameter.grad, bucket.views[k])
                parameter.grad = bucket.views[k]
            elif parameter.grad is None:
                parameter.grad = torch.empty_like(parameter).copy_(view)
            else:
                parameter.grad.copy_(view)

    def _unused_everywhere(self, index: int) -> bool:
        """Ask the other ranks only about a parameter that this one has not used."""
        if self.used_anywhere is None or self.used[index]:
            return False
        return not self._count_of_users()[index]

    def _count_of_users(self) -> Tensor:
        work, total = self.used_anywhere
        work.wait()
        return total

    # Static graph

    @property
    def _first_static_iteration(self) -> bool:
        return not self.has_counted

    def end_of_first_static_iteration(self) -> bool:
        """Reduce everything now, since nobody knew before how often each parameter is used."""
        if not (self._first_static_iteration and self.expects_hooks and any(self.hook_counts)):
            return False
        self.has_counted = True
        self.all_reduce_used()
        self.unused = [i for i, count in enumerate(self.hook_counts) if not count]
        for index in range(len(self.parameters)):
            bucket_index, place = self.locations[index]
            self._copy_into(self.buckets[bucket_index], place)
        for index in range(len(self.buckets)):
            self.all_reduce_bucket(index)
        self.finalize_backward()
        return True

    # The buckets themselves

    @property
    def should_rebuild(self) -> bool:
        return not (self.has_rebuilt or self.find_unused_parameters)

    @property
    def can_rebuild(self) -> bool:
        return self.should_rebuild and len(self.ready_order) == len(self.parameters)

    def rebuild_buckets(self) -> None:
        """Once: deal the parameters anew, in the order in which their gradients came on rank 0.

        Two small broadcasts. Called before a forward, when no bucket is on its way.
        """
        buckets, _ = compute_bucket_assignment_by_size(
            [self.parameters[i] for i in self.ready_order],
            self.rebuild_limits,
            self.expect_sparse,
            self.ready_order,
        )
        self.has_rebuilt = True
        self._set_buckets(self._agreed(buckets))

    def _agreed(self, buckets: list[list[int]]) -> list[list[int]]:
        """Rank 0's buckets, on every rank."""
        device = self.parameters[0].device
        flat = [index for bucket in buckets for index in bucket]
        indices = torch.tensor([*flat, len(buckets)], dtype=torch.int32, device=device)
        dist.broadcast(indices, group=self.group, group_src=0)
        *flat, count = indices.tolist()
        sizes = torch.zeros(count, dtype=torch.int32, device=device)
        if dist.get_rank(self.group) == 0:
            sizes.copy_(torch.tensor([len(bucket) for bucket in buckets]))
        dist.broadcast(sizes, group=self.group, group_src=0)
        rest = iter(flat)
        return [[next(rest) for _ in range(size)] for size in sizes.tolist()]

    def _set_buckets(self, buckets: list[list[int]]) -> None:
        self.buckets = [
            Bucket(
                indices,
                [self.parameters[i] for i in indices],
                sparse=self.expect_sparse[indices[0]],
            )
            for indices in buckets
        ]
        self.locations = {
            index: (b, place)
            for b, bucket in enumerate(self.buckets)
            for place, index in enumerate(bucket.indices)
        }
        self.next_bucket = len(self.buckets)  # the next to launch; none before the next backward
        self.marked = set()
        if self.gradient_as_bucket_view:
            self._move_gradients_into_views()

    def _move_gradients_into_views(self) -> None:
        for bucket in self.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=False):
                if parameter.grad is not None and not is_alias(parameter.grad, view):
                    view.copy_(parameter.grad)
                    parameter.grad = view


def _hook(reducer: weakref.ref[Reducer], index: int) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        if (alive := reducer()) is not None:
            alive.autograd_hook(index)

    return hook
