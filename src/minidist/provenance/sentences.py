"""A step of a recording in words."""

from __future__ import annotations

from minidist.provenance.recording import Cell, Message, Recording, made_of


def sentence(recording: Recording, step: int) -> str:
    """The step in words: one message in full, the one with chunk 0 if there is one."""
    frame, size = recording.frames[step], recording.world_size
    if step == 0:
        return _start_sentence(recording)
    head = f"Step {step - 1}: "  # counted from 0, as in the code and in every error
    if not frame.messages:
        return head + "nothing arrives."
    lead = next((m for m in frame.messages if 0 in m.elements), frame.messages[0])
    text = head + recording.describe(lead)
    if lead.received:
        before = recording.frames[step - 1].buffers[lead.dst]
        text += _effect(lead, before, frame.buffers[lead.dst], size)
    else:
        stopped = "had not received it when the run stopped"
        text += f", but rank {lead.dst} {stopped if recording.error else 'never receives it'}"
    others = len(frame.messages) - 1
    if others == 1:
        other = next(m for m in frame.messages if m is not lead)
        text += f". At the same time {recording.describe(other)}"
    elif others:
        everyone = len({m.src for m in frame.messages}) == len(frame.messages) == size
        rest = (
            f"the other {others} ranks send theirs"
            if everyone
            else f"{others} other messages travel"
        )
        text += f". At the same time {rest}"
    return text + "."


def _start_sentence(recording: Recording) -> str:
    if recording.op == "broadcast":
        return f"Start: rank {recording.src} has the tensor that every rank is to get."
    if recording.op == "allgather":
        return "Start: each rank has its own piece, and no other."
    if recording.world_size == 1:
        return "One rank alone: nothing to send."
    return "Start: each rank has its own numbers in every chunk."


def _effect(
    message: Message, before: tuple[Cell, ...], after: tuple[Cell, ...], world_size: int
) -> str:
    places = [(e, c) for e, c in zip(message.elements, message.cells, strict=True) if c.parts]
    if not places or any(e is None for e, _ in places):
        return ""
    if all(after[e] == cell for e, cell in places):
        return ", which keeps it"
    had = before[places[0][0]]
    if all(after[e].ranks == _added(cell.ranks, before[e].ranks) for e, cell in places):
        own = had.ranks == {message.dst: 1}
        return f", which adds {'its own' if own else 'it to ' + made_of([had], world_size)}"
    if any(after[e] != before[e] for e, _ in places):
        now = [after[e] for e, _ in places]
        return f", which then holds {made_of(now, world_size)}"
    inside = {e for e, _ in places}
    elsewhere = [e for e, cell in enumerate(after) if cell != before[e] and e not in inside]
    if elsewhere and all(after[e].element is None for e in elsewhere):
        return ", which adds it in another place"
    return ", whose buffer stays as it was there"


def _added(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    return {rank: a.get(rank, 0) + b.get(rank, 0) for rank in a.keys() | b.keys()}
