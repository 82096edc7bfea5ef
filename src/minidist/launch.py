"""run(): start one function on every rank, wait, give back the results and the trace.

It works the same from a notebook cell, a closure, a script and pytest. Ranks are processes forked
from a small server that has torch loaded but has never computed anything (a fork of the notebook
itself would inherit locked thread pools and hang); functions travel by cloudpickle, so they need
not live in a module. The parent watches every rank: one that raises, dies, hangs or leaves early
ends the run with an error that names it, and no process stays behind.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from minidist import _rank
from minidist._travel import pack
from minidist.mesh import (
    RECV_TIMEOUT_S,
    Mesh,
    MeshError,
    PeerLost,
    RecvTimeout,
    Wait,
    describe_waits,
)
from minidist.trace import Trace
from minidist.transports import queue
from minidist.transports.simulated import Simulated

DIAGNOSIS_S = 0.5  # how long the other ranks get to say what they are doing when a run fails


@dataclass(frozen=True)
class Run:
    """What a run gave: `results[r]` is what rank r's function returned."""

    results: list[Any]
    trace: Trace


class RankFailed(MeshError):
    """A rank's function raised; its own traceback is in the message, its error in __cause__."""


class RunTimeout(MeshError):
    """The ranks were not done when the run's time was up."""


def run(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    inputs: Sequence[Any] | None = None,
    transport: str | Simulated = "queue",
    timeout: float = 60.0,
    recv_timeout_ms: float | None = None,
    process_group: str | None = None,
) -> Run:
    """Call `fn(mesh, *args)` on `world_size` ranks at once.

    inputs: one value per rank; rank r then calls `fn(mesh, inputs[r], *args)`.
    transport: "queue" (processes), "simulated" or `Simulated(alpha=..., beta=...)` (virtual time).
    timeout: seconds for the whole run. recv_timeout_ms: for one receive (30 s if not given).
    process_group: "gloo" also sets up torch.distributed on every rank before `fn` is called.

    Raises RecvTimeout, MessageMismatch, Deadlock (raised on a rank or found here), RankFailed (any
    other exception of a rank, with its traceback), PeerLost (a rank's process ended) or RunTimeout;
    each names the ranks and says what every other rank was doing.
    """
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; a run needs at least one rank")
    if inputs is not None and len(inputs) != world_size:
        raise ValueError(f"{len(inputs)} inputs for {world_size} ranks: give one per rank")
    per_rank = [args if inputs is None else (inputs[r], *args) for r in range(world_size)]
    if transport == "simulated":
        transport = Simulated()
    if isinstance(transport, Simulated):
        if process_group:
            raise ValueError("simulated ranks share one process, so they have no process group")
        return _run_simulated(transport, fn, per_rank, timeout)
    if transport != "queue":
        raise ValueError(f'transport is {transport!r}; there are "queue" and "simulated"')
    recv_timeout_s = RECV_TIMEOUT_S if recv_timeout_ms is None else recv_timeout_ms / 1000
    return _run_processes(fn, per_rank, timeout, recv_timeout_s, process_group)


def _run_simulated(
    transport: Simulated, fn: Callable[..., Any], per_rank: list[tuple[Any, ...]], timeout: float
) -> Run:
    programs = [lambda mesh, args=args: fn(mesh, *args) for args in per_rank]
    try:
        return Run(*transport.run(programs, timeout))
    except MeshError:
        raise
    except Exception as error:
        rank = getattr(error, "minidist_rank", None)
        if rank is None:
            raise
        raise RankFailed(f"rank {rank} raised {type(error).__name__}: {error}") from error


def _run_processes(
    fn: Callable[..., Any],
    per_rank: list[tuple[Any, ...]],
    timeout: float,
    recv_timeout_s: float,
    process_group: str | None,
) -> Run:
    world_size = len(per_rank)
    deadline = time.monotonic() + timeout
    payloads = [pack((fn, args)) for args in per_rank]
    context = _context()
    links = queue.make_links(world_size, context)  # held here until every rank has opened its own
    with tempfile.TemporaryDirectory(prefix="minidist-") as folder:
        store = str(Path(folder, "store"))
        ranks: list[_RankProcess] = []
        try:
            for rank, link in enumerate(links):
                mesh = Mesh(rank, world_size, link, recv_timeout_s)
                group = (process_group, store, timeout) if process_group else None
                ranks.append(_RankProcess(context, mesh, group))
            for rank_process, payload in zip(ranks, payloads, strict=True):
                rank_process.send(payload)
            return _collect(ranks, deadline, timeout)
        finally:
            for rank_process in ranks:
                rank_process.stop()


class _RankProcess:
    """The parent's side of one rank."""

    def __init__(self, context: Any, mesh: Mesh, group: Any):
        self.rank = mesh.rank
        self.control, far_end = context.Pipe()
        self.process = context.Process(
            target=_rank.main, args=(far_end, mesh, group), name=f"rank {mesh.rank}", daemon=True
        )
        with _main_module_hidden:
            self.process.start()
        far_end.close()
        self.result: Any = None
        self.events: list[Any] = []
        self.done = False

    def send(self, payload: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone already: _collect says so
            self.control.send_bytes(payload)

    def receive(self) -> tuple[Any, ...] | None:
        """Its next message, or None if the process has ended."""
        try:
            return self.control.recv()
        except (EOFError, OSError):
            return None

    def ended(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"its process left with exit code {code} (sys.exit or os._exit?)"
        return f"its process was killed by {signal.Signals(-code).name} (out of memory?)"

    def stop(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.join()
        self.process.close()


def _collect(ranks: list[_RankProcess], deadline: float, timeout: float) -> Run:
    """Take messages until every rank has returned; raise at the first one that fails."""
    waiting = {r.control: r for r in ranks}
    while waiting:
        ready = connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = [r.rank for r in waiting.values()]
            raise RunTimeout(
                f"{_names(late)} had not returned after {timeout:g} s.\n" + _diagnose(ranks)
            )
        for control in ready:
            rank_process = waiting[control]
            message = rank_process.receive()
            match message:
                case None:
                    raise PeerLost(
                        f"rank {rank_process.rank} ended before its function returned: "
                        f"{rank_process.ended()}.\n"
                        + _diagnose([r for r in ranks if r is not rank_process])
                    )
                case ("print", text):
                    _show(rank_process.rank, text)
                case ("done", result, events):
                    rank_process.result, rank_process.events = pickle.loads(result), events
                    rank_process.done = True
                    del waiting[control]
                case ("error", error, text):
                    _raise(rank_process.rank, error, text, ranks)
    return Run([r.result for r in ranks], Trace(r.events for r in ranks))


def _raise(rank: int, error: bytes | None, text: str, ranks: list[_RankProcess]) -> None:
    """Raise in the caller what rank `rank` raised: the course's own errors as they are."""
    try:
        cause = pickle.loads(error) if error else None
    except Exception:  # an exception class that cannot be rebuilt here; its text is enough
        cause = None
    if isinstance(cause, RecvTimeout):  # this rank is part of the picture: it waits, too
        raise RecvTimeout(f"{cause}\n{_diagnose(ranks)}") from None
    others = _diagnose([r for r in ranks if r.rank != rank])
    if isinstance(cause, MeshError):
        raise type(cause)(f"{cause}\n{others}") from None
    what = text.strip().rsplit("\n", 1)[-1]
    raise RankFailed(f"rank {rank} raised {what}\n\n{text}\n{others}") from cause


def _diagnose(ranks: list[_RankProcess]) -> str:
    """Ask every rank that has not returned what it is doing right now."""
    asked = {r.control: r for r in ranks if not r.done}
    for rank_process in asked.values():
        rank_process.send(_rank.WHERE)
    waits: dict[int, Wait] = {}
    lines: list[str] = []
    deadline = time.monotonic() + DIAGNOSIS_S
    while asked and (
        ready := connection.wait(list(asked), timeout=max(0.0, deadline - time.monotonic()))
    ):
        for control in ready:
            rank_process = asked[control]
            match rank_process.receive():
                case ("print", text):
                    _show(rank_process.rank, text)
                    continue
                case ("error", *_):
                    continue  # it has failed as well; where it did so comes next
                case ("where", Wait() as wait, _):
                    waits[rank_process.rank] = wait
                case ("where", None, place):
                    lines.append(f"  rank {rank_process.rank}: {place}")
                case ("done", *_):
                    rank_process.done = True
            del asked[control]
    lines += [f"  rank {r.rank}: does not answer" for r in asked.values()]
    finished = [r.rank for r in ranks if r.done]
    if finished:
        lines.append(f"  {_names(finished)}: returned already")
    if waits:
        lines.append(describe_waits(waits, finished))
    return "At that moment:\n" + "\n".join(lines) if lines else ""


def _names(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))


def _show(rank: int, text: str) -> None:
    for line in text.splitlines():
        print(f"[rank {rank}] {line}", flush=True)


def _context() -> Any:
    """A process context whose children start clean and fast."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")  # Windows: correct, but seconds per run
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["minidist._rank", "torch", "torch.distributed"])
    return context


class _MainModuleHidden:
    """While a process starts, pretend that there is no main script.

    multiprocessing runs the main script again in every child, to find functions that live in it.
    Ours come by cloudpickle, and a script without an `if __name__ == "__main__"` guard would start
    itself again and again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()
        self.main = sys.modules["__main__"]
        stand_in = types.ModuleType("__main__")
        stand_in.__spec__ = None
        sys.modules["__main__"] = stand_in

    def __exit__(self, *error: object) -> None:
        sys.modules["__main__"] = self.main
        self.lock.release()


_main_module_hidden = _MainModuleHidden()
