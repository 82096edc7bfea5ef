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
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from minidist import _rank
from minidist._travel import pack, unpack
from minidist.diagnosis import Report, describe, names, report_of_finished
from minidist.faults import ON_WIRES, Fault, check, inject
from minidist.mesh import (
    Mesh,
    MeshError,
    PeerLost,
    RankFailed,
    RecvTimeout,
    RunTimeout,
)
from minidist.message_log import MessageLog
from minidist.prints import show
from minidist.trace import Trace
from minidist.transports import Link, queue, shared_memory, tcp
from minidist.transports.process_group import check_nccl
from minidist.transports.simulated import Simulated

WIRES = {"queue": queue, "tcp": tcp, "shared_memory": shared_memory}  # between processes

DIAGNOSIS_S = 1.0  # how long the other ranks get to say what they are doing when a run fails


@dataclass(frozen=True)
class Run:
    """What a run gave: `results[r]` is what rank r's function returned."""

    results: list[Any]
    trace: Trace


def run(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    inputs: Sequence[Any] | None = None,
    transport: str | Simulated = "queue",
    timeout: float = 60.0,
    recv_timeout_ms: float | None = None,
    process_group: str | None = None,
    checksums: bool = False,
    log: str | Path | None = None,
    faults: Sequence[Fault] = (),
) -> Run:
    """Call `fn(mesh, *args)` on `world_size` ranks at once.

    inputs: one value per rank; rank r then calls `fn(mesh, inputs[r], *args)`.
    transport: "queue", "tcp" or "shared_memory" (processes), "simulated" or
    `Simulated(alpha=..., beta=...)` (one process, virtual time).
    timeout: seconds for the whole run. recv_timeout_ms: for one receive (30 s if not given).
    process_group: "gloo", "nccl" (rank r takes GPU r), "minidist" (our own, over TCP) or
    "minidist_shared_memory" (our own) also sets up torch.distributed on every rank before `fn` is
    called.
    checksums: give each message a checksum, and raise MessageCorrupted where it is wrong.
    log: a folder in which rank r writes each message as a line of JSON, with its totals so far, to
    rank<r>.jsonl. faults: what is to go wrong (see minidist.faults), nothing by default.

    Raises RecvTimeout, MessageMismatch, Deadlock (raised on a rank or found here), RankFailed (any
    other exception of a rank, with its traceback), PeerLost (a rank's process ended) or RunTimeout;
    each names the ranks and says what every other rank was doing.
    """
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; a run needs at least one rank")
    if inputs is not None and len(inputs) != world_size:
        raise ValueError(f"{len(inputs)} inputs for {world_size} ranks: give one per rank")
    per_rank = [args if inputs is None else (inputs[r], *args) for r in range(world_size)]
    if log is not None:
        Path(log).mkdir(parents=True, exist_ok=True)

    def prepare(mesh: Mesh) -> Mesh:
        mesh.checksums = checksums
        if recv_timeout_ms is not None:
            mesh.recv_timeout_s = recv_timeout_ms / 1000
        if log is not None:
            mesh.events = MessageLog(Path(log, f"rank{mesh.rank}.jsonl"))
        return mesh

    check(faults, world_size)
    if transport == "simulated":
        transport = Simulated()
    if isinstance(transport, Simulated):
        if process_group:
            raise ValueError("simulated ranks share one process, so they have no process group")
        if not all(isinstance(fault, ON_WIRES) for fault in faults):
            raise ValueError(
                "simulated ranks share one process and no real time: of the faults, only Drop, "
                "Duplicate and Corrupt can happen to them"
            )
        return _run_simulated(transport, fn, per_rank, timeout, prepare, faults)
    if transport not in WIRES:
        known = ", ".join(f'"{name}"' for name in WIRES)
        raise ValueError(f'transport is {transport!r}; there are {known} and "simulated"')
    if process_group == "nccl":
        check_nccl()
    return _run_processes(WIRES[transport], fn, per_rank, timeout, prepare, faults, process_group)


def _run_simulated(
    transport: Simulated,
    fn: Callable[..., Any],
    per_rank: list[tuple[Any, ...]],
    timeout: float,
    prepare: Callable[[Mesh], Mesh],
    faults: Sequence[Fault],
) -> Run:
    def program(mesh: Mesh) -> Any:
        inject(prepare(mesh), faults)
        return fn(mesh, *per_rank[mesh.rank])

    programs = [program] * len(per_rank)
    try:
        return Run(*transport.run(programs, timeout))
    except (MeshError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit: leaving early is a failure
        rank = getattr(error, "minidist_rank", None)
        if rank is None:
            raise
        raise RankFailed(f"rank {rank} raised {type(error).__name__}: {error}") from error


def _run_processes(
    wires: Any,
    fn: Callable[..., Any],
    per_rank: list[tuple[Any, ...]],
    timeout: float,
    prepare: Callable[[Mesh], Mesh],
    faults: Sequence[Fault],
    process_group: str | None,
) -> Run:
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            "run() on a rank: ranks are processes already and start no others. "
            'Use transport="simulated" here, or call run() outside.'
        )
    world_size = len(per_rank)
    deadline = time.monotonic() + timeout
    payloads = [_pack(fn, args, faults) for args in per_rank]
    context = _context()
    with _starting(wires, world_size):
        links = wires.make_links(world_size, context)  # kept until every rank has opened its own
    with tempfile.TemporaryDirectory(prefix="minidist-") as folder:
        group = (process_group, str(Path(folder, "store")), timeout) if process_group else None
        ranks: list[_RankProcess] = []
        try:
            with _starting(wires, world_size):
                for rank in range(world_size):
                    mesh = prepare(Mesh(rank, world_size, links[rank]))
                    ranks.append(_RankProcess(context, mesh, group))
            _close(links)  # or a rank that dies would leave its connections open here
            for rank_process, payload in zip(ranks, payloads, strict=True):
                rank_process.send(payload)
            return _collect(ranks, deadline, timeout)
        finally:
            # Whoever keeps the error keeps this frame: leave no pipe or semaphore in it.
            mesh = None
            _close(links)
            links.clear()
            for rank_process in ranks:
                rank_process.kill()
            for rank_process in ranks:
                rank_process.close()


def _close(links: list[Link]) -> None:
    for link in links:
        link.close()


def _pack(fn: Callable[..., Any], args: tuple[Any, ...], faults: Sequence[Fault]) -> bytes:
    try:
        return pack((fn, args, tuple(faults)))
    except Exception as error:
        raise TypeError(
            f"the function or one of its arguments cannot travel to a rank's process: {error}. "
            "Locks, files, sockets and generators cannot; make them inside the function."
        ) from error


class _RankProcess:
    """The parent's side of one rank."""

    def __init__(self, context: Any, mesh: Mesh, group: Any):
        self.rank = mesh.rank
        self.control, far_end = context.Pipe()
        self.process = context.Process(
            target=_rank.main, args=(far_end, mesh, group), name=f"rank {mesh.rank}", daemon=True
        )
        with far_end, _main_module_hidden:
            self.process.start()
        self.result: Any = None
        self.events: list[Any] = []
        self.marks: list[Any] = []
        self.done = False
        self.ended_as = ""  # how its process ended, if it did

    def send(self, payload: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone already: _collect says so
            self.control.send_bytes(payload)

    def receive(self) -> tuple[Any, ...] | None:
        """Its next message, or None if the process has ended. Call it when one of both is so."""
        try:
            # After the end, somebody whom the rank has started may still hold its pipe open.
            return self.control.recv() if self.control.poll() else None
        except (EOFError, OSError):
            return None

    def ended(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"its process left with exit code {code} (sys.exit or os._exit?)"
        return f"its process was killed by {signal.Signals(-code).name} (out of memory?)"

    def kill(self) -> None:
        end_tree(self.process.pid)
        self.process.kill()
        self.control.close()  # only now: a rank that sees it closed ends, and its children scatter

    def close(self) -> None:
        self.process.join()
        self.process.close()


def end_tree(pid: int) -> None:
    """Kill a rank and what it has started; on Linux also what has left its process group."""
    if not hasattr(os, "killpg"):
        return
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGSTOP)  # whoever stands still starts nothing more
    for descendant in [*_descendants(pid)]:
        with contextlib.suppress(OSError):
            os.kill(descendant, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # or this thread of it
                text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                children += map(int, text.split())
    return children


@contextlib.contextmanager
def _starting(wires: Any, world_size: int) -> Iterator[None]:
    """Say what it takes, should the machine refuse it."""
    try:
        yield
    except (OSError, EOFError) as error:
        raise OSError(
            getattr(error, "errno", None),
            f"this machine could not start {world_size} ranks: {error}. They need "
            f"{wires.needs(world_size)}, and a folder for temporary files with a name of at most "
            f"70 characters (TMPDIR, now {tempfile.gettempdir()}). "
            'transport="simulated" needs none of this.',
        ) from error


def _collect(ranks: list[_RankProcess], deadline: float, timeout: float) -> Run:
    """Take messages until every rank has returned; raise at the first one that fails."""
    waiting = {handle: r for r in ranks for handle in (r.control, r.process.sentinel)}
    while waiting:
        ready = connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready or time.monotonic() > deadline:  # a rank may print for ever
            late = {r.rank for r in waiting.values()}
            raise RunTimeout(
                f"{names(late)} had not returned after {timeout:g} s.\n" + _diagnose(ranks)
            )
        for rank_process in sorted({waiting[h] for h in ready}, key=lambda r: r.rank):
            match rank_process.receive():
                case None:
                    rank_process.ended_as = rank_process.ended()
                    raise PeerLost(
                        f"rank {rank_process.rank} ended before its function returned: "
                        f"{rank_process.ended_as}.\n" + _diagnose(ranks)
                    )
                case ("print", text):
                    _show(rank_process.rank, text)
                case ("done", result, events, marks):
                    rank_process.result = result
                    rank_process.events, rank_process.marks = events, marks
                    rank_process.done = True
                    del waiting[rank_process.control], waiting[rank_process.process.sentinel]
                case ("error", error, text):
                    _raise(rank_process.rank, error, text, ranks)
    trace = Trace((r.events for r in ranks), (r.marks for r in ranks))
    return Run([_unpickle(r) for r in ranks], trace)


def _unpickle(rank_process: _RankProcess) -> Any:
    try:
        return unpack(rank_process.result)
    except Exception as error:
        raise RankFailed(
            f"rank {rank_process.rank} returned what cannot be rebuilt here: "
            f"{type(error).__name__}: {error}. Return tensors, numbers, strings, or lists of them."
        ) from error


def _raise(rank: int, error: bytes | None, text: str, ranks: list[_RankProcess]) -> None:
    """Raise in the caller what rank `rank` raised: the course's own errors as they are."""
    try:
        cause = pickle.loads(error) if error else None
    except Exception:  # an exception class that cannot be rebuilt here; its text is enough
        cause = None
    others = _diagnose(ranks, rank, explain=isinstance(cause, RecvTimeout | PeerLost))
    if isinstance(cause, MeshError):
        raise type(cause)(f"{cause}\n{others}") from None
    what = text.strip().rsplit("\n", 1)[-1]
    raise RankFailed(f"rank {rank} raised {what}\n\n{text}\n{others}") from cause


def _diagnose(ranks: list[_RankProcess], failed: int | None = None, explain: bool = True) -> str:
    """Ask every rank that has not returned what it is doing right now, and say what that means."""
    asked = {r.control: r for r in ranks if not r.done and not r.ended_as}
    for rank_process in asked.values():
        rank_process.send(_rank.WHERE)
    reports: dict[int, Report] = {}
    deadline = time.monotonic() + DIAGNOSIS_S
    while asked and (left := deadline - time.monotonic()) > 0:
        for control in connection.wait(list(asked), timeout=left):
            rank_process = asked[control]
            match rank_process.receive():
                case ("print", text):
                    _show(rank_process.rank, text)
                    continue
                case ("error", *_):
                    continue  # it has failed as well; where it did so comes next
                case ("where", report):
                    reports[rank_process.rank] = report
                case ("done", _, events, _):
                    rank_process.events, rank_process.done = events, True
                case None:
                    rank_process.ended_as = rank_process.ended()
            del asked[control]
    finished = [r for r in ranks if r.done]
    for rank_process in finished:
        reports[rank_process.rank] = report_of_finished(rank_process.events)
    return describe(
        reports,
        finished=[r.rank for r in finished],
        gone={r.rank: r.ended_as for r in ranks if r.ended_as},
        silent=[r.rank for r in asked.values()],
        failed=failed,
        explain=explain,
    )


def _show(rank: int, text: str) -> None:
    for line in text.split("\n"):
        if sys.stdout:  # None under pythonw, or when it was closed before we began
            show(rank, line, sys.stdout)


def _context() -> Any:
    """A process context whose children start clean and fast."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")  # Windows: correct, but seconds per run
    context = multiprocessing.get_context("forkserver")
    # PyTorch's optimizers and its DDP import dynamo when they are made: a second on every rank.
    context.set_forkserver_preload(
        ["minidist._rank", "minidist.grading._child", "torch.distributed", "torch._dynamo"]
    )
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
