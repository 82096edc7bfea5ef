"""Event, Mark and Trace: what a run did. Counters, pictures, prices and grades are its views."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any


@cache
def dtype_name(dtype: Any) -> str:
    """torch.float32 -> 'float32'."""
    return str(dtype).removeprefix("torch.")


@dataclass(slots=True)  # not frozen: that makes it five times as slow to make, and millions are
class Event:
    """One half of one message, as its rank saw it.

    Two events are equal when they say the same thing; *when* it happened does not count, so traces
    of two transports can be compared with ==.
    """

    rank: int
    kind: str  # "send" or "recv"
    peer: int  # the rank at the other end
    step: int  # verb calls of this rank before this one; both halves of a sendrecv share it
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    offset: int | None  # where the sent view starts in its storage, in elements; None for recv
    start: float = field(compare=False)  # seconds since the run began
    end: float = field(compare=False)

    def brief(self) -> str:
        """'step 3 send to 1, 4096 bytes'."""
        way = "to" if self.kind == "send" else "from"
        return f"step {self.step} {self.kind} {way} {self.peer}, {self.nbytes} bytes"


@dataclass(frozen=True, slots=True)
class Mark:
    """Something other than a message that a rank did: what a Reducer does, for example."""

    rank: int
    kind: str  # of a DDP: forward, output, backward, ready, launch, done, wait, finalize
    name: str  # of the parameter, if it is about one
    bucket: int | None
    nbytes: int
    at: float = field(compare=False)  # seconds since the run began


class Trace:
    """The events of a run: `by_rank[r]` is rank r's list, in the order in which they happened.

    `marks[r]` is what rank r has marked besides. Two traces are equal if their messages are.
    """

    def __init__(
        self, by_rank: Iterable[Iterable[Event]], marks: Iterable[Iterable[Mark]] | None = None
    ):
        self.by_rank = [list(events) for events in by_rank]
        self.marks = [list(m) for m in marks] if marks is not None else [[] for _ in self.by_rank]

    @property
    def world_size(self) -> int:
        return len(self.by_rank)

    def __iter__(self) -> Iterator[Event]:
        """All events by time of their end, ties by rank."""
        return iter(sorted((e for es in self.by_rank for e in es), key=lambda e: (e.end, e.rank)))

    def __len__(self) -> int:
        return sum(map(len, self.by_rank))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.by_rank == other.by_rank

    __hash__ = None  # type: ignore[assignment]  # a list inside

    def __repr__(self) -> str:
        return (
            f"<Trace: {self.world_size} ranks, {sum(self.messages_sent)} messages, "
            f"{sum(self.bytes_sent)} bytes>"
        )

    @property
    def bytes_sent(self) -> list[int]:
        """Bytes that each rank sent."""
        return [self._sum(events, "send") for events in self.by_rank]

    @property
    def bytes_received(self) -> list[int]:
        """Bytes that each rank received."""
        return [self._sum(events, "recv") for events in self.by_rank]

    @property
    def messages_sent(self) -> list[int]:
        """Messages that each rank sent."""
        return [sum(e.kind == "send" for e in events) for events in self.by_rank]

    @property
    def duration(self) -> float:
        """Seconds from the first start to the last end (virtual seconds if simulated)."""
        events = [e for es in self.by_rank for e in es]
        if not events:
            return 0.0
        return max(e.end for e in events) - min(e.start for e in events)

    def unreceived(self) -> dict[tuple[int, int], int]:
        """Messages that were sent but never received: {(src, dst): count}."""
        balance: Counter[tuple[int, int]] = Counter()
        for event in self:
            if event.kind == "send":
                balance[event.rank, event.peer] += 1
            else:
                balance[event.peer, event.rank] -= 1
        return {link: count for link, count in sorted(balance.items()) if count}

    @staticmethod
    def _sum(events: list[Event], kind: str) -> int:
        return sum(e.nbytes for e in events if e.kind == kind)

    def to_jsonl(self, path: str | Path) -> None:
        """Write one JSON object per line: {"world_size": N}, then an event or a mark each."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps({"world_size": self.world_size}) + "\n")
            for events in (*self.by_rank, *self.marks):
                file.writelines(json.dumps(asdict(event)) + "\n" for event in events)

    @classmethod
    def from_jsonl(cls, path: str | Path) -> Trace:
        """Read what `to_jsonl` wrote."""
        with open(path, encoding="utf-8") as file:
            world_size = json.loads(next(file))["world_size"]
            by_rank: list[list[Event]] = [[] for _ in range(world_size)]
            marks: list[list[Mark]] = [[] for _ in range(world_size)]
            for line in file:
                fields = json.loads(line)
                if "at" in fields:
                    marks[fields["rank"]].append(Mark(**fields))
                else:
                    event = Event(**{**fields, "shape": tuple(fields["shape"])})
                    by_rank[event.rank].append(event)
        return cls(by_rank, marks)

    def to_chrome(self, path: str | Path) -> None:
        """Write Chrome's trace format (open it in ui.perfetto.dev): a track per rank and kind.

        Marks are instants; what is between the launch of a bucket and its end, a slice.
        """
        slices = []
        free_at: dict[tuple[int, str], float] = {}  # a buffered send waits for those before it
        for e in self:
            start = max(e.start, free_at.get((e.rank, e.kind), 0.0))
            free_at[e.rank, e.kind] = e.end
            slices.append(
                {
                    "name": f"{e.kind} {'to' if e.kind == 'send' else 'from'} {e.peer}",
                    "cat": e.kind,
                    "ph": "X",  # a complete slice: has a start and a duration, in microseconds
                    "ts": start * 1e6,
                    "dur": (e.end - start) * 1e6,
                    "pid": e.rank,
                    "tid": 0 if e.kind == "send" else 1,
                    "args": {"bytes": e.nbytes, "dtype": e.dtype, "shape": e.shape, "step": e.step},
                }
            )
        tracks = ["send", "recv"]
        if any(self.marks):
            tracks += ["steps", "buckets"]
            slices += [_chrome_mark(mark) for marks in self.marks for mark in marks]
        names = [
            {"name": "process_name", "ph": "M", "pid": r, "args": {"name": f"rank {r}"}}
            for r in range(self.world_size)
        ]
        names += [
            {"name": "thread_name", "ph": "M", "pid": r, "tid": tid, "args": {"name": kind}}
            for r in range(self.world_size)
            for tid, kind in enumerate(tracks)
        ]
        Path(path).write_text(json.dumps({"traceEvents": names + slices}), encoding="utf-8")


def _chrome_mark(mark: Mark) -> dict[str, Any]:
    common = {"cat": "mark", "ts": mark.at * 1e6, "pid": mark.rank, "args": {"bytes": mark.nbytes}}
    if mark.kind in ("launch", "done"):  # buckets overlap each other, so no plain slices
        phase = "b" if mark.kind == "launch" else "e"
        return common | {"name": f"bucket {mark.bucket}", "ph": phase, "id": mark.bucket, "tid": 3}
    return common | {"name": f"{mark.kind} {mark.name}".strip(), "ph": "i", "s": "t", "tid": 2}
