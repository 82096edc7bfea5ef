"""The process in which a learner's code runs, seen from the grader.

The seam of trust: nothing that comes from here is unpickled, believed or waited for without a
deadline. A process says only frames (JSON header and raw bytes, see _child.py); what it prints
comes through another pipe, is cut, and is only ever shown. When the grader is done with it, it is
killed with all that it has started.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

from minidist import launch
from minidist._travel import pack
from minidist.grading import _child
from minidist.grading.cases import Case, Trial, known_to
from minidist.grading.prints import PrintsByCase, new_token
from minidist.transports import Link, queue

START_S = 60.0  # a first start has to load torch
GRACE_S = 1.0  # after a deadline: the process itself gets this long to say where it was
MAX_FRAME = 64 * 1024 * 1024

# ("file", (path, bytes)) or ("function", a tuple of functions as _travel.pack gives it)
Code = tuple[str, Any]

Picture = tuple[str, int, int, tuple[int, ...]]  # op, world_size, numel, args: what to record


@dataclass
class Said:
    """One thing that a process said, or that happened to it."""

    rank: int
    kind: str  # "frame", "ended" or "silent"
    header: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""


class Sandbox:
    """One process with the learner's code; as a context manager it leaves nothing behind."""

    def __init__(
        self,
        code: Code,
        functions: Sequence[str],
        cases: Sequence[Case | Trial],
        deadline_s: float,
        link: Link | None = None,
        rank: int = 0,
        picture: Picture | None = None,
    ):
        context = launch._context()
        self.rank = rank
        self.link = link  # held until the process is there to open its own end
        self.deadline_s = deadline_s
        self.answers, far_answers = context.Pipe(duplex=False)
        self.prints, far_prints = context.Pipe(duplex=False)
        token = new_token()
        job = pack((code, list(functions), list(cases), deadline_s, picture, token))
        self.process = context.Process(
            target=_child.main, args=(far_answers, far_prints, job, link, rank), daemon=True
        )
        with launch._main_module_hidden:
            self.process.start()
        far_answers.close()
        far_prints.close()
        self.pid = self.process.pid
        self.until = time.monotonic() + START_S
        self.buffer = bytearray()
        self.printed = PrintsByCase(token)
        self.done = False

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process and all that it started; a second call does nothing."""
        if self.answers.closed:
            return
        launch.end_tree(self.pid)
        self.process.kill()
        self.process.join()
        self._drain_prints()
        self.answers.close()
        self.prints.close()

    @property
    def exit_text(self) -> str:
        self.process.join(GRACE_S)
        code = self.process.exitcode
        if code is None:
            return "it closed its pipe to the grader"
        names = {s.value: s.name for s in signal.Signals}
        return f"killed by {names[-code]}" if -code in names else f"exit code {code}"

    def read(self) -> Iterator[Said]:
        """What is there now; call it when `answers` is ready."""
        try:
            data = os.read(self.answers.fileno(), 1 << 20)
        except OSError:
            data = b""
        if not data:
            self.done = True
            yield Said(self.rank, "ended")
            return
        self.buffer += data
        while (frame := self._next_frame()) is not None:
            header, payload = frame
            kind = header.get("kind")
            if kind in ("begin", "loaded"):
                self.until = time.monotonic() + self.deadline_s + GRACE_S
            if kind == "end":
                self.done = True
            yield Said(self.rank, "frame", header, payload)

    def _next_frame(self) -> tuple[dict[str, Any], bytes] | None:
        if len(self.buffer) < 8:
            return None
        head, body = struct.unpack_from("<II", self.buffer)
        if head + body > MAX_FRAME:
            raise Garbled(f"a frame of {head + body} bytes")
        if len(self.buffer) < 8 + head + body:
            return None
        try:
            header = json.loads(bytes(self.buffer[8 : 8 + head]))
        except (ValueError, RecursionError) as error:
            raise Garbled("a header that is not JSON") from error
        if not isinstance(header, dict):
            raise Garbled("a header that is no object")
        payload = bytes(self.buffer[8 + head : 8 + head + body])
        del self.buffer[: 8 + head + body]
        return header, payload

    def read_prints(self) -> bool:
        """Take what was printed; False when there will be no more."""
        try:
            data = os.read(self.prints.fileno(), 1 << 16)
        except OSError:
            data = b""
        self.printed.take(data)
        return bool(data)

    def _drain_prints(self) -> None:
        """The last lines, without waiting: a grandchild may hold the pipe open and write on."""
        for _ in range(16):
            if not self.prints.poll() or not self.read_prints():
                break
        self.printed.take(b"", last=True)


class Garbled(Exception):
    """The process wrote something that is not a frame: only code that tampers does that."""


# What taking apart an answer may raise: a field is missing, of another type, too large, too deep.
NONSENSE = (
    Garbled, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip


def converse(sandboxes: Sequence[Sandbox], total_s: float) -> Iterator[Said]:
    """Everything that the processes say until each has ended, said "end" or fallen silent."""
    answers = {s.answers: s for s in sandboxes}
    prints = {s.prints: s for s in sandboxes}
    until = time.monotonic() + START_S + total_s
    while answers:
        deadline = min(until, *(s.until for s in answers.values()))
        left = deadline - time.monotonic()
        ready = connection.wait([*answers, *prints], timeout=max(0.0, left))
        for pipe in ready:
            if pipe in prints:
                if not prints[pipe].read_prints():
                    del prints[pipe]
            elif pipe in answers:
                sandbox = answers[pipe]
                yield from sandbox.read()
                if sandbox.done:
                    del answers[pipe]
        now = time.monotonic()
        for pipe, sandbox in list(answers.items()):
            if now > min(sandbox.until, until):
                del answers[pipe]
                yield Said(sandbox.rank, "silent")


def real_ranks(
    code: Code, functions: Sequence[str], cases: Sequence[Case], deadline_s: float
) -> list[Sandbox]:
    """One process per rank, joined by the queue transport; all cases have one world size."""
    world_size = cases[0].world_size
    links = queue.make_links(world_size, launch._context())
    sandboxes: list[Sandbox] = []
    try:
        for rank, link in enumerate(links):
            known = [known_to(case, rank) for case in cases]
            sandboxes.append(Sandbox(code, functions, known, deadline_s, link, rank))
    except BaseException:
        for sandbox in sandboxes:
            sandbox.stop()
        raise
    return sandboxes
