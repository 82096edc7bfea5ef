"""What went wrong between ranks: who waits for whom, why, and what the last messages were.

Each rank keeps its events anyway; these are the flight recorder. When a run fails, the parent asks
every rank for a Report and puts them together.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

from minidist.mesh import COLLECTIVES, Mesh, Wait
from minidist.trace import Event

LIBRARIES = (os.path.dirname(__file__), *{sysconfig.get_path(p) for p in ("stdlib", "purelib")})
LAST = 4  # events that a report carries
MANY = 8  # ranks; of more, only those that matter show their last messages


@dataclass(frozen=True)
class Report:
    """What a rank was doing when it was asked."""

    wait: Wait | None  # the verb it was in
    place: str  # where its code was otherwise
    step: int
    sent: Counter[int]  # messages to each rank so far
    received: Counter[int]
    last: Sequence[Event]


def report_on(mesh: Mesh, frame: FrameType) -> Report:
    """The report of this rank; `frame` is where its main thread is."""
    last = tuple(mesh.events)[-LAST:]
    where = place(traceback.walk_stack(frame))
    return Report(
        mesh.waits_for, where, mesh.step, Counter(mesh.sent), Counter(mesh.received), last
    )


def report_of_finished(events: Sequence[Event]) -> Report:
    """The report of a rank that has returned."""
    sent, received = (
        Counter(event.peer for event in events if event.kind == kind) for kind in ("send", "recv")
    )
    step = events[-1].step + 1 if events else 0
    return Report(None, "", step, sent, received, events[-LAST:])


def describe(
    reports: Mapping[int, Report],
    finished: Collection[int],
    gone: Mapping[int, str],
    silent: Collection[int],
    failed: int | None,
    explain: bool,
) -> str:
    """The whole story.

    reports: of every rank that has one; finished: the ranks that have returned; gone: how the
    processes of others ended; silent: those that do not answer; failed: the rank whose error this
    is about; explain: whether that error does not say by itself what happened.
    """
    lines = []
    waits = {}
    for rank, report in sorted(reports.items()):
        if rank in finished or (rank == failed and not explain):
            continue
        if report.wait:
            waits[rank] = report.wait
        else:
            lines.append(f"  rank {rank}: {report.place}")
    lines += [f"  rank {rank}: {how}" for rank, how in sorted(gone.items())]
    lines += [f"  rank {rank}: does not answer" for rank in sorted(silent)]
    if finished:
        lines.append(f"  {names(finished)}: returned already")
    if waits:
        lines.append(describe_waits(waits, finished))
    if not lines:
        return ""
    text = "At that moment:\n" + "\n".join(lines)
    if explain and (cause := likely_cause(reports, finished, gone, silent, failed)):
        text += f"\nLikely cause: {cause}"
    if recorded := last_messages(reports, failed):
        text += f"\nLast messages:\n{recorded}"
    return text


def likely_cause(
    reports: Mapping[int, Report],
    finished: Collection[int],
    gone: Mapping[int, str],
    silent: Collection[int],
    failed: int | None,
) -> str:
    """Follow the waits from the rank that failed to the one that holds up all others."""
    waiting = [r for r, report in sorted(reports.items()) if report.wait and r not in finished]
    if gone:  # whoever waits for the lost one says it best; the others may be anywhere
        waiting = [r for r in waiting if reports[r].wait.peer in gone]
    if not waiting:
        return ""
    rank = failed if failed in waiting else waiting[0]
    followed: list[int] = []
    while rank not in followed:
        followed.append(rank)
        report = reports[rank]
        wait = report.wait
        assert wait is not None
        peer, number = wait.peer, report.received[wait.peer]
        theirs = reports.get(peer)
        if peer in gone:
            return f"rank {peer} is gone, and rank {rank} needs its message {number}."
        if peer in silent or theirs is None:
            return (
                f"rank {peer} does not answer, and rank {rank} needs its message {number}. It may "
                "be in a long call outside of Python, or starved of processor time."
            )
        if wait.verb == "recv from" and theirs.sent[rank] > number:
            return (
                f"rank {peer} has sent message {number} to rank {rank}, and it has not arrived: "
                f"it was lost on the way, or the wire from {peer} to {rank} is slow"
                f"{_how_slow(report, peer)}."
            )
        if peer in finished:
            return (
                f"rank {peer} has returned after {_counted(number, 'message')} to rank {rank}, "
                "which waits for one more: the two do not make the same calls."
            )
        if theirs.wait is None:
            return (
                f"rank {peer} has not come to the call that rank {rank} waits for: it is "
                f"{theirs.place}, after {_counted(theirs.step, 'call')}."
            )
        if wait.within and theirs.wait.within and wait.within != theirs.wait.within:
            return (
                f"rank {rank} is in {wait.within} and rank {peer} is in {theirs.wait.within}: they "
                "call their collectives in different orders."
            )
        rank = peer
    circle = followed[followed.index(rank) :]
    return (
        f"each of the ranks {', '.join(map(str, sorted(circle)))} receives before the one that "
        "waits for it has been sent anything: one must send first, or all use sendrecv."
    )


def _how_slow(report: Report, peer: int) -> str:
    took = [e.end - e.start for e in report.last if e.kind == "recv" and e.peer == peer]
    return f" (the message before took {took[-1]:.2g} s)" if took and took[-1] > 0.01 else ""


def last_messages(reports: Mapping[int, Report], failed: int | None) -> str:
    """A line per rank: the tail of its flight recorder."""
    ranks = sorted(reports)
    if len(ranks) > MANY and failed in reports:
        wait = reports[failed].wait
        ranks = [r for r in ranks if r == failed or (wait and r == wait.peer)]
    return "\n".join(
        f"  rank {rank}: " + "; ".join(event.brief() for event in reports[rank].last)
        for rank in ranks[:MANY]
        if reports[rank].last
    )


def names(ranks: Collection[int]) -> str:
    """'rank 1' or 'ranks 0, 2'."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))


def describe_waits(waits: dict[int, Wait], finished: Iterable[int] = ()) -> str:
    """Who waits for whom, as text; names the circle if there is one."""
    finished = set(finished)
    lines = []
    for rank, wait in sorted(waits.items()):
        gone = " (which has already finished)" if wait.peer in finished else ""
        lines.append(f"  rank {rank}: {wait}{gone}")
    circle = wait_circle({rank: wait.peer for rank, wait in waits.items()})
    if circle:
        lines.append("They wait in a circle: " + " -> ".join(map(str, [*circle, circle[0]])))
    return "\n".join(lines)


def wait_circle(waits_for: dict[int, int]) -> list[int]:
    """The ranks of a circle in a wait-for graph with one arrow per rank, or []."""
    for first in sorted(waits_for):
        path, rank = [], first
        while rank in waits_for and rank not in path:
            path.append(rank)
            rank = waits_for[rank]
        if rank in path:
            circle = path[path.index(rank) :]
            smallest = circle.index(min(circle))
            return circle[smallest:] + circle[:smallest]
    return []


def of_a_library(code: CodeType) -> bool:
    """Whether the code is Python's, an installed package's or ours, and no reader's."""
    return code.co_filename.startswith((*LIBRARIES, "<frozen", "<string>"))


def place(calls: Iterable[tuple[FrameType, int]]) -> str:
    """'in its own code, work at notebook.py:12': the first (frame, line) that no library owns."""
    collective = ""
    for frame, line in calls:
        code = frame.f_code
        if code.co_filename.startswith(COLLECTIVES):
            collective = code.co_name
        if not of_a_library(code):
            return f"in its own code, {code.co_name} at {os.path.basename(code.co_filename)}:{line}"
    return f"in {collective}, outside of any send or recv" if collective else "starting or leaving"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
