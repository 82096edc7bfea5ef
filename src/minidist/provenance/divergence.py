"""Where a recording first does something else than a reference, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minidist.provenance.recording import Message, Recording


@dataclass(frozen=True)
class Divergence:
    """Where a recording first does something else than the reference, in a sentence."""

    frame: int
    rank: int
    text: str


def first_divergence(recording: Recording, reference: Recording) -> Divergence | None:
    """The first step at which the messages, or after which the buffers, are not the reference's.

    None if there is no such step and both end the same way.
    """
    for number in range(max(len(recording.frames), len(reference.frames))):
        if number >= len(recording.frames):
            wanted = reference.frames[number].messages[0]
            return Divergence(
                number - 1, wanted.src, _stopped(recording, reference, number, wanted)
            )
        if number >= len(reference.frames):
            extra = recording.frames[number].messages[0]
            return Divergence(
                number,
                extra.src,
                f"Everything should be done after step {number - 2}, but in step {number - 1} "
                f"{recording.describe(extra)}.",
            )
        difference = _difference(recording, reference, number)
        if difference:
            return Divergence(number, *difference)
    if recording.error and not reference.error:
        return Divergence(recording.steps, 0, recording.error)
    return None


def _difference(recording: Recording, reference: Recording, number: int) -> tuple[int, str] | None:
    """(rank, sentence) for what differs in step `number` or in what is returned after it."""
    ours, theirs = recording.frames[number], reference.frames[number]
    for rank in range(reference.world_size):
        is_ = [m for m in ours.messages if m.src == rank]
        should = [m for m in theirs.messages if m.src == rank]
        for got, wanted in zip(is_, should, strict=False):
            if _matter(got) != _matter(wanted):
                return rank, (
                    f"In step {number - 1}, {reference.describe(wanted, verb='should send')}; "
                    f"instead {reference.describe(got, subject='it')}."
                )
        if len(is_) > len(should):
            extra = reference.describe(is_[len(should)], subject="it")
            more = "anything more" if should else "anything"
            return (
                rank,
                f"In step {number - 1}, rank {rank} should not send {more}; instead {extra}.",
            )
        if len(should) > len(is_):
            return rank, _stopped(recording, reference, number, should[len(is_)])
        lost = next((m for m in is_ if not m.received), None)
        if lost and all(m.received for m in should) and not recording.error:
            return rank, (
                f"In step {number - 1}, {recording.describe(lost)}, but rank {lost.dst} never "
                "receives it."
            )
    if number == recording.steps == reference.steps and not recording.error:
        return _wrong_result(recording, reference)
    return None


def _stopped(recording: Recording, reference: Recording, number: int, missing: Message) -> str:
    """The sentence for a message that is not sent; if the run has failed, with the reason."""
    what = f"In step {number - 1}, {reference.describe(missing, verb='should send')}"
    if recording.error:
        return f"{what}, but the run stops before that: {recording.error}"
    return f"{what}; instead it sends nothing."


def _matter(message: Message) -> tuple[Any, ...]:
    """A message without its padding and without who padded how much."""
    pairs = zip(message.elements, message.cells, strict=True)
    return message.dst, [(e, c.parts) for e, c in pairs if e is not None or c.parts != ()]


def _wrong_result(recording: Recording, reference: Recording) -> tuple[int, str] | None:
    for rank in range(reference.world_size):
        got, wanted = recording.results[rank], reference.results[rank]
        if got is None and wanted is not None:
            return rank, f"Rank {rank} returns no tensor."
        if got is None or wanted is None or got == wanted:
            continue
        if len(got) != len(wanted):
            return rank, f"Rank {rank} returns {len(got)} numbers instead of {len(wanted)}."
        at = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
        return rank, (
            f"At the end, number {at} of what rank {rank} returns should be "
            f"{wanted[at].value}, {reference.made_of([wanted[at]])}, but is "
            f"{got[at].value}, {reference.made_of([got[at]])}."
        )
    return None
