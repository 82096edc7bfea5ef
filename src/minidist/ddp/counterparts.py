"""Which of our functions stands for which of PyTorch's: the map of the last chapter on DDP."""

from __future__ import annotations

import inspect
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.nn.parallel import distributed as torch_ddp

from minidist.ddp import buckets, comm_hooks, guard, join, state, unused
from minidist.ddp.ddp import DistributedDataParallel, _through_sink
from minidist.ddp.reducer import Reducer


class Counterpart(NamedTuple):
    """Ours, and what does the same in PyTorch: in Python, and in C++ (names only)."""

    ours: Any
    python: Sequence[Any] = ()
    cpp: Sequence[str] = ()  # "Reducer::name", or "name" of a function of the namespace c10d


DDP = DistributedDataParallel
BY_CHAPTER: dict[str, list[Counterpart]] = {
    "initialization": [
        Counterpart(DDP, [TorchDDP]),
        Counterpart(DDP._trained_parameters, [TorchDDP._build_params_for_reducer], []),
        Counterpart(
            state.verify_parameters,
            [torch_ddp._verify_param_shape_across_processes],
            ["verify_params_across_processes"],
        ),
        Counterpart(
            state.broadcast_coalesced,
            [torch_ddp._sync_module_states, TorchDDP._distributed_broadcast_coalesced],
            ["broadcast_coalesced"],
        ),
    ],
    "buckets": [
        Counterpart(
            buckets.compute_bucket_assignment_by_size,
            [TorchDDP._ddp_init_helper],
            ["compute_bucket_assignment_by_size"],
        ),
        Counterpart(buckets.Bucket, [], ["Reducer::initialize_buckets"]),
        Counterpart(
            buckets.Bucket.views_of,
            [],
            ["Reducer::initialize_bucket_views", "Reducer::populate_bucket_views_out"],
        ),
        Counterpart(Reducer.rebuild_buckets, [], ["Reducer::rebuild_buckets"]),
        Counterpart(Reducer._agreed, [], ["Reducer::sync_bucket_indices"]),
    ],
    "the Reducer": [
        Counterpart(DDP._before_forward, [TorchDDP._pre_forward], ["Reducer::prepare_for_forward"]),
        Counterpart(
            DDP._after_forward, [TorchDDP._post_forward], ["Reducer::prepare_for_backward"]
        ),
        Counterpart(Reducer.autograd_hook, [], ["Reducer::autograd_hook"]),
        Counterpart(
            Reducer.mark_variable_ready,
            [],
            ["Reducer::mark_variable_ready", "Reducer::mark_bucket_ready"],
        ),
        Counterpart(
            Reducer._copy_into,
            [],
            ["Reducer::mark_variable_ready_dense", "Reducer::mark_variable_ready_sparse"],
        ),
        Counterpart(Reducer._divisor, [], ["Reducer::set_divide_factor"]),
        Counterpart(Reducer.all_reduce_bucket, [], ["Reducer::all_reduce_bucket"]),
        Counterpart(Reducer.finalize_backward, [], ["Reducer::finalize_backward"]),
        Counterpart(
            Reducer._give_back,
            [],
            ["Reducer::finalize_bucket_dense", "Reducer::copy_bucket_to_grad"],
        ),
    ],
    "buffers": [
        Counterpart(DDP.will_sync_buffers, [TorchDDP.will_sync_module_buffers]),
        Counterpart(state.buffers_of, [TorchDDP._assign_modules_buffers]),
        Counterpart(DDP.sync_buffers, [TorchDDP._sync_buffers, TorchDDP._sync_module_buffers]),
    ],
    "unused parameters, static graph, no_sync": [
        Counterpart(unused.reachable, [], ["Reducer::search_unused_parameters"]),
        Counterpart(unused.find_tensors, [torch_ddp._find_tensors]),
        Counterpart(_through_sink, [torch_ddp._DDPSink]),
        Counterpart(Reducer.all_reduce_used, [], ["Reducer::all_reduce_local_used_map"]),
        Counterpart(Reducer.end_of_first_static_iteration, [], ["Reducer::delay_all_reduce"]),
        Counterpart(DDP.no_sync, [TorchDDP.no_sync]),
        Counterpart(guard.Guard.check_complete, [], ["Reducer::ensure_prior_reduction_finished"]),
    ],
    "views and hooks": [
        Counterpart(DDP.register_comm_hook, [TorchDDP.register_comm_hook]),
        Counterpart(Reducer.reduction_of, [], ["Reducer::run_comm_hook"]),
        Counterpart(comm_hooks.allreduce_hook, [default_hooks.allreduce_hook]),
        Counterpart(comm_hooks.fp16_compress_hook, [default_hooks.fp16_compress_hook]),
        Counterpart(comm_hooks.bf16_compress_hook, [default_hooks.bf16_compress_hook]),
    ],
    "uneven inputs": [
        Counterpart(DDP.join, [TorchDDP.join]),
        Counterpart(join.DDPJoinHook, [torch_ddp._DDPJoinHook]),
        Counterpart(join.announce_sync, [TorchDDP._check_global_requires_backward_grad_sync]),
        Counterpart(join.common_rank, [TorchDDP._find_common_rank]),
    ],
}

NAMES_IN_CPP = sorted(
    {name for row in BY_CHAPTER.values() for counterpart in row for name in counterpart.cpp}
)


def place(function: Any) -> str:
    """'distributed.py:1744', as it is installed."""
    function = inspect.unwrap(function)
    _, line = inspect.getsourcelines(function)
    return f"{Path(inspect.getsourcefile(function) or '').name}:{line}"


def name(function: Any) -> str:
    return str(function.__qualname__).removeprefix("DistributedDataParallel.")


def rows(in_library: Callable[[str], bool]) -> list[dict[str, str]]:
    """The map as rows of a table. in_library: says of a C++ name whether this PyTorch has it."""

    def python(function: Any) -> str:
        return f"`{name(function)}` `{place(function)}`"

    def cpp(full: str) -> str:
        return f"C++ `{full}`" + ("" if in_library(full) else " (not found)")

    return [
        {
            "ours": python(c.ours),
            "PyTorch's": ", ".join([*map(python, c.python), *map(cpp, c.cpp)]),
        }
        for counterparts in BY_CHAPTER.values()
        for c in counterparts
    ]


def found_in_library(names: Sequence[str]) -> set[str]:
    """Those of some C++ names that the installed library of PyTorch exports.

    Compilers write a::b as two numbers and two names: the length of each goes before it.
    """
    found = set()
    folder = Path(torch.__file__).parent / "lib"
    for library in (folder / "libtorch_cpu.so", folder / "libtorch_cpu.dylib"):
        if not library.is_file():
            continue
        with (
            open(library, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            for full in names:
                parts = ("c10d::" + full).split("::")
                symbol = "".join(f"{len(part)}{part}" for part in parts)
                if content.find(symbol.encode()) >= 0:
                    found.add(full)
    return found


def bound_to_python(full: str) -> bool:
    """Whether a C++ name can be called from Python, under its own name or with an underscore."""
    owner: Any = dist if "::" not in full else torch._C._distributed_c10d.Reducer
    last = full.rsplit("::", 1)[-1]
    return any(hasattr(owner, candidate) for candidate in (last, f"_{last}"))
