"""The learner's own run as a recording, made in the learner's process and rebuilt here."""

from __future__ import annotations

from typing import Any

from minidist.grading.answers import _text
from minidist.grading.cases import Case
from minidist.grading.exercise import CollectiveExercise
from minidist.grading.sandbox import NONSENSE, Code, Garbled, Sandbox, converse
from minidist.provenance import (
    MAX_INPUTS,
    MAX_RANKS,
    Cell,
    Divergence,
    Frame,
    Message,
    Recording,
    first_divergence,
    record,
)

MAX_FRAMES = 1000


def record_until_wrong(
    exercise: CollectiveExercise, code: Code, case: Case, deadline_s: float
) -> tuple[Recording, Divergence] | None:
    """The learner's run of a case and where it first differs from the course's own, or None.

    There is none for cases that a picture does not show (strided, other dtypes, one rank, too
    many), for runs that do not end, and for those that are the same on whole numbers.
    """
    fits = 2 <= case.world_size <= MAX_RANKS and case.numel * case.world_size <= MAX_INPUTS
    if not (fits and case.is_plain):
        return None
    args = () if case.src is None else (case.src,)
    picture = (exercise.gloo_op, case.world_size, case.numel, args)
    recording = None
    with Sandbox(code, [exercise.name], [], deadline_s, picture=picture) as sandbox:
        try:
            for said in converse([sandbox], total_s=2 * deadline_s):
                if said.header.get("kind") == "recording":
                    recording = _recording(said.header["recording"], picture)
        except NONSENSE:
            return None  # whatever it was, it is no recording: the feedback stands without
    if recording is None:
        return None
    reference = record(exercise.reference, case.world_size, case.numel, *args, op=exercise.gloo_op)
    divergence = first_divergence(recording, reference)
    return (recording, divergence) if divergence else None


def _recording(data: dict[str, Any], picture: tuple[str, int, int, tuple[int, ...]]) -> Recording:
    """Field by field: what comes from there may be anything."""
    op, world_size, numel, args = picture
    if len(data["frames"]) > MAX_FRAMES or not data["frames"]:
        raise Garbled("a recording without frames, or with too many")
    frames = tuple(_frame(f, number, world_size) for number, f in enumerate(data["frames"]))
    width = len(frames[0].buffers[0])
    if any(len(b) != width for f in frames for b in f.buffers) or not 0 < width <= MAX_INPUTS:
        raise Garbled("buffers of different lengths")
    if data["layout"] not in ("ring", "tree", "star", "mesh"):
        raise Garbled("a layout that there is not")
    parents = data["parents"]
    return Recording(
        op=op,
        world_size=world_size,
        src=args[0] if args else None,
        layout=data["layout"],
        parents=None if parents is None else _per_rank(
            (None if p is None else _int(p, 0, world_size - 1) for p in parents), world_size
        ),
        inputs=_per_rank((_ints(row, numel) for row in data["inputs"]), world_size),
        chunks=tuple((_int(a, 0, width), _int(b, 0, width)) for a, b in data["chunks"]),
        tensor_bytes=_int(data["tensor_bytes"]),
        frames=frames,
        results=_per_rank(
            (None if r is None else tuple(map(_cell, r)) for r in data["results"]), world_size
        ),
        touched=tuple(_int(r, 0, world_size - 1) for r in data["touched"]),
        error=None if data["error"] is None else _text(data["error"]),
    )  # fmt: skip


def _frame(data: dict[str, Any], number: int, world_size: int) -> Frame:
    return Frame(
        number,
        tuple(_message(m, world_size) for m in data["messages"]),
        _per_rank((tuple(map(_cell, buffer)) for buffer in data["buffers"]), world_size),
        _per_rank(map(_int, data["sent"]), world_size),
        _text(data["text"]),
    )


def _message(data: dict[str, Any], world_size: int) -> Message:
    return Message(
        _int(data["src"], 0, world_size - 1),
        _int(data["dst"], 0, world_size - 1),
        tuple(None if e is None else _int(e) for e in data["elements"]),
        tuple(map(_cell, data["cells"])),
        _int(data["nbytes"]),
        data["received"] is True,
    )


def _cell(data: dict[str, Any]) -> Cell:
    parts, value = data["parts"], data["value"]
    return Cell(
        None if parts is None else tuple((_int(r), _int(e), _int(t)) for r, e, t in parts),
        None if value is None else _int(value, -(1 << 63), 1 << 63),
    )


def _per_rank(values: Any, world_size: int) -> tuple[Any, ...]:
    result = tuple(values)
    if len(result) != world_size:
        raise Garbled("not one entry per rank")
    return result


def _ints(values: list[Any], count: int) -> tuple[int, ...]:
    if len(values) != count:
        raise Garbled("not as many numbers as elements")
    return tuple(_int(v, -(1 << 63), 1 << 63) for v in values)


def _int(value: Any, least: int = 0, most: int = 1 << 48) -> int:
    if type(value) is not int or not least <= value <= most:
        raise Garbled("a number that cannot be")
    return value
