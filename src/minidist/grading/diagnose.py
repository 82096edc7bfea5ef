"""The likely reason: sentences for mistakes that show themselves in the numbers.

Random whole numbers make a wrong value a fingerprint: which ranks are in a sum, and how often, can
be read back from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minidist import verify
from minidist.collectives.chunks import gloo_chunks
from minidist.diagnosis import wait_circle
from minidist.grading.answers import Answer, Problem
from minidist.grading.cases import Case, Trial, make_inputs
from minidist.trace import dtype_name


def first_difference(expected: list[Tensor], came: list[Tensor]) -> tuple[int, int]:
    """(rank, flat index) of the first element that differs."""
    for rank, (want, have) in enumerate(zip(expected, came, strict=True)):
        wrong = (want.reshape(-1) != have.reshape(-1)).nonzero()
        if len(wrong):
            return rank, int(wrong[0])
    raise ValueError("there is no difference")


def wrong_sum(answer: Answer, expected: list[Tensor], offset: int = 0) -> str:
    """What the first wrong value of a sum looks like, or ''.

    offset: the element of the inputs that is element 0 of what that rank should have returned.
    """
    case, inputs, came = answer.case, make_inputs(answer.case), answer.results
    rank, index = first_difference(expected, came)
    n = case.world_size
    flat = torch.stack([t.reshape(-1) for t in inputs]).to(torch.float64)
    total = flat.sum(0)
    got = came[rank].reshape(-1).to(torch.float64)[index]
    column = flat[:, offset + index]
    if case.dtype in ("int64", "int32", "float64") and _rounded(expected, came):
        return (
            "The values are right to seven digits only: somewhere they go through a buffer of "
            "dtype float32. Give buffers the dtype of the tensor."
        )
    if _close(got, n * column[rank]):
        return (
            "This is N times the rank's own input: right only if all ranks hold the same numbers. "
            "Nothing of the other ranks is in it."
        )
    if _close(got, total[offset + index] / n):
        return "This is the mean; the contract asks for the sum, divide nothing."
    whole_chunks = case.numel // n * n
    if offset == 0 and _only_tail_wrong(expected, came, whole_chunks):
        tail = case.numel - whole_chunks
        last = "the last element is" if tail == 1 else f"the last {tail} elements are"
        return (
            f"Only {last} wrong: {case.numel} elements "
            f"do not divide into {n} chunks, and the tail is forgotten. Pad with zeros to a "
            "multiple of N, and cut the padding off at the end."
        )
    if counts := _contributions(column, got):
        return _counts_sentence(counts, rank)
    if got == 0:
        return "This element is still zero: nothing was ever stored there."
    elsewhere = [j for j in range(len(total)) if _close(got, total[j]) and j != offset + index]
    if elsewhere:
        return (
            f"It is a finished sum, but that of element {elsewhere[0]}: a chunk is stored in the "
            "wrong place. Check which chunk arrives at each step, (rank - step - 1) % N or "
            "one further on."
        )
    for j in range(flat.shape[1]):
        if j != offset + index and (counts := _contributions(flat[:, j], got)):
            return (
                f"It is a sum of elements {j}, not {offset + index}: a chunk is added to or stored "
                "in the wrong place."
            )
    for j, k in itertools.product(range(flat.shape[1]), repeat=2):
        if j < k and n <= 4 and _mixed(flat[:, j], flat[:, k], got):
            return (
                f"It mixes elements {j} and {k}: what arrived was added to another chunk than the "
                "one it belongs to."
            )
    return ""


def _rounded(expected: list[Tensor], came: list[Tensor]) -> bool:
    return all(
        torch.allclose(e.double(), c.double(), rtol=3e-6, atol=1e-3)
        for e, c in zip(expected, came, strict=True)
    )


def _only_tail_wrong(expected: list[Tensor], came: list[Tensor], whole: int) -> bool:
    return 0 < whole < expected[0].numel() and all(
        torch.equal(e.reshape(-1)[:whole], c.reshape(-1)[:whole])
        for e, c in zip(expected, came, strict=True)
    )


def _contributions(column: Tensor, got: Tensor) -> tuple[int, ...] | None:
    """How often each rank's number is in `got` (0, 1 or 2 times), if that explains it."""
    n = len(column)
    for counts in itertools.product(range(3), repeat=n) if n <= 5 else ():
        if any(counts) and _close(torch.tensor(counts, dtype=torch.float64) @ column, got):
            return counts
    return None


def _mixed(one: Tensor, other: Tensor, got: Tensor) -> bool:
    for a in itertools.product(range(2), repeat=len(one)):
        for b in itertools.product(range(2), repeat=len(one)):
            weights = torch.tensor([a, b], dtype=torch.float64)
            if any(a) and any(b) and _close((weights * torch.stack([one, other])).sum(), got):
                return True
    return False


def _counts_sentence(counts: tuple[int, ...], rank: int) -> str:
    missing = [r for r, c in enumerate(counts) if c == 0]
    double = [r for r, c in enumerate(counts) if c == 2]
    if sum(counts) == 1 and counts[rank] == 1:
        return (
            f"Rank {rank} returned its own input here, nothing was added to it. Does what arrives "
            "go to the chunk that it belongs to?"
        )
    parts = []
    if missing:
        parts.append(f"the part of {_ranks(missing)} is missing")
    if double:
        parts.append(f"the part of {_ranks(double)} is counted twice")
    return f"In this sum {' and '.join(parts)}." if parts else ""


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(torch.isclose(a, b, rtol=1e-9, atol=1e-6))


def order_of_sum(inputs: list[Tensor], came: Tensor) -> str:
    """In which order the numbers were added, if it is one that we know and not gloo's."""
    flat = [tensor.reshape(-1) for tensor in inputs]
    n, numel, dtype = len(flat), flat[0].numel(), flat[0].dtype
    if torch.equal(came, verify.ring_order_sum(flat)):
        return "These are the bits of the ring that turns right, in equal chunks."
    exact = torch.stack(flat).double().sum(0).to(dtype)
    if dtype.itemsize < 4 and (came == exact).double().mean() > 0.98:
        return (
            "The sums were kept in float32 and rounded at the end: more exact, but gloo rounds to "
            f"{dtype_name(dtype)} after each addition."
        )
    equal = [slice(c * -(-numel // n), (c + 1) * -(-numel // n)) for c in range(n)]
    for first in range(n):
        for cuts, where in (
            (gloo_chunks(n, numel, dtype.itemsize), ""),
            (equal, " and the tensor is cut into N equal chunks, where gloo cuts elsewhere"),
        ):
            total = torch.empty_like(flat[0])
            for c, part in enumerate(cuts):
                one = flat[(c + first) % n][part].clone()
                for step in range(1, n):
                    one += flat[(c + first - step) % n][part]
                total[part] = one
            if torch.equal(came, total):
                begins = f"c {f'+ {first} ' if first else ''}mod N"
                starts = (
                    "Each chunk begins at the right rank"
                    if first == n - 1
                    else f"Chunk c begins at rank {begins}; in gloo it begins at rank c - 1"
                )
                return f"{starts}{where or ''}."
    return ""


def reason_for_problem(problem: Problem, case: Case, ring: bool = False) -> str:
    """What an exception usually means; `ring`: in an exercise whose messages go round a ring."""
    text = problem.text
    if problem.type == "NotImplementedError":
        return "Nothing is written yet. Read the docstring, then start with world size 2 on paper."
    if "is a `% mesh.world_size` missing" in text and ring:
        return (
            "Neighbours are counted modulo the world size: the last rank's right neighbour is "
            "rank 0."
        )
    if problem.type == "SystemExit":
        return "The function must return; it must not end the process."
    if "view size is not compatible" in text:
        return (
            "view() refuses a strided tensor, whose elements do not lie side by side in memory; "
            "reshape(-1) copies where it must."
        )
    if problem.type == "Endless":
        return "The loop that sends does not end."
    if "cannot be concatenated" in text:
        return (
            "torch.cat joins along a dimension that is there, and a 0-dim tensor has none: "
            "torch.stack makes a new one, reshape(-1) makes it flat."
        )
    if case.shape == () and problem.type in ("IndexError", "TypeError", "RuntimeError"):
        return "A 0-dim tensor has no dimension 0: make it flat with reshape(-1) first."
    if problem.type == "MessageMismatch":
        return (
            "Two ranks disagree on what travels: chunks of different sizes, or one rank a chunk "
            "behind the other. Pad so that all chunks have one size."
        )
    return ""


def reason_for_deadlock(answer: Answer) -> str:
    """Why nobody could go on."""
    waits = {rank: wait.peer for rank, wait in answer.waits.items()}
    sent = sum(e.kind == "send" for r in answer.ranks.values() for e in r.events)
    if waits and not sent:
        return (
            "Every rank receives before anyone has sent. Send first (send is buffered and does "
            "not wait), or do both at once with sendrecv."
        )
    if circle := wait_circle(waits):
        chain = " -> ".join(map(str, [*circle, circle[0]]))
        return f"The ranks wait in a circle, {chain}: each wants a message before it sends its own."
    for rank, peer in waits.items():
        if peer not in waits:
            return (
                f"Rank {rank} waits for rank {peer}, which has already returned: rank {peer} sends "
                f"once too little, or to somebody else, or rank {rank} receives once too often."
            )
    return ""


def only_when(failing: Sequence[Case | Trial], passing: Sequence[Case | Trial]) -> str:
    """What the failing cases have in common and no passing case has, as a sentence, or ''."""
    if not all(isinstance(case, Case) for case in (*failing, *passing)):
        return ""
    passing = [case for case in passing if case.numel]  # with no elements, most mistakes are right
    for says, holds in _FEATURES:
        if failing and passing and all(map(holds, failing)) and not any(map(holds, passing)):
            return f"This happens only when {says}, and in no other case tried."
    return ""


_FEATURES: list[tuple[str, Callable[[Case], bool]]] = [
    ("src is not 0", lambda c: bool(c.src)),
    ("the world size is 1", lambda c: c.world_size == 1),
    ("the world size is not a power of two", lambda c: c.world_size & (c.world_size - 1) != 0),
    ("the world size is odd", lambda c: c.world_size > 1 and c.world_size % 2 == 1),
    ("the world size is more than 2", lambda c: c.world_size > 2),
    ("the world size does not divide the element count", lambda c: c.numel % c.world_size != 0),
    ("the tensor is 0-dim", lambda c: c.shape == ()),
    ("the tensor is empty", lambda c: c.numel == 0),
    ("the tensor is strided", lambda c: c.layout != "contiguous"),
    ("the tensor has more than one dimension", lambda c: len(c.shape) > 1),
    ("the dtype is not float32", lambda c: c.dtype != "float32"),
]
