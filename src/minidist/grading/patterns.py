"""Who may send to whom: the shapes of collectives, checked on a trace.

Each function returns None, or a Fault: where the first message is that does not belong, and a
sentence on what the run looks like instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from minidist.grading.cases import Case
from minidist.trace import Event, Trace


@dataclass(frozen=True)
class Fault:
    """A message that does not belong, or None if one is missing; what was expected; why."""

    event: Event | None
    expected: str
    diagnosis: str = ""
    rank: int | None = None


def ring(case: Case, trace: Trace) -> Fault | None:
    """Rank r sends only to r + 1, and so receives only from r - 1."""
    n = case.world_size
    sends = _sends(trace)
    wrong = [e for e in sends if e.peer != (e.rank + 1) % n]
    if not wrong and (n == 1 or case.numel == 0 or sends):
        return None
    if not sends:
        return Fault(None, "messages around the ring", "Nothing was sent at all.", 0)
    expected = "rank r sends to rank (r + 1) mod N and to nobody else"
    if all(e.peer == (e.rank - 1) % n for e in sends):
        why = (
            "Your ring turns the other way: every rank sends to its left neighbour. "
            "The contract sends to the right, (rank + 1) % world_size."
        )
    elif all(0 in (e.rank, e.peer) for e in sends):
        why = (
            "Everything goes through rank 0: this is the naive way, and rank 0 pays for all. "
            "On a ring each rank talks to its two neighbours only."
        )
    elif all(len({e.peer for e in sends if e.rank == r}) == n - 1 for r in range(n)):
        why = (
            "Every rank sends to every other rank directly. On a ring each rank talks to its two "
            "neighbours only, and what came from the left is handed on to the right."
        )
    else:
        why = "Some messages skip a neighbour."
    return Fault(min(wrong, key=lambda e: (e.step, e.rank)), expected, why)


def through_rank_0(case: Case, trace: Trace) -> Fault | None:
    """Each rank but 0 sends once to rank 0 and receives once from it."""
    n = case.world_size
    expected = "each rank sends its tensor to rank 0 once, and gets the sum from rank 0 once"
    sends = _sends(trace)
    past = [e for e in sends if 0 not in (e.rank, e.peer)]
    if past:
        everyone = all(len({e.peer for e in sends if e.rank == r}) == n - 1 for r in range(n))
        why = (
            "Every rank sends to every other: that is one more way to do it, but not the one asked "
            "for here, in which rank 0 collects, adds and hands out."
            if everyone
            else "Here only rank 0 adds: nobody sends anywhere else."
        )
        return Fault(min(past, key=lambda e: (e.step, e.rank)), expected, why)
    for rank in range(1, n):
        there = [e for e in sends if (e.rank, e.peer) == (rank, 0)]
        back = [e for e in sends if (e.rank, e.peer) == (0, rank)]
        if len(there) != 1 or len(back) != 1:
            came = f"rank {rank} sent {len(there)} to rank 0 and got {len(back)} back"
            extra = (there[1:] or back[1:] or [None])[0]
            return Fault(extra, expected, f"Here {came}.", rank)
    return None


def tree(case: Case, trace: Trace) -> Fault | None:
    """Every rank but src receives exactly once, from a rank that has the tensor already."""
    n, src = case.world_size, case.src or 0
    expected = f"every rank but {src} receives exactly once, and only from a rank that has it"
    received = [[e for e in events if e.kind == "recv"] for events in trace.by_rank]
    if received[src]:
        why = f"Rank {src} is the root and has the tensor already, yet it receives."
        return Fault(received[src][0], expected, why)
    for rank, events in enumerate(received):
        if rank != src and len(events) != 1:
            why = (
                "A rank that has the tensor already gets it again: bytes for nothing."
                if events
                else f"Rank {rank} received nothing."
            )
            return Fault(events[1] if events else None, expected, why, rank)
    for rank in range(n):
        at = received[rank][0].step if received[rank] else -1
        early = [e for e in trace.by_rank[rank] if e.kind == "send" and e.step <= at]
        if early:
            why = f"Rank {rank} sends before it has received anything: its own tensor is not src's."
            return Fault(early[0], expected, why)
    return None


def _sends(trace: Trace) -> list[Event]:
    return [e for events in trace.by_rank for e in events if e.kind == "send"]
