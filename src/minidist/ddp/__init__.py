"""DistributedDataParallel, rebuilt on the public API of torch.distributed, to be read."""

from minidist.ddp.buckets import compute_bucket_assignment_by_size
from minidist.ddp.comm_hooks import (
    GradBucket,
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from minidist.ddp.ddp import DistributedDataParallel
from minidist.ddp.errors import (
    DDPError,
    GraphChanged,
    MissingGradients,
    NotSynchronized,
    ParametersChanged,
    RanksDisagree,
)

__all__ = [
    "DDPError",
    "DistributedDataParallel",
    "GradBucket",
    "GraphChanged",
    "MissingGradients",
    "NotSynchronized",
    "ParametersChanged",
    "RanksDisagree",
    "allreduce_hook",
    "bf16_compress_hook",
    "compute_bucket_assignment_by_size",
    "fp16_compress_hook",
]
