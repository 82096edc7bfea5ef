"""DistributedDataParallel: the module that keeps a model the same on all ranks while it trains."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.utils import _pytree as pytree

from minidist.ddp.buckets import compute_bucket_assignment_by_size, size_limits
from minidist.ddp.comm_hooks import GradBucket
from minidist.ddp.errors import ParametersChanged
from minidist.ddp.join import DDPJoinHook, announce_sync, common_rank
from minidist.ddp.reducer import Reducer
from minidist.ddp.roll_call import EVALUATES, FORWARD, RollCall
from minidist.ddp.state import (
    BROADCAST_BYTES,
    broadcast_coalesced,
    buffers_of,
    modules_of,
    state_of,
    verify_parameters,
)
from minidist.ddp.unused import Sink, find_tensors

RANK_TIMEOUT_S = 300.0

NOT_HERE = {  # arguments of PyTorch's DDP that ours has not, and what to do
    "device_ids": "move the module to its device yourself, and the inputs as well",
    "output_device": "move the outputs yourself",
    "dim": "it has no effect with one device per process",
    "check_reduction": "PyTorch ignores it, too",
    "delay_all_reduce_named_params": "leave it out: the buckets overlap with backward anyhow",
    "param_to_hook_all_reduce": "leave it out: the buckets overlap with backward anyhow",
    "mixed_precision": "use torch.autocast, or fp16_compress_hook for smaller messages",
    "skip_all_reduce_unused_params": "use find_unused_parameters=True",
    "batched_grad_copy": "leave it out: it saves launches of kernels on a GPU, not bytes",
}


class DistributedDataParallel(nn.Module, Joinable):
    """Train `module` on all ranks of a process group: a drop-in for PyTorch's class of this name.

    Each rank calls it on its own part of the batch; after backward(), each parameter's `.grad` is
    the average over the ranks.

    forward_sync_buffers: whether rank 0's buffers are broadcast before each forward (default: yes).
    broadcast_buffers: the same, deprecated; False also leaves them alone at the start.
    init_sync: whether rank 0's parameters and buffers are broadcast at the start.
    bucket_cap_mb: MiB at which a bucket is full (25 if not given, and then 1 for the first one);
    bucket_cap_mb_list: one cap per bucket, the last one repeats.
    find_unused_parameters: search each forward's graph for parameters that it does not use.
    gradient_as_bucket_view: let `.grad` be a view into the bucket: saves a copy and its memory.
    static_graph: promise that every iteration uses the same parameters, as often.
    rank_timeout_s: how many seconds a rank may come later than the others before they raise.
    record: called with (kind, name, bucket, bytes) as things happen; `mesh.mark` puts them into the
    trace of a run.

    Price: at the start a broadcast of all state; per iteration the buffers' broadcast and an
    all-reduce of the gradients' bytes.
    Raises RanksDisagree if the ranks' modules differ, NotImplementedError for an argument of
    PyTorch's class that is not built, and the errors of minidist.ddp.errors while training.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: None = None,
        output_device: None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: None = None,
        param_to_hook_all_reduce: None = None,
        mixed_precision: None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        *,
        rank_timeout_s: float = RANK_TIMEOUT_S,
        record: Callable[[str, str, int | None, int], object] | None = None,
    ):
        given, parameters = locals(), inspect.signature(DistributedDataParallel).parameters
        super().__init__()
        Joinable.__init__(self)
        for name, advice in NOT_HERE.items():
            if given[name] is not parameters[name].default:  # device 0 is given, too
                raise NotImplementedError(f"minidist's DDP has no {name}: {advice}")

        # 1. The process group
        if process_group and device_mesh:
            raise ValueError("give process_group or device_mesh, not both")
        if device_mesh:
            process_group = device_mesh.get_group()
        self.process_group = process_group or dist.group.WORLD
        if self.process_group is None:
            raise ValueError("no process group: call torch.distributed.init_process_group first")

        # 2. Parameters and buffers, less the ignored
        self.module = module
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self._wrapped, self._seen = self._trained_now(), self._glance()
        trained = self._trained_parameters()
        self.device = trained[0][1].device

        # 3. How large a bucket may be
        first_limits, limits = size_limits(
            bucket_cap_mb,
            bucket_cap_mb_list,
            unordered=static_graph or not find_unused_parameters,
        )

        # 4. Have all ranks the same parameters?
        self.roll_call = RollCall(self.process_group, rank_timeout_s)
        named = [(name, parameter) for name, parameter, _ in trained]
        if init_sync:
            verify_parameters(named, self.roll_call)

        # 5. Rank 0's values, on every rank
        if broadcast_buffers is not None:
            warnings.warn(
                "broadcast_buffers is deprecated: forward_sync_buffers is the same without its "
                "effect at the start",
                FutureWarning,
                stacklevel=2,
            )
        with_buffers = forward_sync_buffers is not None or broadcast_buffers is not False
        if init_sync:
            state = state_of(module, self.parameters_to_ignore, with_buffers)
            broadcast_coalesced(self.process_group, state, BROADCAST_BYTES, src=0)

        # 6. Buckets in the reverse order of definition, roughly that of backward, and the hooks
        expect_sparse = [sparse for _, _, sparse in trained]
        buckets, _ = compute_bucket_assignment_by_size(
            [parameter for _, parameter in named], first_limits, expect_sparse
        )
        self.reducer = Reducer(
            [name for name, _ in named],
            [parameter for _, parameter in named],
            buckets[::-1],
            expect_sparse,
            self.process_group,
            rebuild_limits=limits,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            gradient_as_bucket_view=gradient_as_bucket_view,
            roll_call=self.roll_call,
            record=record,
        )

        if forward_sync_buffers is None:
            forward_sync_buffers = broadcast_buffers is not False
        self.forward_sync_buffers = forward_sync_buffers
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self._buffer_hook: tuple[Any, Callable[[Any, dict[str, Tensor]], Any]] | None = None
        self._buffers_after = False  # whether buffers are synchronised after the forward
        self._divide_by_initial_world_size = True
        self._record = record

    # Forward

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._before_forward()
        return self._after_forward(self.module(*inputs, **kwargs))

    def _before_forward(self) -> None:
        reducer, grad = self.reducer, torch.is_grad_enabled()
        trains = grad and self.require_backward_grad_sync
        if self._record:
            self._record("forward", "", None, 0)
        self.roll_call.off = self._join_config.enable or self.roll_call.world_size == 1
        if grad:
            reducer.clear_away()
        if trains:
            self._check_parameters()
            reducer.prepare_for_forward()
        work = Join.notify_join_context(self)
        if work and not self._divide_by_initial_world_size:
            reducer.nonjoined = work
        rebuilds = grad and reducer.can_rebuild
        sync_buffers = self.will_sync_buffers()
        if rebuilds or sync_buffers:
            self.roll_call.call(FORWARD if grad else EVALUATES)
        if rebuilds:
            reducer.rebuild_buckets()
        if sync_buffers and not self._buffers_after:
            self._sync_buffers()
        if self._join_config.enable:
            announce_sync(self)

    def _after_forward(self, output: Any) -> Any:
        reducer, grad = self.reducer, torch.is_grad_enabled()
        trains = grad and self.require_backward_grad_sync
        if self._buffers_after and self.will_sync_buffers():
            self._sync_buffers()
        self.require_forward_param_sync = trains
        if not grad:
            return output
        if reducer.find_unused_parameters:
            output = _through_sink(output)
        outputs = list(find_tensors(output))
        if trains:
            reducer.prepare_for_backward(outputs)
        reducer.guard.forward_ends(outputs, synchronized=trains)
        if self._record:
            self._record("output", "", None, 0)
        return output

    # Buffers

    def will_sync_buffers(self) -> bool:
        """Not after an iteration under no_sync(): no rank has taken a step since."""
        return (
            self.forward_sync_buffers
            and self.require_forward_param_sync
            and any(module._buffers for module in modules_of(self.module))
            and bool(buffers_of(self.module, self.parameters_to_ignore))
        )

    def _sync_buffers(self) -> None:
        source = 0
        if self._join_config.enable:  # rank 0 may have run out of batches, and its buffers be old
            source = common_rank(self.process_group, self.device, True)
        self.sync_buffers(source)

    def sync_buffers(self, source: int) -> None:
        """Give every rank the buffers of rank `source`, or do what a buffer hook does instead."""
        buffers = buffers_of(self.module, self.parameters_to_ignore)
        if self._buffer_hook:
            state, hook = self._buffer_hook
            self.reducer.wait_before_finalize += hook(state, buffers) or []
        else:
            broadcast_coalesced(self.process_group, list(buffers.values()), BROADCAST_BYTES, source)

    def register_buffer_comm_hook(
        self,
        state: object,
        hook: Callable[[Any, dict[str, Tensor]], list[Any] | None],
        after_forward: bool = True,
    ) -> None:
        """Call hook(state, {name: buffer}) in the place of the buffers' broadcast.

        Futures that it returns are waited for at the end of the backward pass.
        """
        self._buffer_hook, self._buffers_after = (state, hook), after_forward

    # Gradients

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank alone. The forward, too, must run inside."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync, self.reducer.guard.in_no_sync = False, True
        try:
            yield
        finally:
            self.require_backward_grad_sync, self.reducer.guard.in_no_sync = before, not before

    def register_comm_hook(
        self, state: object, hook: Callable[[Any, GradBucket], torch.futures.Future[Tensor]]
    ) -> None:
        """Let hook(state, bucket) reduce each bucket, once: see minidist.ddp.comm_hooks."""
        if not callable(hook):
            raise TypeError(f"a communication hook must be callable, not {type(hook).__name__}")
        if self.reducer.comm_hook:
            raise RuntimeError("register_comm_hook can only be called once")
        self.reducer.comm_hook = state, hook

    # Uneven inputs

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """A context for a loop over uneven inputs: ranks that are through play along.

        divide_by_initial_world_size: False divides by the ranks that still have batches instead.
        throw_on_early_termination: raise RuntimeError on all ranks when the first is through.
        Price: two more all-reduces of one number per iteration, one more with buffers.
        """
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        self._divide_by_initial_world_size = kwargs.get("divide_by_initial_world_size", True)
        return DDPJoinHook(self)

    @property
    def join_device(self) -> torch.device:
        return self.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        return self.process_group

    # Parameters

    def _trained_parameters(self) -> list[tuple[str, nn.Parameter, bool]]:
        """(name, parameter, whether its gradient will be sparse), each parameter once."""
        found: dict[int, tuple[str, nn.Parameter, bool]] = {}
        for prefix, module in self.module.named_modules():
            sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
            for name, parameter in module.named_parameters(prefix, recurse=False):
                if isinstance(parameter, nn.parameter.UninitializedParameter):
                    raise RuntimeError(f"{name} has no shape yet: run one forward before wrapping")
                if hasattr(parameter, "_in_backward_optimizers"):
                    raise NotImplementedError(
                        f"{name} has its optimizer in the backward pass, where its gradient is not "
                        "averaged yet: step after backward()"
                    )
                if parameter.requires_grad and name not in self.parameters_to_ignore:
                    found.setdefault(id(parameter), (name, parameter, sparse))
        if not found:
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter "
                "that requires a gradient."
            )
        devices = {parameter.device for _, parameter, _ in found.values()}
        if len({device.type for device in devices}) > 1:
            raise ValueError(f"the parameters are on devices of several types: {devices}")
        return list(found.values())

    def _trained_now(self) -> dict[str, int]:
        return {
            name: id(parameter)
            for name, parameter in self.module.named_parameters(remove_duplicate=False)
            if parameter.requires_grad and name not in self.parameters_to_ignore
        }

    def _glance(self) -> list[tuple[int, bool]]:
        """`_trained_now` without names, in less than half the time: for a look in every forward."""
        return [
            (id(parameter), parameter.requires_grad)
            for module in modules_of(self.module)
            for parameter in module._parameters.values()
            if parameter is not None
        ]

    def _check_parameters(self) -> None:
        """Raise ParametersChanged if a parameter would train without anybody averaging it."""
        if self._glance() == self._seen:
            return
        then, now = self._wrapped, self._trained_now()
        if now == then or not now:  # nothing trains: a GAN's other half, frozen for a while
            return
        for name in [*now, *then]:
            if name not in then:
                change = "was unfrozen or added"
            elif name in now and now[name] != then[name]:
                change = "was replaced by another tensor"
            elif name not in now and not self._may_be_unused:
                change = "was frozen or taken away"
            else:
                continue
            raise ParametersChanged(
                f"{name} {change} after the module was wrapped: DDP averages the parameters that "
                "it saw then. Change the module first, then wrap it (again)."
            )

    @property
    def _may_be_unused(self) -> bool:
        return self.reducer.find_unused_parameters or self.reducer.static_graph

    def __getstate__(self) -> Any:
        raise TypeError("a DDP cannot be copied or pickled: save ddp.module.state_dict() instead")


def _through_sink(output: Any) -> Any:
    """The same, with every tensor that has a gradient gone through one node of autograd."""
    leaves, spec = pytree.tree_flatten(output)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.grad_fn]
    for i, tensor in zip(places, Sink.apply(*(leaves[i] for i in places)), strict=True):
        leaves[i] = tensor
    return pytree.tree_unflatten(leaves, spec)
