"""Our collectives against gloo, PyTorch's own, on the same inputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
import torch.distributed as dist
from torch import Tensor

from minidist.collectives import allgather, broadcast, reduce_scatter, ring_allreduce
from minidist.collectives.chunks import gloo_chunks
from minidist.cost import padded_nbytes
from minidist.data import digits_gradient
from minidist.launch import Run, run
from minidist.mesh import Mesh

TOLERANCE = 1e-5


def our_run(op: str, world_size: int, per_rank_tensors: list[Tensor], src: int = 0) -> Run:
    """The primitive `op` from this package, on real processes."""
    if op == "broadcast":
        return run(broadcast, world_size, src, inputs=per_rank_tensors)
    fn = {"allreduce": ring_allreduce, "allgather": allgather, "reduce_scatter": reduce_scatter}[op]
    return run(fn, world_size, inputs=per_rank_tensors)


def gloo_reference(
    op: str, world_size: int, per_rank_tensors: list[Tensor], src: int = 0
) -> list[Tensor]:
    """What torch.distributed over gloo gives: one output per rank, in the shapes of ours.

    gloo gets contiguous copies: on strided tensors it gives wrong sums without a word.
    """
    inputs = [t.detach().clone(memory_format=torch.contiguous_format) for t in per_rank_tensors]
    return run(_on_gloo, world_size, op, src, inputs=inputs, process_group="gloo").results


def _on_gloo(mesh: Mesh, tensor: Tensor, op: str, src: int) -> Tensor:
    world_size = mesh.world_size
    if op == "allreduce":
        dist.all_reduce(tensor)
        return tensor
    if op == "broadcast":
        dist.broadcast(tensor, src)
        return tensor
    if op == "allgather":
        parts = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(parts, tensor)
        return torch.stack(parts)
    if op == "reduce_scatter":
        part = torch.empty_like(tensor[: tensor.shape[0] // world_size])
        # Newer versions of torch have a new name for it and warn about the old one.
        name = "single" if hasattr(dist, "reduce_scatter_single") else "tensor"
        getattr(dist, f"reduce_scatter_{name}")(part, tensor)
        return part
    raise ValueError(f"{op!r} is none of allreduce, broadcast, allgather, reduce_scatter")


def verify_against_gloo(
    op: str, world_size: int, per_rank_tensors: list[Tensor], src: int = 0
) -> tuple[bool, float]:
    """(match, largest absolute difference over all ranks); match means at most 1e-5."""
    ours = our_run(op, world_size, per_rank_tensors, src).results
    theirs = gloo_reference(op, world_size, per_rank_tensors, src)
    difference = max_abs_diff(ours, theirs)
    return difference <= TOLERANCE, difference


def max_abs_diff(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Over all ranks and elements; infinite if a shape, a dtype or a NaN differs.

    What is equal counts as 0, also infinite or NaN on both sides; whole numbers that differ count
    as 1 at least, however large they are.
    """
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        if mine.shape != other.shape or mine.dtype != other.dtype:
            return float("inf")
        differs = (mine != other) & ~((mine != mine) & (other != other))
        if differs.any():
            wide = torch.complex128 if mine.is_complex() else torch.float64
            difference = (mine[differs].to(wide) - other[differs].to(wide)).abs().max().item()
            if not (mine.is_floating_point() or mine.is_complex()):
                difference = max(difference, 1.0)  # float64 does not tell 2**60 from 2**60 + 1
            worst = max(worst, float("inf") if difference != difference else difference)
    return worst


def ring_order_sum(tensors: list[Tensor]) -> Tensor:
    """The sum as our ring adds it: chunk c starts at rank c and collects c + 1, c + 2, ...

    tensors: one per rank, flat. Returns the sum, bit for bit what ring_allreduce returns.
    """
    world_size, numel = len(tensors), tensors[0].numel()
    chunk = ceil(numel / world_size)
    total = torch.empty_like(tensors[0])
    for c in range(world_size):
        part = slice(c * chunk, (c + 1) * chunk)
        total[part] = chain_sum([t[part] for t in tensors], first=c, direction=1)
    return total


def gloo_order_sum(tensors: list[Tensor]) -> Tensor:
    """The sum as gloo's ring adds it: it sends to the left, so chunk c starts at rank c - 1 and
    collects c - 2, c - 3, ..., c; and gloo cuts the chunks in its own places.

    tensors: one per rank, flat. Returns the sum, bit for bit what gloo's all_reduce returns.
    Source: gloo/allreduce.cc, ring.
    """
    world_size = len(tensors)
    total = torch.empty_like(tensors[0])
    for c, part in enumerate(gloo_chunks(world_size, total.numel(), total.element_size())):
        total[part] = chain_sum([t[part] for t in tensors], first=c - 1, direction=-1)
    return total


def chain_sum(parts: list[Tensor], first: int, direction: int) -> Tensor:
    """parts[first] + parts[first + direction] + ... once around, added from left to right."""
    world_size = len(parts)
    total = parts[first % world_size].clone()
    for k in range(1, world_size):
        total += parts[(first + direction * k) % world_size]
    return total


@dataclass(frozen=True)
class Comparison:
    """One primitive at one world size, on the gradients of the digits net."""

    op: str
    world_size: int
    max_abs_diff: float
    bit_equal: bool
    nbytes: int  # T: one rank's input tensor
    padding: int  # bytes of zeros that make it divide
    sent: list[int]  # bytes that each rank sent
    expected: list[int]  # what the closed form says

    @property
    def match(self) -> bool:
        return self.max_abs_diff <= TOLERANCE

    @property
    def bytes_agree(self) -> bool:
        return self.sent == self.expected


def compare(op: str, world_size: int, src: int = 0) -> Comparison:
    """Run `op` on real gradients, each rank its own shard, here and on gloo; count the bytes."""
    inputs = [digits_gradient(rank, world_size) for rank in range(world_size)]
    numel, itemsize = inputs[0].numel(), inputs[0].element_size()
    padded = padded_nbytes(world_size, numel, itemsize)
    if op == "reduce_scatter":  # its contract wants a length that N divides
        missing = padded // itemsize - numel
        inputs = [torch.nn.functional.pad(tensor, (0, missing)) for tensor in inputs]
    ours = our_run(op, world_size, inputs, src)
    theirs = gloo_reference(op, world_size, inputs, src)
    nbytes = numel * itemsize
    uses_chunks = op in ("allreduce", "reduce_scatter")
    return Comparison(
        op,
        world_size,
        max_abs_diff(ours.results, theirs),
        all(map(torch.equal, ours.results, theirs)),
        nbytes,
        padded - nbytes if uses_chunks else 0,
        ours.trace.bytes_sent,
        [
            _bytes_sent(op, r, world_size, padded if uses_chunks else nbytes, src)
            for r in range(world_size)
        ],
    )


def _bytes_sent(op: str, rank: int, world_size: int, nbytes: int, src: int) -> int:
    """The closed form for one rank; nbytes is T including padding."""
    if op == "broadcast":  # a rank at distance v from src has v's subtree's children to serve
        virtual = (rank - src) % world_size
        reached = 1 << virtual.bit_length()  # how far the tree had grown when this rank joined
        children = 0
        while virtual + reached < world_size:
            children += 1
            reached *= 2
        return children * nbytes
    passes = {"allreduce": 2, "reduce_scatter": 1, "allgather": world_size}[op]
    return passes * nbytes * (world_size - 1) // world_size
