"""byte_counter: a mesh that writes down every message."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from minidist import collectives
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.report import Feedback
from minidist.grading.tensors import describe, make_tensor, shown
from minidist.mesh import Mesh
from minidist.transports.simulated import Simulated


def counted(functions: Functions, script: str, world_size: int, dtype: str) -> dict[str, Any]:
    """Run a script on meshes that the reader's function has wrapped; its files, and the trace."""
    wrapped: list[Any] = [None] * world_size
    caught: list[list[str]] = [[] for _ in range(world_size)]
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"rank{r}.jsonl") for r in range(world_size)]

        def program(mesh: Mesh) -> Any:
            wrapped[mesh.rank] = counter = functions[0](mesh, paths[mesh.rank])
            tensor = make_tensor(mesh.rank, dtype, (7,))
            return _SCRIPTS[script](counter, tensor, caught[mesh.rank])

        results, trace = Simulated().run([program] * world_size, timeout=60.0)
        plain = Simulated().run(
            [lambda m: _SCRIPTS[script](m, make_tensor(m.rank, dtype, (7,)), [])] * world_size, 60.0
        )[0]
        texts = []
        for path in paths:  # read while the wrapped meshes are still there, as after a crash
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(file.read(100_000))
            except FileNotFoundError:
                texts.append(None)
        others = sorted(set(os.listdir(folder)) - {os.path.basename(p) for p in paths})
    return {
        "texts": texts,
        "others": others,
        "events": [[asdict(event) for event in events] for events in trace.by_rank],
        "results": [describe(result) for result in results],
        "plain": [describe(result) for result in plain],
        "raised": caught,
        "ranks": [[getattr(w, "rank", None), getattr(w, "world_size", None)] for w in wrapped],
    }


def _mixed(mesh: Any, tensor: Tensor, caught: list[str]) -> Tensor:
    """All verbs, messages of several lengths, in both directions."""
    right, left = (mesh.rank + 1) % mesh.world_size, (mesh.rank - 1) % mesh.world_size
    length = 1 + mesh.rank
    theirs = tensor.new_zeros(1 + left)
    came = mesh.sendrecv(right, tensor[:length], left, like=theirs)
    mesh.send(left, torch.cat([tensor, came]))
    back = mesh.recv(right)
    return torch.cat([came, back, mesh.sendrecv(left, tensor, right)])


def _failing(mesh: Any, tensor: Tensor, caught: list[str]) -> Tensor:
    """A verb that fails carries nothing."""
    for call in (
        lambda: mesh.send(mesh.rank, tensor),
        lambda: mesh.recv(mesh.world_size),
        lambda: mesh.sendrecv(mesh.world_size, tensor, 0),
    ):
        try:
            call()
            caught.append("nothing")
        except ValueError:
            caught.append("ValueError")
    return mesh.sendrecv(
        (mesh.rank + 1) % mesh.world_size, tensor, (mesh.rank - 1) % mesh.world_size
    )


_SCRIPTS: dict[str, Callable[[Any, Tensor, list[str]], Tensor]] = {
    "one message": lambda m, t, _: m.recv(0, like=t) if m.rank else [m.send(1, t), t][1],
    "ring": lambda m, t, _: collectives.ring_allreduce(m, t),
    "naive": lambda m, t, _: collectives.naive_allreduce(m, t),
    "broadcast": lambda m, t, _: collectives.broadcast(m, t, 1),
    "mixed": _mixed,
    "failing": _failing,
}


_KEYS = ("rank", "kind", "peer", "step", "bytes", "total")
_COUNTS = [
    Trial(
        counted,
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
                expected=shown(said["plain"][rank]),
                came=shown(said["results"][rank])
                if said["results"][rank]["type"] == "Tensor"
                else said["results"][rank]["type"],
            )
        if "nothing" in said["raised"][rank]:
            return Feedback(
                "The mesh raised ValueError, and the wrapper kept it to itself.", rank=rank
            )
    return None


EXERCISE = TrialExercise(
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
)
