"""receive_deadline: a receive that gives up in time, and loses nothing."""

from __future__ import annotations

import re
import time
from typing import Any

from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.lines import Forever, Line, PipeLine
from minidist.grading.report import Feedback


def receives(
    functions: Functions,
    arrivals: list[tuple[float, bytes, bool]],
    calls: list[tuple[float, float]],
    place: tuple[int, int, int],
    real: bool = False,
) -> dict[str, Any]:
    """Receive call after call, each (not before this time, deadline in ms), on one line."""
    line = PipeLine(arrivals) if real else Line(arrivals)
    outcomes = []
    busy, began = time.process_time(), time.monotonic()
    for start, deadline_ms in calls:
        if real:
            time.sleep(max(0.0, start - line.now()))
        else:
            line._clock = max(line._clock, start)
        entered, looks = line.now(), line._looks
        outcome: dict[str, Any] = {}
        try:
            message = functions[0](line, deadline_ms, *place)
            outcome["message"] = bytes(message).hex() if _is_bytes(message) else None
            outcome["type"] = type(message).__name__
        except TimeoutError as error:
            outcome["timeout"] = str(error)[:500]
        except Forever:
            outcome["forever"] = True
            outcomes.append(outcome)
            break
        outcome["took"] = line.now() - entered
        outcome["looks"] = line._looks - looks
        outcomes.append(outcome)
    spent = time.process_time() - busy, time.monotonic() - began
    return {"outcomes": outcomes, "cpu": spent[0], "elapsed": spent[1]}


def _is_bytes(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


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
        receives,
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
            else "Each piece starts the clock anew, or the clock is not the line's: fix the end "
            "once, by line.now(), and wait for what is left."
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
                f"It looked {outcome['looks']} times at a line on which {pieces} "
                f"piece{'s' * (pieces != 1)} came.",
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


EXERCISE = TrialExercise(
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
)
