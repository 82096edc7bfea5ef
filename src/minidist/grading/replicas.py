"""Replicas of a model on ranks that are threads: the reader's on a `Comm`, PyTorch's DDP on gloo.

Both play one script, so what DDP does is the measure, live. The reader's run in the reader's
process, DDP in the grader's.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minidist.grading.report import Feedback
from minidist.trace import dtype_name

REFERENCE_S = 60.0  # for a script under DDP, also on a busy machine
MAX_COLLECTIVES = 2000  # per rank; far more than any script needs

Note = Callable[[dict[str, Any]], None]  # takes what a rank has to say about a moment
Script = Callable[[Any, nn.Module, int, Note], None]  # (replica, module, rank, note)


class Disagreement(Exception):
    """The ranks did not all call the same collectives; the text says which rank called what."""


class _Meeting:
    """Where the ranks meet for a collective. Who can never be joined by all is told at once."""

    def __init__(self, world_size: int):
        self.world_size = world_size
        self.changed = threading.Condition()
        self.here: dict[int, tuple[str, Tensor]] = {}  # what each waiting rank has called
        self.gone: dict[int, str] = {}  # ranks that call no more, and why
        self.round = 0
        self.problem: str | None = None

    def join(self, rank: int, call: str, tensor: Tensor, combine: Callable[[list], None]) -> None:
        with self.changed:
            mine = self.round
            self.here[rank] = call, tensor
            self._look()
            if not self.problem and len(self.here) == self.world_size:
                combine([self.here[r][1] for r in range(self.world_size)])
                self.here.clear()
                self.round += 1
            self.changed.notify_all()
            while not self.problem and self.round == mine:
                self.changed.wait()
            if self.round == mine:
                raise Disagreement(self.problem)

    def leave(self, rank: int, why: str) -> None:
        with self.changed:
            self.gone[rank] = why
            self._look()
            self.changed.notify_all()

    def _look(self) -> None:
        everyone = len(self.here) + len(self.gone) == self.world_size
        calls = {call for call, _ in self.here.values()}
        if self.problem or not everyone or not calls or (not self.gone and len(calls) == 1):
            return
        told = {r: f"waits in {call}" for r, (call, _) in self.here.items()} | self.gone
        self.problem = "; ".join(f"rank {r} {told[r]}" for r in sorted(told))


class Comm:
    """What the reader's code talks through: `rank`, `world_size`, and two collectives in place.

    Each blocks until all ranks have called the same one, with as many elements of the same dtype.
    """

    def __init__(self, meeting: _Meeting, rank: int):
        self._meeting = meeting
        self.rank, self.world_size = rank, meeting.world_size
        self._calls: list[list[Any]] = []

    def all_reduce(self, tensor: Tensor) -> None:
        """Every rank's `tensor` becomes the sum of them all, added in the tensor's dtype."""

        def add(tensors: list[Tensor]) -> None:
            total = tensors[0].clone()
            for other in tensors[1:]:
                total += other
            for one in tensors:
                one.copy_(total)

        self._collective("all_reduce", tensor, add)

    def broadcast(self, tensor: Tensor, src: int) -> None:
        """Every rank's `tensor` becomes that of rank `src`."""

        def give(tensors: list[Tensor]) -> None:
            value = tensors[src].clone()
            for one in tensors:
                one.copy_(value)

        self._collective("broadcast", tensor, give, f" from rank {src}")

    def _collective(
        self, op: str, tensor: Tensor, combine: Callable[[list[Tensor]], None], what: str = ""
    ) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{op} takes a tensor, not a {type(tensor).__name__}")
        if len(self._calls) >= MAX_COLLECTIVES:
            raise RuntimeError(f"{MAX_COLLECTIVES} collectives, and no end of it")
        dtype = dtype_name(tensor.dtype)
        self._calls.append([op, tensor.numel(), dtype, tensor.numel() * tensor.element_size()])
        elements = f"{tensor.numel()} element{'s' * (tensor.numel() != 1)}"
        call = f"{op} of {elements} of {dtype}{what}"
        with torch.no_grad():
            self._meeting.join(self.rank, call, tensor.detach(), combine)


def play(
    wrap: Callable[[nn.Module, Comm], Any],
    build: Callable[[], nn.Module],
    script: Script,
    world_size: int,
) -> dict[str, Any]:
    """Play `script` with the reader's replicas: {"notes": per rank, "disagreement": a text or None}

    Each note gets the collectives since the one before as "calls": [op, elements, dtype, bytes].
    """
    meeting = _Meeting(world_size)
    notes: list[list[dict[str, Any]]] = [[] for _ in range(world_size)]
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        why = "has raised an exception"
        try:
            comm = Comm(meeting, rank)
            module = build()

            def note(said: dict[str, Any]) -> None:
                notes[rank].append({**said, "calls": comm._calls})
                comm._calls = []

            script(wrap(module, comm), module, rank, note)
            why = "has come to the end"
        except BaseException as error:
            error.minidist_rank = rank
            problems.append(error)
        finally:
            meeting.leave(rank, why)

    _threads(run, world_size, None)
    others = [p for p in problems if not isinstance(p, Disagreement)]
    if others:
        raise others[0]
    return {"notes": notes, "disagreement": str(problems[0]) if problems else None}


def play_ddp(
    build: Callable[[], nn.Module],
    script: Script,
    world_size: int,
    comm_hook: Callable[..., Any] | None = None,
    **options: Any,
) -> list[list[dict[str, Any]]]:
    """Play `script` with PyTorch's DDP(module, **options): the notes of each rank."""
    store = dist.HashStore()
    groups = []  # a group that is let go waits for its peers, and all threads for it
    notes: list[list[dict[str, Any]]] = [[] for _ in range(world_size)]
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            group = dist.ProcessGroup(dist.PrefixStore("group", store), rank, world_size)
            gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world_size)
            kind = dist.ProcessGroup.BackendType.GLOO
            groups.append(group)
            group._set_default_backend(kind)
            group._register_backend(torch.device("cpu"), kind, gloo)
            module = build()
            replica = DistributedDataParallel(module, process_group=group, **options)
            if comm_hook:
                replica.register_comm_hook(group, comm_hook)
            script(replica, module, rank, notes[rank].append)
        except BaseException as error:
            problems.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _threads(run, world_size, REFERENCE_S)
    if problems:
        raise RuntimeError("PyTorch's DDP did not get through the script") from problems[0]
    return notes


def _threads(run: Callable[[int], None], world_size: int, timeout: float | None) -> None:
    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        if thread.is_alive():
            raise RuntimeError(f"not finished after {timeout:g} s")


def gradients(module: nn.Module) -> dict[str, list[float] | None]:
    """Each parameter's gradient, as numbers."""
    return {
        name: None if p.grad is None else p.grad.detach().double().reshape(-1).tolist()
        for name, p in module.named_parameters()
    }


def batch(rank: int, number: int, width: int = 3) -> Tensor:
    """Two rows of whole numbers, others on every rank and in every step."""
    generator = torch.Generator().manual_seed(1000 * rank + number)
    return torch.randint(-9, 10, (2, width), generator=generator).double()


def with_whole_numbers(module: nn.Module) -> nn.Module:
    """The module with small whole numbers as parameters, the same on every rank."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape, generator=generator))
    return module


def same(one: list[float] | None, other: list[float] | None) -> bool:
    """Equal but for the rounding of a division."""
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(
        abs(a - b) <= 1e-6 * max(1.0, abs(b)) for a, b in zip(one, other, strict=True)
    )


def short(values: list[float] | None) -> str:
    """A gradient as feedback shows it."""
    if values is None:
        return "None"
    return f"[{', '.join(f'{v:g}' for v in values[:4])}{', ...' * (len(values) > 4)}]"


def agreed(trial: Any, said: dict[str, Any]) -> Feedback | None:
    """The check that every rank calls the same collectives, in the same order."""
    if not said["disagreement"]:
        return None
    return Feedback(
        "The ranks do not call the same collectives: with torch.distributed this would hang.",
        came=said["disagreement"],
        diagnosis="A rank has come to the end without talking, as one does that decides only once "
        "what to wait for, and not in every forward."
        if "has come to the end" in said["disagreement"]
        else "Every rank has to call the same collectives, in the same order and with the same "
        "sizes, whatever this rank's own batch has used.",
    )
