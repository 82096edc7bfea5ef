"""The exercises: what each function is given, what it must return and what that may cost.

The files for the reader live in the course's exercises/ folder. What is needed to grade is here,
so `check("ring_allreduce", fn)` works wherever the package is installed.
"""

from importlib import import_module

from minidist.grading.exercise import Exercise

# In the order of the course. Each is a module here, and a folder in exercises/.
_NAMES = (
    "naive_allreduce",
    "ring_reduce_scatter",
    "ring_allgather",
    "ring_allreduce",
    "broadcast",
    "tree_allreduce",
    "halving_doubling",
    "gloo_bits",
    "choose_algorithm",
    "receive_deadline",
    "tcp_primitives",
    "byte_counter",
    "shared_memory_race",
    "bug_hunt_collectives",
    "coalesced_broadcast",
    "bucket_assignment",
    "naive_ddp",
    "parameter_hook",
    "bucketed_reducer",
    "no_sync",
    "unused_parameters",
    "fp16_compression",
    "reassigned_buffers",
    "best_bucket_size",
)
EXERCISES: dict[str, Exercise] = {
    name: import_module(f"{__name__}.{name}").EXERCISE for name in _NAMES
}
