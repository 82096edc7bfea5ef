"""What the learner's process says, checked and turned into plain values.

Every field is taken apart by hand: a process that runs unknown code may say anything at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minidist.grading._child import MAX_RESULT
from minidist.grading.cases import Case, Trial
from minidist.grading.prints import Printed
from minidist.grading.sandbox import NONSENSE, Code, Garbled, Sandbox, converse, real_ranks
from minidist.mesh import Wait
from minidist.trace import Event, Trace

MAX_TEXT = 2000


@dataclass(frozen=True)
class Place:
    """A line of the learner's own code."""

    file: str
    line: int
    function: str
    code: str


@dataclass(frozen=True)
class Problem:
    """An exception of a rank."""

    type: str
    text: str
    where: list[Place]
    rank: int | None
    step: int | None


@dataclass
class RankAnswer:
    """What came out of one rank's call."""

    returned: bool
    type: str
    result: Tensor | None
    input_after: bytes
    alias: bool
    events: list[Event]
    carried: list[tuple[str, int, int]]


@dataclass
class Answer:
    """What came out of one case."""

    case: Case | Trial
    said: dict[str, Any] | None = None  # by the driver of a Trial; as it came, to be taken apart
    ranks: dict[int, RankAnswer] = field(default_factory=dict)
    problem: Problem | None = None
    waits: dict[int, Wait] = field(default_factory=dict)
    wait_places: dict[int, Place] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        if isinstance(self.case, Trial):
            return self.problem is None and self.said is not None
        return self.problem is None and all(
            r in self.ranks and self.ranks[r].returned for r in range(self.case.world_size)
        )

    @property
    def results(self) -> list[Tensor]:
        """Only for answers in which every rank returned a tensor."""
        return [self.ranks[r].result for r in range(self.case.world_size)]  # type: ignore[misc]

    @property
    def trace(self) -> Trace:
        return Trace(
            self.ranks[r].events if r in self.ranks else [] for r in range(self.case.world_size)
        )

    @property
    def tampered(self) -> bool:
        """Does the mesh's record differ from what its transport carried?"""
        return any(
            Counter((e.kind, e.peer, e.nbytes) for e in r.events) != Counter(r.carried)
            for r in self.ranks.values()
            if r.returned
        )


@dataclass
class Stop:
    """Why the process did not get to the end: "late", "silent", "ended" or "garbled"."""

    how: str
    case: Case | Trial | None  # None: while the file was being loaded
    rank: int | None = None
    where: list[Place] = field(default_factory=list)
    text: str = ""


@dataclass
class Attempt:
    """All that one run of the learner's code over many cases gave."""

    answers: list[Answer]
    loaded: dict[str, Any] | None
    load_problem: Problem | None
    stop: Stop | None
    distributed: list[str]
    prints: list[tuple[Case | Trial | None, Printed]]  # in the order of cases; None: loading
    deadline_s: float

    def has(self, case: str) -> bool:
        """Whether a case of that name was tried."""
        stopped = [self.stop.case] if self.stop else []
        return case in [str(c) for c in (*(a.case for a in self.answers), *stopped) if c]

    def printed(self, case: str | None = None) -> Printed:
        """What was printed in the case of that name, or in all."""
        together = Printed()
        for of, printed in self.prints:
            if case is None or str(of) == case:
                together.add(printed.text, printed.cut)
        return together

    @property
    def finished(self) -> list[Answer]:
        return [a for a in self.answers if a.finished]


def attempt(
    code: Code, functions: Sequence[str], cases: Sequence[Case | Trial], deadline_s: float
) -> Attempt:
    """Run the learner's code on all cases in one process; the ranks of a Case are simulated."""
    with Sandbox(code, functions, cases, deadline_s) as sandbox:
        return _collect([sandbox], cases, deadline_s, simulated=True)


def attempt_on_processes(
    code: Code, functions: Sequence[str], cases: Sequence[Case], deadline_s: float
) -> Attempt:
    """The same with one real process per rank."""
    sandboxes = real_ranks(code, functions, cases, deadline_s)
    try:
        return _collect(sandboxes, cases, deadline_s, simulated=False)
    finally:
        for sandbox in sandboxes:
            sandbox.stop()


def _collect(
    sandboxes: list[Sandbox], cases: Sequence[Case | Trial], deadline_s: float, simulated: bool
) -> Attempt:
    answers = {n: Answer(case) for n, case in enumerate(cases)}
    heard: set[int] = set()
    loaded: dict[str, Any] | None = None
    load_problem: Problem | None = None
    stop: Stop | None = None
    distributed: set[str] = set()
    current: dict[int, int] = {s.rank: -1 for s in sandboxes}  # the case that each is at
    ended: set[int] = set()

    def case_of(rank: int) -> Case | Trial | None:
        return cases[current[rank]] if current[rank] >= 0 else None

    try:
        for said in converse(sandboxes, total_s=len(cases) * 0.5 + 4 * deadline_s):
            header, sandbox = said.header, sandboxes[said.rank]
            kind = header.get("kind")
            if said.kind == "ended":
                if said.rank not in ended:
                    stop = Stop(
                        "ended",
                        case_of(said.rank),
                        _own(said.rank, simulated),
                        [],
                        sandbox.exit_text,
                    )
                    break
            elif said.kind == "silent":
                stop = Stop("silent", case_of(said.rank), _own(said.rank, simulated))
                break
            elif kind == "begin":
                number = header["case"]
                if type(number) is not int or not -1 <= number < len(cases):
                    raise Garbled("a case that there is not")
                current[said.rank] = number
            elif kind == "loaded":
                loaded = header
                if "error" in header:
                    load_problem = _problem(header["error"])
            elif kind == "answer":
                heard.add(header["case"])
                distributed |= set(map(_text, header["distributed"]))
                answer = answers[header["case"]]
                _take(answer, header, said.payload, None if simulated else said.rank)
                if not simulated and answer.problem:
                    break  # the other ranks would only wait for this one
            elif kind == "late":
                rank = header["rank"] if simulated else said.rank
                where = [_place(p) for p in header["where"]]
                stop = Stop("late", case_of(said.rank), _rank(rank), where)
                break
            elif kind == "end":
                ended.add(said.rank)
            else:
                raise Garbled("a frame of an unknown kind")
    except NONSENSE as error:
        stop = Stop("garbled", case_of(min(current)), text=str(error)[:MAX_TEXT])
    for sandbox in sandboxes:
        sandbox.stop()
    by_case = [sandbox.printed.by_case for sandbox in sandboxes]
    prints = [
        (case, printed[number])
        for number, case in enumerate([None, *cases], -1)
        for printed in by_case
        if number in printed
    ]
    raised = any(a.problem and not a.case.refused for a in answers.values())
    if stop is None and loaded is not None and "signatures" in loaded and not raised:
        # Nothing may be judged by the cases that were answered if others were left out.
        missing = [a.case for a in answers.values() if not a.finished and not a.problem]
        if missing:
            stop = Stop("ended", missing[0], text="it said nothing more")
    return Attempt(
        [answers[n] for n in sorted(heard)],
        loaded, load_problem, stop, sorted(distributed), prints, deadline_s,
    )  # fmt: skip


def _own(rank: int, simulated: bool) -> int | None:
    return None if simulated else rank


def _take(answer: Answer, header: dict[str, Any], payload: bytes, only: int | None) -> None:
    """Fill `answer` from one frame: all ranks of a simulated case, or one real rank."""
    if isinstance(answer.case, Trial) and "said" in header:
        if not isinstance(header["said"], dict):
            raise Garbled("an answer that is no object")
        answer.said = header["said"]
    world_size = answer.case.world_size
    ranks = list(range(world_size)) if only is None else [only]
    if len(header["ranks"]) != len(ranks):
        raise Garbled("not one answer per rank")
    at = 0
    for rank, head in zip(ranks, header["ranks"], strict=True):
        size = _count(head["input_bytes"])
        input_after = payload[at : at + size]
        at += size
        result = None
        if head["type"] == "Tensor":
            size = _count(head["result_bytes"])
            result = _tensor(head, payload[at : at + size])
            at += size
        answer.ranks[rank] = RankAnswer(
            head["returned"] is True,
            _text(head["type"]),
            result,
            input_after,
            head.get("alias") is True,
            [_event(e, rank, world_size) for e in head["events"]],
            [(_text(k), _count(p), _count(n)) for k, p, n in head.get("carried", [])],
        )
    if at != len(payload):
        raise Garbled("bytes that belong to nothing")
    if "error" in header:
        answer.problem = _problem(header["error"])
    for rank, verb, peer, step, place in header.get("waits", []):
        answer.waits[_count(rank)] = Wait(_text(verb), _count(peer), _count(step))
        if place:
            answer.wait_places[rank] = _place(place)


def _tensor(head: dict[str, Any], data: bytes) -> Tensor:
    dtype = getattr(torch, _text(head["dtype"]))
    shape = tuple(map(_count, head["shape"]))
    if not isinstance(dtype, torch.dtype) or len(shape) > 16:
        raise Garbled("a tensor of no dtype or too many dimensions")
    numel = 1
    for size in shape:
        numel *= size
    if numel * dtype.itemsize > MAX_RESULT:  # it came without its elements: its shape is wrong
        return torch.empty(shape, dtype=dtype, device="meta")
    if numel * dtype.itemsize != len(data):
        raise Garbled("a tensor whose bytes are not its shape's")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _event(fields: dict[str, Any], rank: int, world_size: int) -> Event:
    if fields["kind"] not in ("send", "recv") or fields["rank"] != rank:
        raise Garbled("an event that is neither a send nor a receive of its rank")
    if not isinstance(getattr(torch, _text(fields["dtype"])), torch.dtype):
        raise Garbled("an event of no dtype")
    peer = _count(fields["peer"])
    if peer >= world_size or peer == rank:
        raise Garbled("an event with a peer that there is not")
    offset = fields["offset"]
    return Event(
        rank,
        fields["kind"],
        peer,
        _count(fields["step"]),
        _count(fields["nbytes"]),
        fields["dtype"],
        tuple(map(_count, fields["shape"])),
        None if offset is None else _count(offset),
        float(fields["start"]),
        float(fields["end"]),
    )


def _problem(fields: dict[str, Any]) -> Problem:
    return Problem(
        _text(fields["type"]),
        _text(fields["text"]),
        [_place(p) for p in fields["where"]],
        _rank(fields.get("rank")),
        _rank(fields.get("step")),
    )


def _place(fields: list[Any]) -> Place:
    file, line, function, code = fields
    return Place(_text(file), _count(line), _text(function), _text(code)[:200])


def _rank(value: Any) -> int | None:
    return None if value is None else _count(value)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise Garbled("a number that is no count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Garbled("a text that is none")
    # Half a surrogate pair is no character: it could not be shown or written.
    return value[:MAX_TEXT].encode(errors="backslashreplace").decode()
