"""The exercises whose functions are no collectives: their trials, and who judges them.

A trial is run by a driver (drivers.py) in the reader's process; the judges here see what it said.
Whatever they read may be anything: the caller turns a KeyError or the like into a feedback.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minidist.cost import broadcast_cost, ring_allreduce_cost
from minidist.grading import planted
from minidist.grading.cases import Trial
from minidist.grading.drivers import describe, make_tensor, ring_input
from minidist.grading.report import Feedback

TrialJudge = Callable[[Trial, dict[str, Any]], "Feedback | None"]


@dataclass(frozen=True)
class Task:
    """One exercise that is tried by drivers. `checks` come after loads, runs and terminates."""

    name: str
    title: str
    chapter: str
    minutes: int
    functions: dict[str, tuple[str, ...]]  # what the reader's file defines, with which parameters
    cases: Sequence[Trial]
    checks: Sequence[tuple[str, str, TrialJudge]] = field(default_factory=tuple)
    deadline_s: float = 2.0  # for one trial


# --- choose_algorithm

MACHINES = {
    "5 microseconds and 12.5 GB/s": (5e-6, 1 / 12.5e9),
    "30 microseconds and 1 GB/s": (30e-6, 1e-9),
    "1 millisecond and 100 MB/s": (1e-3, 1e-8),
}
_CALLS = [
    (nbytes, n, alpha, beta)
    for n in (1, 2, 3, 4, 5, 8, 16, 100, 1000)
    for nbytes in (0, *(4**k for k in range(1, 15)))
    for alpha, beta in MACHINES.values()
]


def _tree(nbytes: float, n: int, alpha: float, beta: float) -> float:
    return 2 * broadcast_cost(n, nbytes).time(alpha, beta)


def _ring(nbytes: float, n: int, alpha: float, beta: float) -> float:
    return ring_allreduce_cost(n, nbytes).time(alpha, beta)


def _is_a_name(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for call, answer in zip(_CALLS, said["answers"], strict=True):
        if answer not in ("ring", "tree"):
            return Feedback(
                "The answer is neither of the two names.",
                expected='"ring" or "tree"',
                came=str(answer),
                case=_call(call),
            )
    return None


_MISTAKES: list[tuple[str, Callable[..., float], Callable[..., float]]] = [
    (
        "These are the answers of somebody who takes beta for bytes per second; it is seconds per "
        "byte: multiply.",
        lambda s, n, a, b: _ring(s, n, a, 1 / b),
        lambda s, n, a, b: _tree(s, n, a, 1 / b),
    ),
    (
        "These are the answers of somebody who sends the whole tensor in each step of the ring; "
        "a step carries one chunk, 1/N of it.",
        lambda s, n, a, b: 2 * (n - 1) * (a + s * b),
        _tree,
    ),
    (
        "These are the answers of somebody who does not count the tree's way down: it takes "
        "ceil(log2 N) steps up and as many down.",
        _ring,
        lambda s, n, a, b: _tree(s, n, a, b) / 2,
    ),
    (
        "These are the answers of somebody who does not round log2 N up: with 5 ranks a tree has 3 "
        "levels.",
        _ring,
        lambda s, n, a, b: 2 * math.log2(n) * (a + s * b),
    ),
    (
        "These are the answers of somebody who rounds log2 N down: with 5 ranks a tree has 3 "
        "levels.",
        _ring,
        lambda s, n, a, b: 2 * int(math.log2(n)) * (a + s * b),
    ),
]


def _is_faster(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    wrong = []
    for call, answer in zip(_CALLS, said["answers"], strict=True):
        ring, tree = _ring(*call), _tree(*call)
        if abs(ring - tree) > 1e-9 * max(ring, tree) and (answer == "ring") != (ring < tree):
            wrong.append((call, answer, ring, tree))
    if not wrong:
        return None
    call, answer, ring, tree = wrong[0]
    why = ""
    for sentence, of_ring, of_tree in _MISTAKES:
        if all(
            a == ("ring" if of_ring(*c) < of_tree(*c) else "tree")
            for c, a in zip(_CALLS, said["answers"], strict=True)
            if abs(of_ring(*c) - of_tree(*c)) > 1e-9 * of_ring(*c)
        ):
            why = sentence
            break
    else:
        if len(set(said["answers"])) == 1:
            why = "It is the same answer to every question: there are sizes for either."
        elif all(
            len({a for c, a in zip(_CALLS, said["answers"], strict=True) if c[0] == s}) == 1
            for s in {c[0] for c in _CALLS}
        ):
            why = (
                "The answer depends on the size alone: more ranks, a slower start or a faster wire "
                "move the crossover."
            )
    return Feedback(
        f"{len(wrong)} of {len(_CALLS)} choices are the slower one.",
        expected=f"{'ring' if ring < tree else 'tree'}: ring {_time(ring)}, tree {_time(tree)}",
        came=answer,
        case=_call(call),
        diagnosis=why,
    )


def _call(call: tuple) -> str:
    nbytes, n, alpha, beta = call
    return f"{nbytes} bytes, world size {n}, alpha {alpha:g}, beta {beta:g}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us"


# --- receive_deadline

_PLACE = (4, 6, 17)  # rank, peer, step


def _script(
    says: str,
    arrivals: list[tuple[float, str, bool]],
    calls: list[tuple[float, float]],
    outcomes: list[str | None],
    order: int,
    real: bool = False,
) -> Trial:
    """outcomes: the message of each call, None for a timeout; judged, never sent."""
    pieces = [(at, text.encode(), last) for at, text, last in arrivals]
    trial = Trial(
        "receives",
        says,
        {"arrivals": pieces, "calls": calls, "place": _PLACE, "real": real},
        order,
    )
    _DUE[says] = outcomes
    return trial


_DUE: dict[str, list[str | None]] = {}
_RECEIVES = [
    _script("a message is there already", [(0, "hello", True)], [(1, 100)], ["hello"], 0),
    _script(
        "a message of three pieces is there",
        [(0, "he", False), (0, "ll", False), (0, "o", True)],
        [(1, 100)],
        ["hello"],
        1,
    ),
    _script("it comes after 30 of 100 ms", [(0.03, "hello", True)], [(0, 100)], ["hello"], 2),
    _script(
        "two messages are there",
        [(0, "one", True), (0, "tw", False), (0, "o", True)],
        [(1, 100), (1, 100)],
        ["one", "two"],
        3,
    ),
    _script("nothing ever comes", [], [(0, 100)], [None], 4),
    _script("deadline 0, and nothing there", [(9, "late", True)], [(0, 0)], [None], 5),
    _script("deadline 0, and the message is there", [(0, "now", True)], [(1, 0)], ["now"], 6),
    _script(
        "it comes 1 ms after the deadline, and the next call asks for it",
        [(0.101, "late", True)],
        [(0, 100), (0.15, 100)],
        [None, "late"],
        7,
    ),
    _script(
        "its pieces come every 40 ms, and the deadline is 100 ms",
        [(0.04, "a", False), (0.08, "b", False), (0.12, "c", True)],
        [(0, 100), (0.1, 100)],
        [None, "abc"],
        8,
    ),
    _script(
        "two deadlines pass in the middle of a message, and another message follows",
        [(0.05, "a", False), (0.15, "b", False), (0.25, "c", True), (0.26, "next", True)],
        [(0, 100), (0.1, 100), (0.2, 100), (0.3, 100)],
        [None, None, "abc", "next"],
        9,
    ),
    _script(
        "a real line: a thread sends 150 ms after the deadline",
        [(0.4, "la", False), (0.45, "te", True)],
        [(0, 250), (0.25, 5000)],
        [None, "late"],
        10,
        real=True,
    ),
]
_SLACK_S = 0.002  # on the line's own clock


def _on_time(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    if trial.arguments["real"]:
        return None
    for (_, deadline_ms), outcome in zip(trial.arguments["calls"], said["outcomes"], strict=False):
        if outcome.get("forever"):
            return Feedback(
                "It waits for ever: no deadline ends it.",
                expected=f"TimeoutError after {deadline_ms:g} ms",
                diagnosis="take() waits until there is something: call it only when wait() has "
                "said yes.",
            )
        took = outcome["took"]
        if took <= deadline_ms / 1000 + _SLACK_S:
            if "timeout" in outcome and took < deadline_ms / 1000 - _SLACK_S:
                return Feedback(
                    f"It gave up after {1000 * took:.1f} ms.",
                    expected=f"TimeoutError after {deadline_ms:g} ms, not before",
                    diagnosis="No time has passed on the line's own clock: wait with line.wait, "
                    "not with time.sleep, a thread or another clock."
                    if took == 0
                    else "",
                )
            continue
        pieces = sum(at <= took for at, _, _ in trial.arguments["arrivals"])
        return Feedback(
            f"It took {1000 * took:.0f} ms with a deadline of {deadline_ms:g} ms.",
            expected=f"done, or a TimeoutError, after {deadline_ms:g} ms",
            came=f"{1000 * took:.0f} ms",
            diagnosis="deadline_ms is in milliseconds; wait() and now() are in seconds."
            if took > 50 * deadline_ms / 1000 > 0
            else "Each piece starts the clock anew: fix the end once, and wait for what is left."
            if pieces > 1
            else "Take only when wait() has said yes.",
        )
    return None


def _whole(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    due = _DUE[trial.says]
    real = trial.arguments["real"]
    for number, (want, outcome) in enumerate(zip(due, said["outcomes"], strict=True)):
        if real and "timeout" not in outcome and want is None:
            return Feedback(
                "On a real line it does not give up at the deadline.",
                came=f"after {1000 * outcome['took']:.0f} ms: {_outcome(outcome)}",
            )
        if _outcome(outcome) == (f"message {want!r}" if want is not None else "TimeoutError"):
            continue
        later = number and due[number - 1] is None
        why = ""
        if later:
            why = (
                "What had come before the deadline is gone. Put the pieces into line.kept and "
                "go on from there at the next call."
            )
            if outcome.get("timeout") is not None:
                why = (
                    "The message came, but somebody else took it: does a thread of the earlier "
                    "call still wait there? A receive that has given up must leave the line alone."
                )
        elif outcome.get("timeout") is not None:
            why = "What is there already is to be taken whatever the deadline: look first."
        elif outcome.get("type") not in ("bytes", "bytearray", "memoryview"):
            why = f"It returned a {outcome.get('type')}; b''.join(pieces) makes bytes of pieces."
        return Feedback(
            f"Call {number + 1} did not give what it should.",
            expected=f"message {want!r}" if want is not None else "TimeoutError",
            came=_outcome(outcome),
            diagnosis=why,
        )
    return None


def _outcome(outcome: dict[str, Any]) -> str:
    if outcome.get("forever"):
        return "it waits for ever"
    if "timeout" in outcome:
        return "TimeoutError"
    if outcome["message"] is None:
        return f"a {outcome['type']}"
    return f"message {bytes.fromhex(outcome['message']).decode(errors='replace')!r}"


def _names(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for (_, deadline_ms), outcome in zip(trial.arguments["calls"], said["outcomes"], strict=True):
        if "timeout" not in outcome:
            continue
        numbers = {int(n) for n in re.findall(r"\d+", outcome["timeout"])}
        parts = zip(("rank", "peer", "step"), _PLACE, strict=True)
        missing = [f"{what} {n}" for what, n in parts if n not in numbers]
        if missing:
            return Feedback(
                f"The error does not name {' and '.join(missing)}.",
                expected="who waited for whom, at which step, and for how long",
                came=outcome["timeout"] or "an empty message",
            )
        if deadline_ms >= 1 and int(deadline_ms) not in numbers:
            return Feedback(
                "The error does not say how long it waited.",
                expected=f"the {deadline_ms:g} ms in its text",
                came=outcome["timeout"],
            )
    return None


def _sleeps(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    """Not looking all the time: a wait per piece, and one that is not answered."""
    pieces = len(trial.arguments["arrivals"])
    for outcome in said["outcomes"]:
        if outcome["looks"] > 2 * pieces + 4:
            return Feedback(
                f"It looked {outcome['looks']} times at a line on which {pieces} pieces came.",
                expected="asleep until a piece is there: one wait for all the time that is left",
                diagnosis="A rank that looks all the time takes the processor from the rank that "
                "it waits for. line.wait(seconds) sleeps, and wakes when something comes.",
            )
    if trial.arguments["real"] and said["cpu"] > 0.5 * said["elapsed"]:
        return Feedback(
            f"In {said['elapsed']:.2f} s of waiting the processor was busy {said['cpu']:.2f} s.",
            expected="asleep until a piece is there",
        )
    return None


# --- tcp_primitives

_Spec = tuple[int, str, tuple[int, ...], bool]


def _exchange(says: str, specs: list[_Spec], order: int, trickle: bool = False) -> Trial:
    return Trial("exchanged", says, {"tensors": specs, "trickle": trickle}, order)


_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8")
_CUT = (13, "float32", (50,), False)
_TCP = [
    _exchange("five float32", [(1, "float32", (5,), False)], 0),
    _exchange("a 3x4 matrix of int64", [(2, "int64", (3, 4), False)], 1),
    *(_exchange(f"4 elements of {t}", [(3, t, (4,), False)], 2) for t in _DTYPES),
    _exchange("a 0-dim tensor", [(4, "float32", (), False)], 3),
    _exchange("an empty tensor of shape 2x0", [(5, "float32", (2, 0), False)], 3),
    _exchange("a transposed 3x5 matrix", [(6, "float32", (3, 5), True)], 4),
    _exchange("a tensor of five dimensions", [(7, "uint8", (2, 1, 3, 1, 2), False)], 4),
    _exchange("a million elements", [(8, "float32", (1_000_000,), False)], 5),
    _exchange(
        "three tensors, sent before the first is received",
        [(9, "float32", (5,), False), (10, "int64", (2, 2), False), (11, "uint8", (), False)],
        6,
    ),
    _exchange("a socket that gives 3 bytes at a time", [(12, "float32", (5,), False)], 7, True),
    Trial("closed", "the far end is gone, with nothing sent", {"tensor": _CUT, "part": 0.0}, 8),
    Trial("closed", "the far end is gone in the header", {"tensor": _CUT, "part": 0.01}, 9),
    Trial("closed", "the far end is gone in the middle", {"tensor": _CUT, "part": 0.6}, 9),
    *(
        Trial(
            "primitives",
            f"{op}, {n} ranks, {dtype} on loopback connections",
            {"op": op, "world_size": n, "tensor": (20, dtype, (6, 2), False), "src": 1},
            10,
        )
        for op in ("ring_allreduce", "allgather", "reduce_scatter", "broadcast")
        for n, dtype in ((2, "bfloat16"), (3, "float32"))
    ),
]


def _expected_of_primitive(op: str, world_size: int, tensor: _Spec, src: int) -> list[Tensor]:
    seed, *rest = tensor
    inputs = [make_tensor(seed + rank, *rest) for rank in range(world_size)]
    total = torch.stack(inputs).sum(0, dtype=inputs[0].dtype)
    return {
        "ring_allreduce": [total] * world_size,
        "reduce_scatter": list(total.chunk(world_size)),
        "allgather": [torch.stack(inputs)] * world_size,
        "broadcast": [inputs[src]] * world_size,
    }[op]


def _other_tensor(want: dict[str, Any], came: dict[str, Any]) -> Feedback | None:
    if came == want:
        return None
    if came["type"] != "Tensor":
        return Feedback(
            f"What came is a {came['type']} and no tensor.", expected=_said(want), came=came["type"]
        )
    if came["dtype"] != want["dtype"]:
        sentence, why = "It arrives with another dtype.", "The header has to say which dtype it is."
    elif came["shape"] != want["shape"]:
        sentence, why = "It arrives with another shape.", "The header has to say which shape it is."
    else:
        sentence, why = "It arrives with other numbers.", ""
    return Feedback(sentence, expected=_said(want), came=_said(came), diagnosis=why)


def _said(tensor: dict[str, Any]) -> str:
    numbers = ", ".join(f"{v:g}" for v in tensor["head"])
    return f"{tensor['dtype']} of shape {tuple(tensor['shape'])}: [{numbers}, ...]"


def _of_exchanges(which: Callable[[Trial], bool]) -> TrialJudge:
    def judge(trial: Trial, said: dict[str, Any]) -> Feedback | None:
        if trial.driver != "exchanged" or not which(trial):
            return None
        sent = [describe(make_tensor(*spec)) for spec in trial.arguments["tensors"]]
        for want, came in zip(sent, said["tensors"], strict=False):
            if feedback := _other_tensor(want, came):
                return feedback
        if len(said["tensors"]) < len(sent):
            return Feedback(
                f"Of {len(sent)} messages that were there only {len(said['tensors'])} came.",
                expected="each receive takes its own message and leaves the next one alone",
                diagnosis="A receive has taken bytes of the next message and thrown them away.",
            )
        if said["left"]:
            return Feedback(
                "Bytes of a message are left on the wire; the next message would begin with them.",
            )
        return None

    return judge


def _notices(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    if trial.driver != "closed" or "raised" in said:
        return None
    came = said["came"]
    return Feedback(
        "A message that is cut off was taken for a whole one.",
        expected="ConnectionError",
        came=_said(came) if came["type"] == "Tensor" else came["type"],
        diagnosis="recv gives no bytes when the other end is closed: nothing more will come.",
    )


def _same_primitives(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    if trial.driver != "primitives":
        return None
    if "raised" in said:
        return Feedback(f"Rank {said['rank']} raised {said['raised']}", rank=said["rank"])
    expected = _expected_of_primitive(**trial.arguments)
    for rank, (want, came) in enumerate(zip(expected, said["results"], strict=True)):
        if feedback := _other_tensor(describe(want), came):
            feedback.rank = rank
            return feedback
    return None


# --- byte_counter

_KEYS = ("rank", "kind", "peer", "step", "bytes", "total")
_COUNTS = [
    Trial(
        "counted",
        f"{script}, {n} ranks, {dtype}",
        {"script": script, "world_size": n, "dtype": dtype},
        order,
    )
    for order, (script, n, dtype) in enumerate(
        (
            ("one message", 2, "float32"),
            ("naive", 3, "float32"),
            ("ring", 3, "float32"),
            ("ring", 1, "float32"),
            ("ring", 4, "bfloat16"),
            ("broadcast", 5, "int64"),
            ("mixed", 3, "float32"),
            ("mixed", 3, "uint8"),
            ("failing", 2, "float32"),
        )
    )
]


def _lines(said: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    text = said["texts"][rank] or ""
    return [json.loads(line) for line in text.splitlines()]


def _is_jsonl(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for rank, (text, events) in enumerate(zip(said["texts"], said["events"], strict=True)):
        if text is None and events:
            return Feedback(
                "There is no file at the path that was given.",
                rank=rank,
                came=", ".join(said["others"]) or "no file at all",
            )
        for line in (text or "").splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                return Feedback(
                    "A line of the file is not JSON.",
                    rank=rank,
                    expected='{"rank": 0, "kind": "send", ...}',
                    came=line[:80],
                    diagnosis="json.dumps makes a line of a dict; str() does not.",
                )
            if not isinstance(value, dict) or sorted(value) != sorted(_KEYS):
                return Feedback(
                    "A line has other keys than the contract says.",
                    rank=rank,
                    expected=", ".join(_KEYS),
                    came=", ".join(map(str, value)) if isinstance(value, dict) else line[:80],
                )
        if text and not text.endswith("\n"):
            return Feedback("The last line does not end in a new line.", rank=rank)
    return None


def _a_line_each(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for rank, events in enumerate(said["events"]):
        lines = _lines(said, rank)
        for number, event in enumerate(events):
            want = {k: event[k] for k in ("rank", "kind", "peer", "step")}
            came = {k: lines[number][k] for k in want} if number < len(lines) else None
            if came == want:
                continue
            why = ""
            if len(lines) > len(events) and said["raised"][rank]:
                why = "A call that raises has carried nothing: write the line after the call."
            elif len(lines) == 1 < len(events):
                why = 'Only the last line is there: does open(path, "w") empty the file each time?'
            elif len(lines) == len({e["step"] for e in events}) < len(events):
                why = "A sendrecv is two messages, one each way: two lines, first the send."
            elif came is None:
                why = (
                    "Lines are missing at the end: each has to be in the file when the verb "
                    "returns (flush), not when the file is closed."
                )
            elif {**came, "step": 0} == {**want, "step": 0}:
                why = (
                    "A step is one call of a verb; the two halves of a sendrecv share it, and it "
                    "counts from 0."
                )
            return Feedback(
                f"Line {number + 1} of rank {rank} is not the message that it should be.",
                rank=rank,
                step=event["step"],
                expected=json.dumps(want),
                came=json.dumps(came) if came else f"the file has {len(lines)} lines",
                diagnosis=why,
            )
        if len(lines) > len(events):
            return Feedback(
                f"Rank {rank} has {len(lines)} lines for {len(events)} messages.",
                rank=rank,
                came=json.dumps(lines[len(events)]),
            )
    return None


def _right_bytes(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for rank, events in enumerate(said["events"]):
        for number, (event, line) in enumerate(zip(events, _lines(said, rank), strict=True)):
            if line["bytes"] == event["nbytes"]:
                continue
            itemsize = getattr(torch, event["dtype"]).itemsize
            why = ""
            if line["bytes"] * itemsize == event["nbytes"]:
                why = "That is the number of elements: times tensor.element_size()."
            elif itemsize != 4 and line["bytes"] * itemsize == 4 * event["nbytes"]:
                why = f"A {event['dtype']} has {itemsize} bytes and not 4: tensor.element_size()."
            elif event["kind"] == "recv":
                why = "Count what came, not what was sent: the two may have different lengths."
            return Feedback(
                f"Line {number + 1} of rank {rank} has another number of bytes than the message.",
                rank=rank,
                step=event["step"],
                expected=f"{event['nbytes']} bytes ({event['dtype']} of shape "
                f"{tuple(event['shape'])})",
                came=str(line["bytes"]),
                diagnosis=why,
            )
    return None


def _right_totals(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for rank, events in enumerate(said["events"]):
        totals = {"send": 0, "recv": 0}
        both = 0
        for number, (event, line) in enumerate(zip(events, _lines(said, rank), strict=True)):
            totals[event["kind"]] += event["nbytes"]
            both += event["nbytes"]
            want = totals[event["kind"]]
            if line["total"] == want:
                continue
            why = ""
            if line["total"] == both:
                why = "That is sent and received in one sum; keep one for each kind."
            elif line["total"] == want - event["nbytes"]:
                why = "That is the total before this message."
            return Feedback(
                f"Line {number + 1} of rank {rank} has a wrong total.",
                rank=rank,
                step=event["step"],
                expected=f"{want} bytes of kind {event['kind']} so far",
                came=str(line["total"]),
                diagnosis=why,
            )
    return None


def _undisturbed(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    n = trial.arguments["world_size"]
    for rank in range(n):
        if said["ranks"][rank] != [rank, n]:
            return Feedback(
                "The wrapped mesh does not know its rank and world size.",
                rank=rank,
                expected=f"rank {rank}, world_size {n}",
                came="rank {}, world_size {}".format(*said["ranks"][rank]),
            )
        if said["results"][rank] != said["plain"][rank]:
            return Feedback(
                "A collective on the wrapped mesh gives another result than on the mesh itself.",
                rank=rank,
                expected=_said(said["plain"][rank]),
                came=_said(said["results"][rank])
                if said["results"][rank]["type"] == "Tensor"
                else said["results"][rank]["type"],
            )
        if "nothing" in said["raised"][rank]:
            return Feedback(
                "The mesh raised ValueError, and the wrapper kept it to itself.", rank=rank
            )
    return None


# --- shared_memory_race


def _orders() -> list[Trial]:
    trials = []
    for n in (1, 2, 3, 4):
        ranks = list(range(n))
        orders = {f"rank {r} is slow": [*(x for x in ranks if x != r), r] for r in ranks}
        orders |= {f"rank {r} is fast": [r, *(x for x in ranks if x != r)] for r in ranks}
        for says, first in orders.items():
            arguments = {"world_size": n, "first": first, "calls": 2}
            trials.append(Trial("interleaved", f"world size {n}, {says}", arguments, 10 * n))
        for seed in range(6):
            arguments = {"world_size": n, "first": ranks, "seed": seed, "calls": 3}
            says = f"world size {n}, a shuffled order ({seed})"
            trials.append(Trial("interleaved", says, arguments, 10 * n + 1))
    return trials


def _no_race(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    n = trial.arguments["world_size"]
    written, read = [0] * n, [0] * n
    for rank, what in said["log"]:
        verb, owner = what.split()
        owner = int(owner)
        right = (owner + 1) % n
        if verb == "write" and rank != owner:
            return Feedback(
                f"Rank {rank} writes into the window of rank {owner}.",
                rank=rank,
                expected="a rank writes into its own window, and its right neighbour reads it",
            )
        if verb == "read" and rank != right:
            return Feedback(
                f"Rank {rank} reads the window of rank {owner}.",
                rank=rank,
                expected=f"only rank {right}, the right neighbour, reads it",
            )
        if verb == "write" and written[owner] > read[owner]:
            return Feedback(
                f"Race: rank {owner} writes message {written[owner]} into its window before rank "
                f"{right} has read message {written[owner] - 1}.",
                rank=owner,
                expected="write, read, write, read: in turns",
                came="write, write",
                diagnosis="The place is not free yet: what makes the writer wait until the reader "
                "is done? A pause only makes it rarer.",
            )
        if verb == "read" and read[owner] >= written[owner]:
            return Feedback(
                f"Race: rank {right} reads message {read[owner]} of rank {owner} before it is "
                "written.",
                rank=right,
                expected="write, read, write, read: in turns",
                came="read, read",
                diagnosis="full[rank] says that the window is written: release it after the "
                "write, and acquire full[left] before the read.",
            )
        if verb == "write":
            written[owner] += 1
        else:
            read[owner] += 1
    return None


def _right_sums(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    n = trial.arguments["world_size"]
    for rank, results in enumerate(said["results"]):
        for call, came in enumerate(results):
            want = describe(torch.stack([ring_input(r, call) for r in range(n)]).sum(0))
            if came == want:
                continue
            feedback = _other_tensor(want, came)
            assert feedback is not None
            feedback.sentence = f"Rank {rank} returned a wrong sum from call {call + 1}."
            feedback.rank = rank
            feedback.diagnosis = (
                "All took turns at the windows, so what was read changed afterwards: read() gives "
                "the window's own memory. Copy it (clone) before you release the place."
            )
            return feedback
    return None


def _writes(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    n, calls = trial.arguments["world_size"], trial.arguments["calls"]
    for rank in range(n):
        count = sum(r == rank and what.startswith("write") for r, what in said["log"])
        if count != calls * (n - 1):
            return Feedback(
                f"Rank {rank} writes {count} messages in {calls} calls.",
                rank=rank,
                expected=f"N - 1 in each call, {calls * (n - 1)} in all",
            )
    return None


# --- bug_hunt_collectives

_HUNTS = [
    *(
        Trial("hunt", f"the collective {p.name}", {"names": [p.name]}, n)
        for n, p in enumerate(planted.SHOWN)
    ),
    Trial("hunt", "collectives that are right", {"names": [p.name for p in planted.RIGHT]}, 20),
    *(
        Trial("hunt", f"a collective that is not shown ({n + 1})", {"names": [p.name]}, 30 + n)
        for n, p in enumerate(planted.HIDDEN)
    ),
]


def _is_a_finding(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for found in said["found"]:
        if found is None:
            continue
        good = (
            len(found) == 4
            and found[0] in ("hangs", "wrong", "bytes")
            and type(found[1]) is int
            and type(found[2]) is int
            and isinstance(found[3], bool)
        )
        if not good:
            return Feedback(
                "The answer is not of the form that the contract says.",
                expected='None or ("hangs" | "wrong" | "bytes", world_size, root, strided)',
                came=", ".join(map(str, found)),
            )
    return None


def _hunted(names: Sequence[planted.Planted]) -> TrialJudge:
    wanted = {p.name: p for p in names}

    def judge(trial: Trial, said: dict[str, Any]) -> Feedback | None:
        for name, found in zip(trial.arguments["names"], said["found"], strict=True):
            if name not in wanted:
                continue
            due = wanted[name].fails
            came = tuple(found) if found else None
            if came == due:
                continue
            if due is None:
                return Feedback(
                    f"{name} is right, yet it is accused.",
                    expected="None",
                    came=_finding(came),
                    diagnosis="Padding and rounding are no bugs: run.price says which bytes are "
                    "allowed; compare whole numbers, whose sums are exact."
                    if came and came[0] != "hangs"
                    else "",
                )
            hidden = wanted[name] in planted.HIDDEN
            return Feedback(
                "The bug is not found."
                if came is None
                else "That is not the smallest case in which it fails.",
                expected="a finding" if hidden else _finding(due),
                came=_finding(came),
                diagnosis=_BLIND[due[0], bool(due[2]), due[3]] if came is None or hidden else
                "Smallest means: fewest ranks, then the lowest root, then not strided.",
            )  # fmt: skip
        return None

    return judge


def _finding(found: tuple | None) -> str:
    if found is None:
        return "None"
    what, world_size, root, strided = found
    return f"{what} at world size {world_size}, root {root}{', strided' if strided else ''}"


_BLIND = {
    ("hangs", False, False): "A run that hangs says so: run(...).hangs. Try every world size.",
    ("wrong", False, False): "Try every world size from 1 to 8, lengths that N divides and lengths "
    "that it does not, and other numbers on every rank and in every element.",
    ("wrong", True, False): "Try every root, not only 0, and other numbers on every rank.",
    ("wrong", False, True): "Try a tensor whose elements do not lie side by side: "
    "x[::2] is one, x[::2] + 1 is a new tensor and none.",
    ("wrong", True, True): "Try a strided tensor with every root.",
    ("bytes", False, False): "The numbers are right; look at bytes_sent, too.",
}


TASKS = {
    task.name: task
    for task in (
        Task(
            name="choose_algorithm",
            title="Ring or tree: choose by size and world size",
            chapter="ring_or_tree",
            minutes=30,
            functions={"choose": ("nbytes", "world_size", "alpha", "beta")},
            cases=[Trial("choices", "all questions", {"calls": _CALLS})],
            checks=(
                ("names", 'the answer is "ring" or "tree"', _is_a_name),
                ("choices", "the faster one, on three machines, world sizes 1 to 1000", _is_faster),
            ),
        ),
        Task(
            name="receive_deadline",
            title="A receive with a deadline",
            chapter="when_training_stalls",
            minutes=30,
            functions={"receive": ("line", "deadline_ms", "rank", "peer", "step")},
            cases=_RECEIVES,
            checks=(
                ("deadline", "it ends at the deadline, not later and not before", _on_time),
                ("sleeps", "it sleeps while it waits", _sleeps),
                ("whole", "every message comes whole, also one that comes late", _whole),
                ("error", "the error says who waited for whom, where and how long", _names),
            ),
            deadline_s=8.0,
        ),
        Task(
            name="tcp_primitives",
            title="Tensors over TCP, and the four primitives over that",
            chapter="real_wires",
            minutes=40,
            functions={"send_tensor": ("sock", "tensor"), "recv_tensor": ("sock",)},
            cases=_TCP,
            checks=(
                (
                    "tensors",
                    "dtype, shape and numbers arrive",
                    _of_exchanges(lambda t: len(t.arguments["tensors"]) == 1),
                ),
                (
                    "frames",
                    "each receive takes one message from the wire, and all of it",
                    _of_exchanges(lambda t: len(t.arguments["tensors"]) > 1),
                ),
                ("closed", "a connection that is cut is an error", _notices),
                ("primitives", "the four primitives over loopback connections", _same_primitives),
            ),
            deadline_s=4.0,
        ),
        Task(
            name="byte_counter",
            title="A mesh that writes down every message",
            chapter="how_fast",
            minutes=25,
            functions={"byte_counter": ("mesh", "path")},
            cases=_COUNTS,
            checks=(
                ("results", "collectives run on it as on the mesh itself", _undisturbed),
                ("jsonl", "the file is JSON lines with the right keys", _is_jsonl),
                ("lines", "one line for each message, in order, as in the trace", _a_line_each),
                ("counts", "the bytes of each message", _right_bytes),
                ("totals", "the running totals", _right_totals),
            ),
        ),
        Task(
            name="shared_memory_race",
            title="Find the race in a shared-memory ring",
            chapter="real_wires",
            minutes=35,
            functions={
                "shared_memory_ring": ("rank", "world_size", "windows", "full", "empty", "tensor")
            },
            cases=_orders(),
            checks=(
                ("race", "windows are written and read in turns, in every order", _no_race),
                ("sums", "the right sums, in every order", _right_sums),
                ("writes", "N - 1 messages per rank and call", _writes),
            ),
        ),
        Task(
            name="bug_hunt_collectives",
            title="Bug hunt: six collectives, six bugs",
            chapter="when_training_stalls",
            minutes=45,
            functions={"find_bug": ("run", "op")},
            cases=_HUNTS,
            checks=(
                ("form", "the answers are findings", _is_a_finding),
                ("found", "the six bugs, each at its smallest case", _hunted(planted.SHOWN)),
                ("innocent", "collectives that are right are not accused", _hunted(planted.RIGHT)),
                ("hidden", "other bugs, which you have not seen", _hunted(planted.HIDDEN)),
            ),
            deadline_s=10.0,
        ),
    )
}
