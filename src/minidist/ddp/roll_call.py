"""The roll call: before ranks communicate, each says what it is about to do.

A rank that evaluates while the others train, or that has stopped while they go on, would be paired
with the wrong collective, and everybody would wait for ever or get each other's numbers. So the
ranks of a DDP exchange one small message per step, on a process group of its own, where it
disturbs nobody's collectives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minidist.ddp.errors import RanksDisagree

TRAINS, ACCUMULATES, EVALUATES = range(3)
DOES = ("runs a training step", "runs forward under no_sync()", "evaluates")


class RollCall:
    """The calls of one DDP. Price: a message of 8 bytes to each other rank per call."""

    def __init__(self, group: dist.ProcessGroup, timeout_s: float):
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.timeout_s = timeout_s
        self.number = 0  # of the call, from 0
        self._waiting: tuple[Tensor, list[Tensor], list[Any], list[Any]] | None = None
        self._side: Any = None
        if self.world_size > 1:
            self._side = dist.new_group(
                dist.get_process_group_ranks(group),
                timeout=timedelta(seconds=timeout_s),
                backend="gloo",  # on the CPU, whatever carries the gradients
                use_local_synchronization=True,
            )

    def announce(self, what: int) -> None:
        """Tell the others what this rank does now; does not wait for them."""
        if self._side is None:
            return
        self.answer()  # the last call's, if nobody has asked for it
        mine = torch.tensor([what])
        theirs = [torch.zeros_like(mine) for _ in range(self.world_size)]
        others = [peer for peer in range(self.world_size) if peer != self.rank]
        sends = [dist.isend(mine, group=self._side, group_dst=peer) for peer in others]
        receives = [
            (peer, dist.irecv(theirs[peer], group=self._side, group_src=peer)) for peer in others
        ]
        self._waiting = (mine, theirs, sends, receives)

    def answer(self) -> None:
        """Wait until every other rank has announced itself. Raises RanksDisagree if one does
        something else, or has not come within `timeout_s`."""
        if self._waiting is None:
            return
        (mine, theirs, sends, receives), self._waiting = self._waiting, None
        deadline = time.monotonic() + self.timeout_s
        absent = {}
        for peer, receive in receives:
            left = max(0.001, deadline - time.monotonic())
            try:
                receive.wait(timedelta(seconds=left))
            except RuntimeError as error:
                absent[peer] = str(error).strip().splitlines()[0]
        what = [int(mine) if r == self.rank else int(theirs[r]) for r in range(self.world_size)]
        if absent:
            raise RanksDisagree(self._missing(what[self.rank], absent))
        for send in sends:
            send.wait()
        if len(set(what)) > 1:
            raise RanksDisagree(self._differing(what))
        self.number += 1

    def _missing(self, mine: int, absent: dict[int, str]) -> str:
        who = _ranks(sorted(absent))
        return (
            f"rank {self.rank} {DOES[mine]} (synchronised forward {self.number}), but {who} did "
            f"not come within {self.timeout_s:g} s ({next(iter(absent.values()))}). Did it stop "
            "early, with fewer batches? Wrap the loop in `with ddp.join():`, or give each rank as "
            f"many. Does only rank {self.rank} evaluate? Call ddp.module there, which needs no "
            "other rank."
        )

    def _differing(self, what: Sequence[int]) -> str:
        groups = [
            f"{_ranks([r for r, doing in enumerate(what) if doing == code])} {DOES[code]}"
            for code in sorted(set(what))
        ]
        return (
            f"at synchronised forward {self.number} " + ", but ".join(groups) + ". All ranks must "
            "do the same. To evaluate on some ranks only, call ddp.module there; to accumulate, "
            "enter no_sync() on every rank."
        )

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, on every rank."""
        if self._side is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._side)
        return values


def _ranks(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks))
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
