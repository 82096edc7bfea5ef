"""The roll call: before ranks communicate, each says what it is about to do.

A rank that evaluates while the others train, or that has stopped while they go on, would be paired
with the wrong collective, and everybody would wait for ever or get each other's numbers. So the
ranks exchange small messages, on a process group of its own, where they disturb nobody's
collectives: before what a forward broadcasts, and at the end of a backward pass, before the wait
for the others' gradients.
"""

from __future__ import annotations

import itertools
import re
import time
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from minidist.ddp.errors import RanksDisagree

WRAPS, FORWARD, EVALUATES, HAS_ALL, LACKS, BROKE_OFF = range(6)
DOES = (
    "wraps a module",
    "runs forward",
    "evaluates (no gradients)",
    "has all gradients of a backward pass",
    "lacks gradients at the end of a backward pass",
    "has left a backward pass by an exception",
)
# Per process group the one for its roll calls, and numbers for who uses it. It is never destroyed
# (ranks would do that at different times, and the next one would find the remains), but by
# destroy_process_group(), for which nobody here may hold it.
Side = tuple[weakref.ref[dist.ProcessGroup], Iterator[int]]
_sides: weakref.WeakKeyDictionary[dist.ProcessGroup, Side] = weakref.WeakKeyDictionary()


class RollCall:
    """The calls of one DDP. Price: a message of 16 bytes to each other rank per call."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float):
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.timeout_s = timeout_s
        self.off = self.world_size == 1
        if not self.off:
            self._side, numbers = _side_of(group, timeout_s)
            self._tag = next(numbers)

    def call(self, what: int, detail: int = 0) -> None:
        """Say what this rank does, and hear it from all others.

        Raises RanksDisagree if one says something else, or nothing within `timeout_s`.
        """
        if self.off:
            return
        side = self._side()
        if side is None:
            raise RanksDisagree(f"rank {self.rank} {DOES[what]} after destroy_process_group()")
        said = [torch.tensor([what, detail]) for _ in range(self.world_size)]
        others = [peer for peer in range(self.world_size) if peer != self.rank]
        waits: list[tuple[int, Any]] = []
        absent: dict[int, str] = {}
        for peer in others:
            place = {"group": side, "tag": self._tag}
            try:
                waits.append((peer, dist.isend(said[self.rank], group_dst=peer, **place)))
                waits.append((peer, dist.irecv(said[peer], group_src=peer, **place)))
            except RuntimeError as error:  # its process has ended
                absent[peer] = _first_sentence(error)
        deadline = time.monotonic() + self.timeout_s
        for peer, wait in waits:
            try:
                wait.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))
            except RuntimeError as error:
                late = time.monotonic() >= deadline
                why = f"not within {self.timeout_s:g} s" if late else _first_sentence(error)
                absent.setdefault(peer, why)
        if absent:
            raise RanksDisagree(self._absent(what, absent))
        if any(not torch.equal(one, said[0]) for one in said):
            raise RanksDisagree(_differing([one.tolist() for one in said]))

    def _absent(self, mine: int, absent: dict[int, str]) -> str:
        who = _ranks(sorted(absent))
        return (
            f"rank {self.rank} {DOES[mine]}, but {who} did not come "
            f"({next(iter(absent.values()))}). If {who} failed, see the error there. Did it stop "
            "early, with fewer batches? Wrap the loop in `with ddp.join():`, or give all ranks as "
            f"many. Does only rank {self.rank} evaluate? Call ddp.module there, which needs no "
            "other rank. Is it only slow? Pass DDP a larger rank_timeout_s "
            f"than {self.timeout_s:g}."
        )

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, on every rank."""
        if self.world_size == 1:
            return [value]
        self.call(WRAPS)  # which names who is missing
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._side())
        return values


def _side_of(
    group: dist.ProcessGroup, timeout_s: float
) -> tuple[weakref.ref[dist.ProcessGroup], Iterator[int]]:
    if group not in _sides:
        try:
            side = dist.new_group(
                dist.get_process_group_ranks(group),
                timeout=timedelta(seconds=timeout_s),
                backend="gloo",  # on the CPU, whatever carries the gradients
                use_local_synchronization=True,
            )
        except RuntimeError as error:
            raise RanksDisagree(
                f"not all ranks of the process group wrapped a module within {timeout_s:g} s: "
                f"{_first_sentence(error)}"
            ) from error
        _sides[group] = weakref.ref(side), itertools.count()
    return _sides[group]


def _differing(said: Sequence[Sequence[int]]) -> str:
    groups = []
    for what, detail in sorted({(what, detail) for what, detail in said}):
        who = _ranks([rank for rank, one in enumerate(said) if tuple(one) == (what, detail)])
        sent = f", {detail} buckets sent" if what in (LACKS, BROKE_OFF) else ""
        groups.append(f"{who} {DOES[what]}{sent}")
    kinds = {what for what, _ in said}
    if LACKS in kinds:
        advice = (
            "If the loss does not depend on all parameters on every rank, pass "
            "find_unused_parameters=True."
        )
    elif BROKE_OFF in kinds:
        advice = "Whoever catches an exception of backward() and goes on must do so on all ranks."
    elif EVALUATES in kinds:
        advice = "To evaluate on some ranks only, call ddp.module there, which needs no other rank."
    else:
        advice = "All ranks must call the same DDP, forward and backward, equally often."
    return f"{', but '.join(groups)}. {advice}"


def _first_sentence(error: Exception) -> str:
    return re.sub(r"^\[[^]]*\] ", "", str(error).strip()).splitlines()[0].split(". ")[0]


def _ranks(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks))
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
