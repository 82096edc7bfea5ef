"""The checks, in the order in which their failure helps most. Each judges a whole attempt.

All of it runs in the grader's own process: the learner's process never sees an expected value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from minidist import verify
from minidist.diagnosis import describe_waits
from minidist.grading import diagnose, patterns
from minidist.grading.answers import Answer, Attempt, Place, Problem, attempt_on_processes
from minidist.grading.cases import Case, Trial, make_bases, make_inputs, salted
from minidist.grading.exercise import CollectiveExercise, Exercise, TrialExercise
from minidist.grading.report import Feedback
from minidist.grading.sandbox import Code
from minidist.mesh import Deadlock
from minidist.trace import dtype_name
from minidist.transports.simulated import steps

Judge = Callable[[Any, Attempt], Feedback | None]


def loads(exercise: Exercise, attempt: Attempt) -> Feedback | None:
    """The file loads and the function can be called as the contract says."""
    calls = {name: f"{name}({', '.join(ps)})" for name, ps in exercise.functions.items()}
    if attempt.load_problem:
        problem = attempt.load_problem
        return Feedback(
            f"The file does not load: {problem.type}: {problem.text}",
            place=problem.where[-1] if problem.where else None,
        )
    if attempt.stop and attempt.stop.case is None:
        return _stopped(attempt, "while it was being loaded")
    loaded = attempt.loaded or {}
    if loaded.get("missing"):
        names = ", ".join(str(n) for n in loaded.get("names", [])) or "no function at all"
        name = next((n for n in calls if n == loaded["missing"]), exercise.name)
        return Feedback(
            f"There is no function {name} here.", expected=f"def {calls.get(name)}", came=names
        )
    if "not_callable" in loaded:
        name, kind = loaded["not_callable"]
        return Feedback(f"This is no function but a {kind}.", expected=calls.get(name, ""))
    for name, parameters in exercise.functions.items():
        feedback = _other_arguments(name, parameters, loaded.get("signatures", {}).get(name))
        if feedback:
            return feedback
    return None


def _other_arguments(name: str, due: tuple[str, ...], parameters: Any) -> Feedback | None:
    if not isinstance(parameters, list):
        return None  # Python cannot say; the calls will
    positional = [p for p in parameters if p[1] or str(p[0]).startswith("*args")]
    needed = [p for p in parameters if not p[2] and not str(p[0]).startswith("*")]
    count = len(due)
    starred = any(str(p[0]).startswith("*") and not p[1] for p in parameters)
    if (len(positional) < count and not starred) or len(needed) > count:
        shown = ", ".join(str(p[0]) for p in parameters)
        return Feedback(
            "The function takes other arguments than the contract says.",
            expected=f"{name}({', '.join(due)})",
            came=f"{name}({shown})",
        )
    return None


def no_distributed(exercise: Exercise, attempt: Attempt) -> Feedback | None:
    """Nothing of torch.distributed was called, not even in a try."""
    if not attempt.distributed:
        return None
    problems = (a.problem for a in attempt.answers if a.problem)
    place = next((_last(p.where) for p in problems if p.type == "Distributed"), None)
    return Feedback(
        f"Calling torch.distributed is refused: this function called "
        f"{', '.join(attempt.distributed[:3])}.",
        expected="messages through mesh.send, mesh.recv and mesh.sendrecv only"
        if isinstance(exercise, CollectiveExercise)
        else "your own code",
        place=place,
        diagnosis="The exercise is to write what torch.distributed does, not to call it.",
    )


def runs(exercise: Exercise, attempt: Attempt) -> Feedback | None:
    """No rank raises."""
    failing = [
        a
        for a in attempt.answers
        if a.problem and a.problem.type != Deadlock.__name__ and not a.case.refused
    ]
    if not failing:
        return None
    answer = min(failing, key=lambda a: a.case.order)
    hanging = _hanging_cases(attempt)
    if hanging and min(c.order for c in hanging) < answer.case.order:
        return None  # the smaller case is the better story; the next check tells it
    problem = answer.problem
    assert problem is not None
    common = diagnose.only_when([a.case for a in failing], [a.case for a in attempt.finished])
    turns = isinstance(exercise, CollectiveExercise) and exercise.pattern in (
        patterns.ring,
        patterns.ring_to_the_left,
    )
    return Feedback(
        _raised(problem),
        case=str(answer.case),
        rank=problem.rank,
        step=problem.step,
        place=_last(problem.where),
        diagnosis=_join(diagnose.reason_for_problem(problem, answer.case, turns), common),
        details=_traceback(problem),
    )


def terminates(exercise: Exercise, attempt: Attempt) -> Feedback | None:
    """Every rank returns: no deadlock, no endless loop, no early exit."""
    stuck = [a for a in attempt.answers if a.problem and a.problem.type == Deadlock.__name__]
    if stuck:
        answer = min(stuck, key=lambda a: a.case.order)
        rank, wait = min(answer.waits.items(), default=(None, None))
        common = diagnose.only_when([a.case for a in stuck], [a.case for a in attempt.finished])
        done = [r for r in range(answer.case.world_size) if r not in answer.waits]
        return Feedback(
            "Deadlock: no rank can go on, each waits for another.",
            case=str(answer.case),
            rank=rank,
            step=wait.step if wait else None,
            place=answer.wait_places.get(rank) if rank is not None else None,
            diagnosis=_join(diagnose.reason_for_deadlock(answer), common),
            details="Who waits for whom:\n" + describe_waits(answer.waits, done)
            if answer.waits
            else answer.problem.text,
        )
    if attempt.stop:
        return _stopped(attempt, "in this case")
    return None


def _stopped(attempt: Attempt, when: str) -> Feedback:
    stop = attempt.stop
    assert stop is not None
    case = str(stop.case) if stop.case else ""
    if stop.how == "late":
        place = _last(stop.where)
        return Feedback(
            f"Not finished after {attempt.deadline_s:g} s {when}; an endless loop?",
            case=case,
            rank=stop.rank,
            place=place,
            diagnosis="That is the line at which it was when time was up."
            if place
            else "It was not in your own code at that moment.",
        )
    if stop.how == "silent":
        return Feedback(
            f"Not finished after {attempt.deadline_s:g} s {when}, and it did not answer.",
            case=case,
            rank=stop.rank,
        )
    if stop.how == "ended":
        return Feedback(
            f"Its process ended {when} before it gave an answer ({stop.text}).",
            case=case,
            rank=stop.rank,
            diagnosis="A function must return; os._exit, a crash or too little memory end it.",
        )
    return Feedback(
        f"Its process said something that is no answer: {stop.text}.",
        diagnosis="Leave the grader's pipes alone; whatever else your code prints is only shown.",
    )


def result(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """Each rank returns a tensor of the right shape and dtype."""

    def wrong(answer: Answer) -> Feedback | None:
        for rank, want in enumerate(_expected(exercise, answer.case)):
            came = answer.ranks[rank].result
            if came is None:
                kind = answer.ranks[rank].type
                return Feedback(
                    f"Rank {rank} returned {'nothing' if kind == 'NoneType' else 'a ' + kind}.",
                    rank=rank,
                    expected=_kind(want),
                    came=kind,
                    diagnosis="Is a `return` missing?" if kind == "NoneType" else "",
                )
            if came.shape != want.shape:
                why = ""
                parts = came.numel() % len(answer.ranks) == 0 and came.dim() == 1
                ring = exercise.pattern is patterns.ring and exercise.gloo_op == "allreduce"
                if ring and parts and came.numel() > want.numel():
                    why = "The padding is still there: cut it off and give back the input's shape."
                elif came.numel() == want.numel():
                    why = "The elements are there, in another shape: reshape at the end."
                return Feedback(
                    f"Rank {rank} returned another shape than the contract says.",
                    rank=rank, expected=_kind(want), came=_kind(came), diagnosis=why,
                )  # fmt: skip
            if came.dtype != want.dtype:
                return Feedback(
                    f"Rank {rank} returned another dtype than it was given.",
                    rank=rank,
                    expected=_kind(want),
                    came=_kind(came),
                    diagnosis="A buffer was made without dtype=tensor.dtype."
                    if came.is_floating_point() == want.is_floating_point()
                    else "A buffer was made without dtype=tensor.dtype, or `/` has turned whole "
                    "numbers into floats (the sum is asked for, not the mean).",
                )
        return None

    return _smallest(attempt, wrong)


def values(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """Every element on every rank is exactly right."""

    def wrong(answer: Answer) -> Feedback | None:
        expected, came = _expected(exercise, answer.case), answer.results
        if all(torch.equal(e, c) for e, c in zip(expected, came, strict=True)):
            return None
        rank, index = diagnose.first_difference(expected, came)
        want, have = expected[rank].reshape(-1), came[rank].reshape(-1)
        where = f"element {index}" if want.numel() > 1 else "the only element"
        return Feedback(
            f"Rank {rank} returned wrong values, first at {where}: "
            f"{_number(have[index])} instead of {_number(want[index])}.",
            rank=rank,
            expected=_numbers(want, index),
            came=_numbers(have, index),
            diagnosis=exercise.wrong_values(answer, expected),
        )

    return _smallest(attempt, wrong)


def refuses(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """What the contract refuses raises ValueError, before anything is sent."""
    for answer in attempt.answers:
        if not answer.case.refused:
            continue
        sent = sum(len(r.events) for r in answer.ranks.values())
        problem = answer.problem
        if problem and problem.type == "ValueError" and not sent:
            continue
        size = answer.case.shape[0] if answer.case.shape else "none"
        came = f"{problem.type}: {problem.text}" if problem else "no error"
        if problem and problem.type == "ValueError":
            came = f"ValueError, but after {sent} sends and receives"
        return Feedback(
            "What cannot be cut into N equal parts must be refused with ValueError.",
            case=str(answer.case),
            expected=f"ValueError on every rank, nothing sent (dimension 0: {size})",
            came=came.splitlines()[0],
            place=_last(problem.where) if problem else None,
            diagnosis="Check tensor.dim() and tensor.shape[0] % mesh.world_size first. Padding "
            "would give some ranks parts of another size, and torch.distributed refuses it, too.",
        )
    return None


def inputs(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """The input holds what it held, and the result lies in memory of its own."""

    def wrong(answer: Answer) -> Feedback | None:
        for rank, base in enumerate(make_bases(answer.case)):
            if answer.ranks[rank].input_after != _raw(base):
                return Feedback(
                    f"Rank {rank} changed its input.",
                    rank=rank,
                    expected="the input holds afterwards what it held before",
                    came="other numbers",
                    diagnosis="reshape, view and flatten do not copy: work on a clone.",
                )
            if answer.ranks[rank].alias:
                return Feedback(
                    f"Rank {rank} returned a tensor that shares memory with its input.",
                    rank=rank,
                    expected="a new tensor",
                    came="the input itself, or a view of it",
                    diagnosis="Whoever writes to the result would change the input: return a "
                    "clone, also where there is nothing to do.",
                )
        return None

    return _smallest(attempt, wrong)


def leftover(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """Every message that was sent is received."""

    def wrong(answer: Answer) -> Feedback | None:
        if answer.tampered:
            return Feedback(
                "The mesh's record does not agree with what went over the wire.",
                diagnosis="mesh.events belongs to the mesh: leave it alone.",
            )
        left = answer.trace.unreceived()
        if not left:
            return None
        (src, dst), count = next(iter(left.items()))
        return Feedback(
            f"{count} message{'s' * (count > 1)} from rank {src} to rank {dst} "
            f"{'were' if count > 1 else 'was'} never received.",
            rank=src,
            expected="as many receives as sends on each link",
            came=", ".join(f"{s} to {d}: {c} left" for (s, d), c in left.items()),
            diagnosis="The next collective would find what is left and take it for its own.",
        )

    return _smallest(attempt, wrong)


def messages(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """The right ranks talk to each other."""

    def wrong(answer: Answer) -> Feedback | None:
        fault = exercise.pattern(answer.case, answer.trace)
        if fault is None:
            return None
        event = fault.event
        came = "no message"
        if event:
            way = "sent to" if event.kind == "send" else "received from"
            came = f"rank {event.rank} {way} rank {event.peer}"
        return Feedback(
            "The values are right, but the messages take another way than the contract says.",
            rank=event.rank if event else fault.rank,
            step=event.step if event else None,
            expected=fault.expected,
            came=came,
            diagnosis=fault.diagnosis,
        )

    return _smallest(attempt, wrong)


def sent_bytes(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """No rank sends more bytes than the contract allows."""

    def wrong(answer: Answer) -> Feedback | None:
        case = answer.case
        for rank, sent in enumerate(answer.trace.bytes_sent):
            allowed = exercise.bytes_sent(case, rank)
            if sent <= allowed:
                continue
            sends = [e for e in answer.trace.by_rank[rank] if e.kind == "send"]
            whole = case.numel * getattr(torch, case.dtype).itemsize
            why = ""
            if exercise.gloo_op == "allgather" and any(e.nbytes > whole for e in sends):
                why = (
                    "Each step sends all rows, also those that are still empty or known already. "
                    "Send one row, the one that arrived last."
                )
            elif (
                exercise.pattern in (patterns.ring, patterns.ring_to_the_left)
                and "reduce" in exercise.gloo_op
                and all(e.nbytes >= whole for e in sends)
            ):
                why = (
                    "Each step sends the whole tensor. The point of the ring is to send one chunk "
                    "of N per step."
                )
            elif (
                exercise.pattern in (patterns.tree, patterns.up_and_down)
                and len(sends) == case.world_size - 1
            ):
                why = (
                    "The root sends to everyone itself, one after the other. In a doubling tree "
                    "whoever has the tensor helps to hand it on."
                )
            elif len(sends) > (most := exercise.steps(case)):
                why = f"It sends {len(sends)} messages where {most} are enough."
            return Feedback(
                f"Rank {rank} sent too many bytes: {sent} where {allowed} are enough.",
                rank=rank,
                expected=f"at most {allowed} bytes: {exercise.price}",
                came=f"{sent} bytes in {len(sends)} messages",
                diagnosis=why,
            )
        return None

    return _smallest(attempt, wrong)


def chain(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """The longest chain of messages is as short as the contract says."""

    def wrong(answer: Answer) -> Feedback | None:
        allowed = exercise.steps(answer.case)
        try:
            took = steps(answer.trace)
        except RuntimeError:  # a deadlock, messages of other shapes: somebody has changed it
            return Feedback("The record of this run does not fit together: it cannot be replayed.")
        if took <= allowed:
            return None
        why = "Messages wait for one another that could go at the same time."
        if exercise.pattern in (patterns.tree, patterns.up_and_down):
            why = (
                "The tensor goes from rank to rank along a line. In a doubling tree the number "
                "of ranks that have it doubles with each step."
            )
        return Feedback(
            f"It takes {took} steps where {allowed} are enough.",
            expected=f"{allowed} messages on the longest chain",
            came=f"{took} messages, one after the other",
            diagnosis=why,
        )

    return _smallest(attempt, wrong)


def processes(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """One attempt on real processes gives the same exact values."""
    if attempt.stop:
        return _stopped(attempt, "on real processes")
    for answer in attempt.answers:
        if answer.problem:
            return Feedback(
                f"On real processes {_raised(answer.problem)}",
                case=str(answer.case),
                rank=answer.problem.rank,
                step=answer.problem.step,
                place=_last(answer.problem.where),
                details=_traceback(answer.problem),
            )
    whole = [a for a in attempt.answers if not a.case.fractions]
    exact = Attempt(whole, attempt.loaded, None, None, [], "", 0, attempt.deadline_s)
    feedback = (
        result(exercise, exact)
        or values(exercise, exact)
        or leftover(exercise, exact)
        or messages(exercise, exact)
        or inputs(exercise, exact)
    )
    if feedback:
        feedback.sentence = (
            f"Right with simulated ranks, wrong on real processes. {feedback.sentence}"
        )
        feedback.diagnosis = (
            "Real ranks share no memory: does the function keep something in a global, or look at "
            "another rank's tensor?"
        )
    return feedback


def gloo(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """The same numbers as torch.distributed over gloo, within 1e-5."""

    def wrong(answer: Answer) -> Feedback | None:
        if not answer.case.fractions:
            return None
        for rank, (mine, theirs) in enumerate(
            zip(answer.results, gloo_outputs(exercise.gloo_op, answer.case), strict=True)
        ):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                difference = float("inf")
            else:
                difference = float((mine.double() - theirs.double()).abs().max())
            if difference > 0 and exercise.bit_equal:
                return _other_bits(answer.case, rank, mine.reshape(-1), theirs.reshape(-1))
            if not difference <= verify.TOLERANCE:
                return Feedback(
                    f"Rank {rank} differs from gloo by {difference:.3g}.",
                    rank=rank,
                    expected=_numbers(theirs.reshape(-1), 0),
                    came=_numbers(mine.reshape(-1), 0),
                )
        return None

    return _smallest(attempt, wrong)


def _other_bits(case: Case, rank: int, mine: Tensor, theirs: Tensor) -> Feedback:
    """Close to gloo, but added in another order; where, and if we know it, in which."""
    wrong = (mine != theirs).nonzero().reshape(-1)
    index = int(wrong[0])
    why = diagnose.order_of_sum(make_inputs(case), mine)
    return Feedback(
        f"Rank {rank} has other bits than gloo in {len(wrong)} of {len(mine)} elements, first in "
        f"element {index}.",
        rank=rank,
        expected=f"element {index}: {theirs[index].item()!r}",
        came=f"element {index}: {mine[index].item()!r}",
        diagnosis=why,
    )


def gloo_outputs(op: str, case: Case) -> list[Tensor]:
    """What gloo gives on this case."""
    return verify.gloo_reference(op, case.world_size, make_inputs(case), case.src or 0)


FIRST: list[tuple[str, str, Judge]] = [
    ("loads", "the function is there and takes what the contract says", loads),
    ("no_distributed", "it uses only the mesh, not torch.distributed", no_distributed),
    ("runs", "no rank raises an exception", runs),
    ("terminates", "every rank returns, no deadlock, no endless loop", terminates),
    ("result", "a tensor of the right shape and dtype", result),
    ("values", "exactly the right numbers, world sizes 1 to 8", values),
    ("refuses", "ValueError for what cannot be cut into N parts", refuses),
    ("input", "the input is left alone, the result is a new tensor", inputs),
    ("leftover", "every message sent is received", leftover),
    ("messages", "the right ranks talk to each other", messages),
    ("bytes", "no rank sends more bytes than needed", sent_bytes),
    ("steps", "no more steps than needed", chain),
]
ON_PROCESSES: list[tuple[str, str, Judge]] = [
    ("processes", "the same on real processes", processes),
    ("gloo", "equal to gloo within 1e-5", gloo),
]


OF_TRIALS: list[tuple[str, str, Judge]] = [
    ("loads", "everything is there and takes what the contract says", loads),
    ("no_distributed", "torch.distributed is not called", no_distributed),
    ("runs", "nothing raises an exception that should not", runs),
    ("terminates", "it returns, no deadlock, no endless loop", terminates),
]


def checks_of(exercise: Exercise) -> list[tuple[str, str, Judge]]:
    """The checks of one exercise: all, less those that have nothing to look at."""
    if isinstance(exercise, TrialExercise):
        own = [(name, title, _told(judge)) for name, title, judge in exercise.checks]
        return OF_TRIALS + own
    refusing = any(case.refused for case in exercise.cases)
    return [c for c in FIRST if c[0] != "refuses" or refusing] + ON_PROCESSES


def _told(judge: Callable[[Trial, dict[str, Any]], Feedback | None]) -> Judge:
    """A judge of one trial's answer as a judge of the whole attempt: the first that is wrong."""

    def wrong(exercise: TrialExercise, attempt: Attempt) -> Feedback | None:
        for answer in sorted(attempt.finished, key=lambda a: a.case.order):
            try:
                feedback = judge(answer.case, answer.said)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
                feedback = Feedback("Its process said something that is no answer.")
            if feedback:
                feedback.case = feedback.case or str(answer.case)
                return feedback
        return None

    return wrong


def try_on_processes(
    exercise: CollectiveExercise, code: Code, deadline_s: float
) -> Iterator[Attempt]:
    """One attempt per world size, on numbers that no rank can know of another."""
    by_size: dict[int, list[Case]] = {}
    for case in exercise.on_processes:
        by_size.setdefault(case.world_size, []).append(case)
    for cases in by_size.values():
        # Five times the deadline: a rank also waits here until the last of its peers has started.
        salted_cases = [salted(case) for case in cases]
        yield attempt_on_processes(code, [exercise.name], salted_cases, 5 * deadline_s)


def _smallest(attempt: Attempt, wrong: Callable[[Answer], Feedback | None]) -> Feedback | None:
    """The feedback on the smallest answer that is wrong, with what the wrong ones share."""
    found: list[tuple[Answer, Feedback]] = []
    right: list[Case] = []
    for answer in attempt.finished:
        if answer.case.refused:
            continue
        feedback = wrong(answer)
        if feedback:
            found.append((answer, feedback))
        else:
            right.append(answer.case)
    if not found:
        return None
    answer, feedback = min(found, key=lambda pair: pair[0].case.order)
    feedback.case = str(answer.case)
    common = diagnose.only_when([a.case for a, _ in found], right)
    feedback.diagnosis = _join(feedback.diagnosis, common)
    return feedback


def _expected(exercise: CollectiveExercise, case: Case) -> list[Tensor]:
    return exercise.expected(case, make_inputs(case))


def _hanging_cases(attempt: Attempt) -> list[Case]:
    stuck = [a.case for a in attempt.answers if a.problem and a.problem.type == Deadlock.__name__]
    return stuck + ([attempt.stop.case] if attempt.stop and attempt.stop.case else [])


def _raised(problem: Problem) -> str:
    who = f"rank {problem.rank}" if problem.rank is not None else "it"
    text = problem.text.strip().split("\n")[0]
    first = who[0].upper() + who[1:]
    return f"{first} raised {problem.type}" + (f": {text}" if text else ".")


def _traceback(problem: Problem) -> str:
    if len(problem.where) < 2:
        return ""
    lines = [f"  {p.file}:{p.line} in {p.function}\n    {p.code}" for p in problem.where]
    return "How it got there:\n" + "\n".join(lines)


def _last(places: list[Place]) -> Place | None:
    return places[-1] if places else None


def _join(*sentences: str) -> str:
    return " ".join(s for s in sentences if s)


def _kind(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"


def _number(value: Tensor) -> str:
    number = value.item()
    return f"{int(number)}" if float(number).is_integer() else f"{number:.6g}"


def _numbers(flat: Tensor, around: int) -> str:
    start = max(0, min(around - 2, flat.numel() - 8))
    shown = [_number(v) for v in flat[start : start + 8]]
    left = "..., " if start else ""
    right = ", ..." if start + 8 < flat.numel() else ""
    return f"[{left}{', '.join(shown)}{right}]"


def _raw(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
