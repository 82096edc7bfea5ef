"""What a collective sends: to whom, how many bytes, in how many steps."""

from __future__ import annotations

import torch

from minidist.grading import patterns
from minidist.grading.answers import Answer, Attempt
from minidist.grading.checks.told import smallest
from minidist.grading.exercise import CollectiveExercise
from minidist.grading.report import Feedback
from minidist.transports.simulated import steps


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

    return smallest(attempt, wrong)


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

    return smallest(attempt, wrong)


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

    return smallest(attempt, wrong)


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

    return smallest(attempt, wrong)
