"""What runs in the process of the learner's code: the other half of sandbox.py.

It knows inputs, never expected values. Everything it says to the grader is JSON and raw bytes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import linecache
import os
import struct
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from types import FrameType, TracebackType
from typing import Any

import torch

from minidist import _rank
from minidist._travel import unpack
from minidist.diagnosis import of_a_library
from minidist.grading.cases import Case, Trial, make_base, view
from minidist.grading.prints import mark
from minidist.mesh import Mesh, MeshError
from minidist.provenance import record
from minidist.trace import dtype_name
from minidist.transports import Label, Link
from minidist.transports.queue import to_bytes
from minidist.transports.simulated import Simulated

MAX_MESSAGES = 2000  # per rank and case; far more than any exercise needs
MAX_RESULT = 1 << 20  # bytes of a result; a larger one comes without its elements
CPU_LIMIT_S = 60  # even if the grader itself is killed, an endless loop ends
REFUSED = "calling torch.distributed is refused"


class Endless(Exception):
    """More messages than any right answer sends."""


class Distributed(Exception):
    """The function called torch.distributed."""


def main(answers: Connection, prints: Connection, job: bytes, link: Link | None, rank: int) -> None:
    """Do the job, answer case by case, end."""
    _rank._tie_to_parent()  # also makes a group of our own, which the grader ends as a whole
    _limit_cpu()
    _let_go_of_the_fork_server()
    for fd in (1, 2):
        os.dup2(prints.fileno(), fd)
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
    sys.stderr = sys.stdout
    torch.set_num_threads(1)
    code, functions, cases, deadline_s, picture, token = unpack(job)
    watch = _Watch(_Frames(answers.fileno()), deadline_s, prints.fileno(), token)
    with _NoDistributed() as distributed:
        fns = _load(code, functions, watch)
        if fns:
            fn = fns[0]
            for number, case in enumerate(cases):
                watch.begin(number)
                if isinstance(case, Trial):
                    answer, payload = _drive(fns, case), b""
                elif link is None:
                    answer, payload = _simulate(fn, case, deadline_s)
                else:
                    answer, payload = _one_rank(fn, case, link, rank, deadline_s)
                answer["distributed"] = sorted(distributed.calls)
                sys.stdout.flush()
                watch.say({"kind": "answer", "case": number, **answer}, payload)
                if answer.get("error", {}).get("type") == Endless.__name__:
                    break  # it would be so in every case, and each takes its time
            if picture:
                watch.begin(-1)
                op, world_size, numel, args = picture
                recording = record(fn, world_size, numel, *args, op=op, timeout=deadline_s)
                watch.say({"kind": "recording", "recording": asdict(recording)})
    watch.say({"kind": "end"})
    # The grader ends us, and then still finds what this code has started. And another rank may need
    # our last message.
    time.sleep(deadline_s)
    os._exit(0)


def _let_go_of_the_fork_server() -> None:
    """The pipes that keep the fork server and its helper alive lead to nowhere from here on.

    Both are inherited, and a single byte in one of them would end the server for all later runs.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for owner, name in (
        (getattr(forkserver, "_forkserver", None), "_forkserver_alive_fd"),
        (resource_tracker._resource_tracker, "_fd"),
    ):
        fd = getattr(owner, name, None)
        if fd is not None:
            os.dup2(nowhere, fd)


def _limit_cpu() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))


class _Frames:
    """Writes frames: length of header and payload, JSON header, raw payload."""

    def __init__(self, fd: int):
        self.fd = fd
        self.lock = threading.Lock()

    def say(self, header: dict[str, Any], payload: bytes = b"") -> None:
        head = json.dumps(header).encode()
        data = memoryview(struct.pack("<II", len(head), len(payload)) + head + payload)
        with self.lock:
            while data:
                data = data[os.write(self.fd, data) :]


class _Watch:
    """Says what is being tried, and where the code is when a case takes too long."""

    def __init__(self, frames: _Frames, deadline_s: float, prints_fd: int, token: str):
        self.say = frames.say
        self.prints_fd, self.token = prints_fd, token
        self.deadline_s = deadline_s
        self.until = time.monotonic() + deadline_s
        self.main_thread = threading.get_ident()
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, case: int) -> None:
        self.until = time.monotonic() + self.deadline_s
        sys.stdout.flush()
        with contextlib.suppress(OSError):  # closed by the learner: then nothing is shown
            os.write(self.prints_fd, mark(self.token, case))
        self.say({"kind": "begin", "case": case})

    def _watch(self) -> None:
        while (left := self.until - time.monotonic()) > 0:
            time.sleep(left)
        frame = sys._current_frames().get(self.main_thread)
        self.say({"kind": "late", "rank": _rank_of(frame), "where": _own_frames(frame)})
        time.sleep(self.deadline_s)  # the grader ends us
        os._exit(0)


def _load(
    code: tuple[str, Any], functions: list[str], watch: _Watch
) -> list[Callable[..., Any]] | None:
    """The learner's functions, or None after saying why there are none."""
    watch.say({"kind": "begin", "case": -1})
    kind, value = code
    try:
        if kind == "function":
            fns = dict(zip(functions, unpack(value), strict=True))
        else:
            path, source = value
            lines = _text(source).splitlines(keepends=True)
            linecache.cache[path] = (len(source), None, lines, path)
            module = types.ModuleType("exercise")
            module.__file__ = path
            sys.modules["exercise"] = module  # dataclasses and typing look a module up by name
            exec(compile(source, path, "exec"), module.__dict__)
            fns = {name: getattr(module, name, None) for name in functions}
            missing = [name for name, fn in fns.items() if fn is None]
            if missing:
                names = [n for n, v in vars(module).items() if inspect.isfunction(v)]
                watch.say({"kind": "loaded", "missing": missing[0], "names": names})
                return None
        for name, fn in fns.items():
            if not callable(fn):
                watch.say({"kind": "loaded", "not_callable": [name, type(fn).__name__]})
                return None
        signatures = {name: _parameters(fn) for name, fn in fns.items()}
        watch.say({"kind": "loaded", "signatures": signatures})
        return list(fns.values())
    except BaseException as error:  # also SystemExit: leaving at import is a failure
        watch.say({"kind": "loaded", "error": _describe(error)})
        return None


def _text(source: bytes) -> str:
    """The source as Python reads it, for tracebacks; compile() says what is wrong with it."""
    try:
        return importlib.util.decode_source(source)
    except (SyntaxError, UnicodeError):
        return source.decode(errors="replace")


def _parameters(fn: Callable[..., Any]) -> list[list[Any]] | None:
    """[[name, may be given by position, has a default], ...]; None if Python cannot say."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    return [
        [str(p), p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD), p.default is not p.empty]
        for p in parameters
    ]


def _simulate(fn: Callable[..., Any], case: Case, deadline_s: float) -> tuple[dict, bytes]:
    """All ranks of one case in this process."""
    ranks = [_RankOfCase(fn, case, rank) for rank in range(case.world_size)]
    answer: dict[str, Any] = {}
    try:
        Simulated().run([rank.program for rank in ranks], timeout=10 * deadline_s)
    except BaseException as error:  # one rank's exception or the deadlock of all
        answer["error"] = _describe(error)
        answer["error"]["rank"] = getattr(error, "minidist_rank", None)
        answer["error"]["step"] = next(
            (r.mesh.step for r in ranks if r.rank == answer["error"]["rank"] and r.mesh), None
        )
    answer["waits"] = [[*r.wait, r.place] for r in ranks if r.wait]
    parts = [rank.answer() for rank in ranks]
    answer["ranks"] = [head for head, _ in parts]
    return answer, b"".join(data for _, data in parts)


def _drive(fns: list[Callable[..., Any]], trial: Trial) -> dict[str, Any]:
    """What the trial's driver says about the learner's functions."""
    try:
        said = trial.driver(fns, **trial.arguments)
    except BaseException as error:
        rank = getattr(error, "minidist_rank", None)
        return {"ranks": [], "error": {**_describe(error), "rank": rank}}
    return {"ranks": [], "said": said}


def _one_rank(
    fn: Callable[..., Any], case: Case, link: Link, rank: int, deadline_s: float
) -> tuple[dict, bytes]:
    """This rank's part of one case, its peers being other processes."""
    of_case = _RankOfCase(fn, case, rank)
    answer: dict[str, Any] = {}
    try:
        of_case.program(Mesh(rank, case.world_size, link, recv_timeout_s=deadline_s))
    except BaseException as error:
        answer["error"] = {**_describe(error), "rank": rank, "step": of_case.mesh.step}
    head, data = of_case.answer()
    return {"ranks": [head], **answer}, data


class _RankOfCase:
    """One rank's call, and what there is to say about it afterwards."""

    def __init__(self, fn: Callable[..., Any], case: Case, rank: int):
        self.fn, self.case, self.rank = fn, case, rank
        self.base = make_base(case, rank)
        self.result: Any = None
        self.returned = False
        self.mesh: Mesh | None = None
        self.wait: list[Any] | None = None
        self.place: list[Any] = []
        self.link: _CountingLink | None = None

    def program(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.link = mesh.link = _CountingLink(mesh.link)
        extra = () if self.case.src is None else (self.case.src,)
        try:
            self.result = self.fn(mesh, view(self.case, self.base), *extra)
            self.returned = True
        except BaseException as error:
            if mesh.waits_for:
                self.wait = [self.rank, mesh.waits_for.verb, mesh.waits_for.peer, mesh.step]
                own = _own_traceback(error.__traceback__)
                self.place = own[-1] if own else []
            raise

    def answer(self) -> tuple[dict[str, Any], bytes]:
        events = [asdict(event) for event in self.mesh.events] if self.mesh else []
        head: dict[str, Any] = {"returned": self.returned, "events": events}
        if self.link:
            head["carried"] = self.link.carried
        before = to_bytes(self.base)
        head["input_bytes"] = len(before)
        if not isinstance(self.result, torch.Tensor):
            head["type"] = type(self.result).__name__
            return head, before
        memory = self.base.untyped_storage()
        try:
            alias = self.result.untyped_storage().data_ptr() == memory.data_ptr()
            too_large = self.result.numel() * self.result.element_size() > MAX_RESULT
            result = b"" if too_large else to_bytes(self.result)
        except (RuntimeError, TypeError):  # sparse, meta, quantized
            kind = "meta" if self.result.is_meta else str(self.result.layout).removeprefix("torch.")
            head["type"] = f"{kind} tensor"
            return head, before
        head["type"] = "Tensor"
        head["dtype"], head["shape"] = dtype_name(self.result.dtype), list(self.result.shape)
        head["alias"] = bool(memory.nbytes()) and alias
        head["result_bytes"] = len(result)
        return head, before + result


class _CountingLink(Link):
    """Counts what really went over the wire, to compare with what the mesh says it recorded."""

    def __init__(self, link: Link):
        self.link = link
        self.carried: list[list[Any]] = []

    def now(self) -> float:
        return self.link.now()

    def put(self, dst: int, tensor: torch.Tensor, label: Label) -> float:
        self._count("send", dst, tensor)
        return self.link.put(dst, tensor, label)

    def get(self, src: int, timeout_s: float) -> tuple[torch.Tensor, Label]:
        tensor, label = self.link.get(src, timeout_s)
        self._count("recv", src, tensor)
        return tensor, label

    def exchange(
        self, dst: int, tensor: torch.Tensor, label: Label, src: int, timeout_s: float
    ) -> tuple[torch.Tensor, Label, float]:
        self._count("send", dst, tensor)
        received, its_label, sent_at = self.link.exchange(dst, tensor, label, src, timeout_s)
        self._count("recv", src, received)
        return received, its_label, sent_at

    def _count(self, kind: str, peer: int, tensor: torch.Tensor) -> None:
        if len(self.carried) >= MAX_MESSAGES:
            raise Endless(f"{MAX_MESSAGES} messages in one call, and no end of it")
        self.carried.append([kind, peer, tensor.numel() * tensor.element_size()])


class _NoDistributed:
    """Every function of torch.distributed raises, and the call is remembered even if caught."""

    def __init__(self) -> None:
        self.calls: set[str] = set()

    def __enter__(self) -> _NoDistributed:
        dist = torch.distributed
        modules = {dist, *(m for m in (getattr(dist, "distributed_c10d", None),) if m)}
        for module in modules:
            for name, value in list(vars(module).items()):
                harmless = name.startswith("_") or name in ("is_available", "is_initialized")
                if type(value) is types.FunctionType and not harmless:
                    setattr(module, name, self._refuse(name))
        return self

    def __exit__(self, *error: object) -> None:
        pass  # the process ends with it

    def _refuse(self, name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            self.calls.add(name)
            raise Distributed(f"{REFUSED}: {name}")

        return refuse


def _describe(error: BaseException) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "mesh_error": isinstance(error, MeshError),
        "text": str(error)[:2000],
        "where": _syntax_place(error) or _own_traceback(error.__traceback__),
    }


def _syntax_place(error: BaseException) -> list[list[Any]]:
    if isinstance(error, SyntaxError) and error.lineno:
        return [[error.filename or "", error.lineno, "", (error.text or "").strip()]]
    return []


def _own_traceback(tb: TracebackType | None) -> list[list[Any]]:
    """[file, line, function, code] of each frame that no library owns, outermost first."""
    frames = [(f.f_code, line) for f, line in traceback.walk_tb(tb)]
    return [_frame(code, line) for code, line in frames if not of_a_library(code)][-8:]


def _own_frames(frame: FrameType | None) -> list[list[Any]]:
    frames = [(f.f_code, line) for f, line in traceback.walk_stack(frame)] if frame else []
    return [_frame(code, line) for code, line in reversed(frames) if not of_a_library(code)][-8:]


def _frame(code: types.CodeType, line: int) -> list[Any]:
    text = linecache.getline(code.co_filename, line).strip()
    return [code.co_filename, line, code.co_name, text]


def _rank_of(frame: FrameType | None) -> int | None:
    """The rank whose turn it is, read from our own frame below the learner's."""
    while frame:
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "program" else None
        if isinstance(owner, _RankOfCase):
            return owner.rank
        frame = frame.f_back
    return None
