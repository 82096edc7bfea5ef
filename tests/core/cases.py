"""Inputs, shapes and expected sums that the tests of the core share.

Ranks import this module, so it needs torch and minidist only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minidist import allgather, broadcast, naive_allreduce, reduce_scatter, ring_allreduce

WORLD_SIZES = (1, 2, 3, 4, 5, 7, 8)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
NOT_IN_GLOO = (torch.int16,)  # "Invalid scalar type"

SHAPES = (
    "0-dim",
    "empty",
    "one element",
    "not divisible",
    "matrix",
    "transposed",
    "every second column",
    "expanded",
    "channels_last",
    "leaf that requires grad",
)


class Case(NamedTuple):
    """One call of one collective."""

    collective: str  # a key of COLLECTIVES
    dtype: torch.dtype
    shape: str  # one of SHAPES, or "rows" for what reduce_scatter accepts
    src: int = 0  # broadcast only


def all_cases(world_size: int) -> list[Case]:
    """Every dtype in some shapes, every shape in some dtypes, every root in some of both."""
    cases = []
    for collective in ("naive", "ring", "allgather", "broadcast"):
        root = world_size - 1  # 0 would hide a missing renumbering
        cases += [Case(collective, d, "transposed", root) for d in (*FLOATS, *INTEGERS)]
        cases += [Case(collective, torch.float32, shape, root) for shape in SHAPES]
        cases += [Case(collective, torch.int64, shape, root) for shape in SHAPES[:-1]]
    for shape in ("rows", "rows transposed", "rows of one", "no rows", "rows of nothing"):
        cases += [Case("reduce_scatter", d, shape) for d in (torch.float32, torch.int64)]
    cases += [Case("reduce_scatter", d, "rows transposed") for d in (*FLOATS, *INTEGERS)]
    for src in range(world_size):
        cases += [Case("broadcast", torch.bfloat16, s, src) for s in ("0-dim", "transposed")]
    return cases


def make_input(case: Case, rank: int, world_size: int) -> Tensor:
    """Rank `rank`'s input: never constant, another one on every rank, and negative numbers too."""
    seed = 1000 * rank + 7
    if case.shape == "0-dim":
        return _numbers((), case.dtype, seed)
    if case.shape == "empty":
        return _numbers((0, 3), case.dtype, seed)
    if case.shape == "one element":
        return _numbers((1,), case.dtype, seed)
    if case.shape == "not divisible":
        return _numbers((4 * world_size + 3,), case.dtype, seed)
    if case.shape == "matrix":
        return _numbers((world_size, 6), case.dtype, seed)
    if case.shape == "transposed":
        return _numbers((5, 7), case.dtype, seed).t()
    if case.shape == "every second column":
        return _numbers((5, 8), case.dtype, seed)[:, 1::2]
    if case.shape == "expanded":
        return _numbers((5, 1), case.dtype, seed).expand(5, 3)
    if case.shape == "channels_last":
        images = _numbers((2, 3, 4, 5), case.dtype, seed)
        return images.contiguous(memory_format=torch.channels_last)
    if case.shape == "leaf that requires grad":
        return _numbers((3, 5), case.dtype, seed).requires_grad_()
    if case.shape == "rows":
        return _numbers((3 * world_size, 5), case.dtype, seed)
    if case.shape == "rows transposed":
        return _numbers((5, 2 * world_size), case.dtype, seed).t()
    if case.shape == "rows of one":
        return _numbers((world_size,), case.dtype, seed)
    if case.shape == "no rows":
        return _numbers((0, 5), case.dtype, seed)
    assert case.shape == "rows of nothing"
    return _numbers((world_size, 0), case.dtype, seed)


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.3
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    bounds = torch.iinfo(dtype)  # the whole range: sums wrap around
    low, high = max(bounds.min, -(2**62)), min(bounds.max, 2**62)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


COLLECTIVES = {
    "naive": lambda mesh, x, src: naive_allreduce(mesh, x),
    "ring": lambda mesh, x, src: ring_allreduce(mesh, x),
    "allgather": lambda mesh, x, src: allgather(mesh, x),
    "broadcast": broadcast,
    "reduce_scatter": lambda mesh, x, src: reduce_scatter(mesh, x),
}


def run_cases(mesh, cases: list[Case]) -> list[tuple[Tensor, list[str]]]:
    """Each case's output and what it broke: touching its input, handing out its memory, gradients.

    A plain function of a mesh, so it runs on every transport.
    """
    outcomes = []
    for case in cases:
        x = make_input(case, mesh.rank, mesh.world_size)
        before = bits(x)
        version = x._version
        output = COLLECTIVES[case.collective](mesh, x, case.src)
        faults = []
        if bits(x) != before or x._version != version:
            faults.append("touched its input")
        if output.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and x.numel():
            faults.append("returned memory of its input")
        if output.requires_grad:
            faults.append("returned a tensor that requires grad")
        outcomes.append((output, faults))
    return outcomes


def run_cases_and_gloo(mesh, cases: list[Case]) -> tuple[list, list[Tensor | None]]:
    """The same cases by our functions and then by gloo; None where gloo has no such dtype."""
    return run_cases(mesh, cases), [_gloo(case, mesh.rank, mesh.world_size) for case in cases]


def _gloo(case: Case, rank: int, world_size: int) -> Tensor | None:
    dist = torch.distributed
    if case.dtype in NOT_IN_GLOO:
        return None
    # Contiguous: gloo is silently wrong on strided tensors (pytorch issue 192920).
    x = make_input(case, rank, world_size).detach()
    x = x.clone(memory_format=torch.contiguous_format)
    if case.collective in ("naive", "ring"):
        dist.all_reduce(x)
        return x
    if case.collective == "broadcast":
        dist.broadcast(x, case.src)
        return x
    if case.collective == "allgather":
        rows = [torch.empty_like(x) for _ in range(world_size)]
        dist.all_gather(rows, x)
        return torch.stack(rows)
    # gloo's own reduce_scatter is an allreduce and a cut; rank r keeps the r-th part.
    dist.all_reduce(x)
    size = x.shape[0] // world_size
    return x[rank * size : (rank + 1) * size]


def expected(case: Case, rank: int, world_size: int) -> Tensor:
    """The output to the last bit: the sums in the order that the schedule implies."""
    inputs = [make_input(case, r, world_size).detach() for r in range(world_size)]
    if case.collective == "broadcast":
        return inputs[case.src]
    if case.collective == "allgather":
        return torch.stack(inputs)
    if case.collective == "naive":
        return _add(inputs)
    flat = [x.reshape(-1) for x in inputs]
    size = -(-flat[0].numel() // world_size)
    parts = []
    for chunk in range(world_size):
        # allreduce: chunk c sets out from rank c. reduce_scatter: part c must end on rank c.
        first = chunk if case.collective == "ring" else chunk + 1
        order = [(first + hop) % world_size for hop in range(world_size)]
        parts.append(_add([flat[r][chunk * size : (chunk + 1) * size] for r in order]))
    if case.collective == "ring":
        return torch.cat(parts).reshape(inputs[0].shape)
    return parts[rank].reshape(inputs[0].shape[0] // world_size, *inputs[0].shape[1:])


def _add(tensors: list[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def bits(tensor: Tensor) -> tuple:
    """Everything that makes two tensors the same to the last bit (NaN and -0.0 included)."""
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def several(mesh, x: Tensor, src: int) -> Tensor:
    """A program of four collectives in a row."""
    y = ring_allreduce(mesh, x)
    return allgather(mesh, broadcast(mesh, naive_allreduce(mesh, y), src))
