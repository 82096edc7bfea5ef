"""Who may send to whom: the shapes of collectives, checked on a trace.

Each function returns None, or a Fault: where the first message is that does not belong, and a
sentence on what the run looks like instead.
"""

from __future__ import annotations

from collections import Counter
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
    return _ring(case, trace, 1)


def ring_to_the_left(case: Case, trace: Trace) -> Fault | None:
    """Rank r sends only to r - 1, and so receives only from r + 1."""
    return _ring(case, trace, -1)


def _ring(case: Case, trace: Trace, turn: int) -> Fault | None:
    n = case.world_size
    sends = _sends(trace)
    wrong = [e for e in sends if e.peer != (e.rank + turn) % n]
    if not wrong and (n == 1 or case.numel == 0 or sends):
        return None
    if not sends:
        return Fault(None, "messages around the ring", "Nothing was sent at all.", 0)
    formula = "(r + 1) mod N" if turn == 1 else "(r - 1) mod N"
    expected = f"rank r sends to rank {formula} and to nobody else"
    if all(e.peer == (e.rank - turn) % n for e in sends):
        comes, due = ("left", "right") if turn == 1 else ("right", "left")
        why = (
            f"Your ring turns the other way: every rank sends to its {comes} neighbour. "
            f"The contract sends to the {due}, (rank {'+' if turn == 1 else '-'} 1) % world_size."
        )
    elif all(0 in (e.rank, e.peer) for e in sends):
        why = (
            "Everything goes through rank 0: this is the naive way, and rank 0 pays for all. "
            "On a ring each rank talks to its two neighbours only."
        )
    elif all(len({e.peer for e in sends if e.rank == r}) == n - 1 for r in range(n)):
        why = (
            "Every rank sends to every other rank directly. On a ring each rank talks to its two "
            "neighbours only, and what came from one is handed on to the other."
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


def up_and_down(case: Case, trace: Trace) -> Fault | None:
    """Each rank but 0 sends one partial sum, then receives the sum once: 2(N - 1) messages."""
    n = case.world_size
    sends = _sends(trace)
    if case.numel == 0 and not sends:
        return None
    expected = (
        f"{n - 1} messages up and {n - 1} down: each rank but 0 sends one partial sum, and then "
        "receives the sum once"
    )
    if len(sends) != 2 * (n - 1):
        why = f"Here are {len(sends)} messages in all."
        if len(sends) > 2 * (n - 1):
            why += (
                " In a tree every rank but 0 has one parent, to which it sends its partial sum "
                "once; swapping with several partners costs the bytes of each swap."
            )
        return Fault(sends[0] if sends else None, expected, why)
    for rank, events in enumerate(trace.by_rank):
        last = max((e.step for e in events if e.kind == "recv"), default=-1)
        before = [e for e in events if e.kind == "send" and e.step < last]
        if rank == 0 and before:
            why = "Rank 0 hands something out before it has received all partial sums."
            return Fault(before[0], expected, why)
        if rank and (len(before) > 1 or last < 0):
            why = f"Rank {rank} sends {len(before)} messages before the sum reaches it."
            return Fault(before[1] if before else None, expected, why, rank)
    return None


def halving_doubling(case: Case, trace: Trace) -> Fault | None:
    """P ranks swap with log2 P partners twice; each of the other N - P leans on one of them."""
    n = case.world_size
    power = 1 << (n.bit_length() - 1)
    rounds, extra = power.bit_length() - 1, n - power
    due = 2 * rounds * power + 2 * extra
    sends = _sends(trace)
    if case.numel == 0 and not sends:
        return None
    expected = f"{power} ranks swap in {rounds} halvings and {rounds} doublings: {due} messages"
    if extra:
        expected += f", {2 * extra} of them between the other {extra} and their stand-ins"
    if len(sends) == rounds * power + 2 * extra and rounds:
        return Fault(
            sends[0],
            expected,
            "Here are half as many swaps, so each must carry everything: first halve what is "
            "swapped from round to round, then double it.",
        )
    if len(sends) != due:
        return Fault(sends[0] if sends else None, expected, f"Here are {len(sends)} messages.", 0)
    ways = Counter((e.rank, e.peer) for e in sends)
    for rank in range(0, 2 * extra, 2):
        there, back = (rank, rank + 1), (rank + 1, rank)
        others = [way for way in ways if rank in way and way not in (there, back)]
        if others or ways[there] != 1 or ways[back] != 1:
            why = f"Rank {rank} is one too many: it leans on rank {rank + 1} and nobody else."
            return Fault(_first(trace, *(others or [there])[0]), expected, why)
    twice = [w for w in sorted(ways) if ways[w] != 2 and min(w) // 2 * 2 >= 2 * extra]
    if twice:
        why = "Each pair of partners meets twice: once halving, once doubling."
        return Fault(_first(trace, *twice[0]), expected, why)
    return None


def _first(trace: Trace, src: int, dst: int) -> Event | None:
    return next((e for e in _sends(trace) if (e.rank, e.peer) == (src, dst)), None)


def _sends(trace: Trace) -> list[Event]:
    return [e for events in trace.by_rank for e in events if e.kind == "send"]
