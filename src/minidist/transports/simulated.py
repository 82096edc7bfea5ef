"""All ranks in one process, on a virtual clock.

Each rank is a greenlet: its blocking function runs unmodified until it has to wait, then another
rank goes on. So hundreds of ranks need no processes, a deadlock is seen the moment it exists, and
time is computed instead of measured.

The clock is the alpha-beta model with one port in each direction: a message of n bytes keeps the
sender's way out and the receiver's way in busy for alpha + n * beta seconds. A rank can send one
message and receive another at the same time, but not two of either. This is the model under which
the textbook times of collectives are derived.

A message takes about 20 microseconds to simulate, a third to a half of them in torch's add_ on
tensors without data. A ring of 1024 ranks has two million: about 40 seconds and 1.1 GB of events.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import heapq
import io
import sys
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import greenlet
import torch
from torch import Tensor

from minidist.diagnosis import describe_waits, place
from minidist.mesh import Deadlock, Mesh, RunTimeout
from minidist.prints import show
from minidist.trace import Trace
from minidist.transports import Label, Link

ALPHA = 5e-6  # seconds a message costs however small it is
BETA = 1 / 12.5e9  # seconds per byte: a link of 12.5 GB/s


@dataclass(slots=True)
class Message:
    tensor: Tensor
    label: Label
    nbytes: int
    sent: float  # when the sender offered it
    arrival: float | None = None  # None while a rendezvous send waits for its receiver


@dataclass
class Simulated:
    """The transport `run(..., transport=Simulated(...))`.

    alpha: seconds per message; beta: seconds per byte; rendezvous: a send waits until its
    receiver is there, as an unbuffered wire does (a ring of plain sends then deadlocks).
    link: link(src, dst) gives (alpha, beta) of a message between the two instead, see `nodes`.
    late: {rank: seconds}, how much later than the others a rank begins: a straggler.

    All ranks share one process, so they share its globals and its random generator. A receive has
    no deadline: that nobody can go on is seen at once.
    """

    alpha: float = ALPHA
    beta: float = BETA
    rendezvous: bool = False
    link: Callable[[int, int], tuple[float, float]] | None = None
    late: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}; it is a time in seconds, 0 or more")

    def run(self, programs: list[Callable[[Mesh], Any]], timeout: float) -> tuple[list[Any], Trace]:
        """Run `programs[r](mesh)` as rank r, all of them to their end."""
        return _World(self, programs, timeout).run()


def nodes(
    node_size: int, inside: tuple[float, float], across: tuple[float, float]
) -> Callable[[int, int], tuple[float, float]]:
    """For Simulated(link=...): ranks 0 to node_size - 1 are a node, the next node_size another.

    inside, across: (alpha, beta) of a message within a node and of one between two nodes.
    """
    return lambda src, dst: inside if src // node_size == dst // node_size else across


class _World:
    """One simulated run: the clocks, the lines between ranks, and who runs next."""

    def __init__(self, model: Simulated, programs: list[Callable[[Mesh], Any]], timeout: float):
        world_size = len(programs)
        self.model = model
        self.timeout = timeout
        self.clock = [model.late.get(rank, 0.0) for rank in range(world_size)]
        self.way_out_free = [0.0] * world_size
        self.way_in_free = [0.0] * world_size
        self.lines: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.blocked: dict[int, Callable[[], object]] = {}  # rank -> may it go on?
        self.ready = sorted((clock, rank) for rank, clock in enumerate(self.clock))  # a heap
        self.grad_mode = [True] * world_size  # torch keeps it per thread, and all ranks share one
        self.results: list[Any] = [None] * world_size
        self.meshes = [Mesh(r, world_size, _SimulatedLink(self, r)) for r in range(world_size)]
        self.greenlets = [
            greenlet.greenlet(lambda r=r, program=program: self._rank(r, program))
            for r, program in enumerate(programs)
        ]

    def run(self) -> tuple[list[Any], Trace]:
        grad_mode = torch.is_grad_enabled()
        try:
            with _stdout_is_ours, _rank_prefix(self), _rare_gc(), _time_limit(self.timeout):
                while self.ready:
                    # The rank whose clock is furthest behind goes first, so that messages claim
                    # the ports in the order of virtual time.
                    _, rank = heapq.heappop(self.ready)
                    if torch.is_grad_enabled() != self.grad_mode[rank]:
                        torch.set_grad_enabled(self.grad_mode[rank])
                    self.greenlets[rank].switch()
                    self.grad_mode[rank] = torch.is_grad_enabled()
            if self.blocked:
                raise Deadlock(self._deadlock_text())
        except _TimeIsUp as interrupt:
            raise RunTimeout(self._timeout_text(interrupt)) from None
        finally:
            for rank_greenlet in self.greenlets:
                if rank_greenlet and not rank_greenlet.dead:
                    rank_greenlet.throw(greenlet.GreenletExit)
            torch.set_grad_enabled(grad_mode)
        trace = Trace((mesh.events for mesh in self.meshes), (mesh.marks for mesh in self.meshes))
        return self.results, trace

    def _rank(self, rank: int, program: Callable[[Mesh], Any]) -> None:
        try:
            self.results[rank] = program(self.meshes[rank])
        except BaseException as error:
            error.minidist_rank = rank  # type: ignore[attr-defined]  # read by launch.run
            raise

    def wait_until(self, rank: int, may_go_on: Callable[[], object]) -> None:
        """Let others run until `may_go_on()`."""
        if not may_go_on():
            self.blocked[rank] = may_go_on
            greenlet.getcurrent().parent.switch()

    def wait_for_turn(self, rank: int) -> None:
        """Let every rank go first that is behind the time at which this one's message can leave.

        A message claims the receiver's port as it leaves, so they must leave in the order of time:
        of several sends in a row, only the first leaves now.
        """
        leaves = self.clock[rank]
        if not self.model.rendezvous:
            leaves = max(leaves, self.way_out_free[rank])
        while self.ready and self.ready[0][0] < leaves:
            heapq.heappush(self.ready, (leaves, rank))
            greenlet.getcurrent().parent.switch()

    def wake(self, rank: int) -> None:
        if rank in self.blocked and self.blocked[rank]():
            del self.blocked[rank]
            heapq.heappush(self.ready, (self.clock[rank], rank))

    def transfer(self, src: int, dst: int, message: Message, earliest: float) -> None:
        """Claim both ports and set when the message arrives."""
        model = self.model
        alpha, beta = model.link(src, dst) if model.link else (model.alpha, model.beta)
        busy_for = alpha + message.nbytes * beta
        leaves = max(earliest, self.way_out_free[src])
        enters = max(leaves, self.way_in_free[dst])
        self.way_out_free[src] = leaves + busy_for
        self.way_in_free[dst] = message.arrival = enters + busy_for

    def _deadlock_text(self) -> str:
        return (
            f"no rank can go on, each waits for another:\n{self._waits()}\n"
            "For each wait, find the call on the other rank that should match it."
        )

    def _timeout_text(self, interrupt: _TimeIsUp) -> str:
        where = place(reversed(list(traceback.walk_tb(interrupt.__traceback__))))
        rank = getattr(interrupt, "minidist_rank", None)
        who = "the ranks" if rank is None else f"rank {rank}"
        return (
            f"{who} had not returned after {self.timeout:g} s, {where}.\n{self._waits()}".rstrip()
        )

    def _waits(self) -> str:
        waits = {r: wait for r in self.blocked if (wait := self.meshes[r].waits_for)}
        return describe_waits(waits, [r for r, g in enumerate(self.greenlets) if g.dead])


class _SimulatedLink(Link):
    def __init__(self, world: _World, rank: int):
        self.world = world
        self.rank = rank
        self.buffered = not world.model.rendezvous

    def now(self) -> float:
        return self.world.clock[self.rank]

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        message = self._offer(dst, tensor, label)
        if self.world.model.rendezvous:
            self._wait_for_receiver(message)
            return self.now()
        return self.world.way_out_free[self.rank]

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        world, rank = self.world, self.rank
        line = world.lines[src, rank]
        if not line:
            world.wait_until(rank, line.__len__)
        message = line.popleft()
        if message.arrival is None:  # rendezvous: the transfer starts when both are there
            world.transfer(src, rank, message, max(message.sent, world.clock[rank]))
            world.wake(src)
        assert message.arrival is not None
        if message.arrival > world.clock[rank]:
            world.clock[rank] = message.arrival
        return message.tensor, message.label

    def exchange(
        self, dst: int, tensor: Tensor, label: Label, src: int, timeout_s: float
    ) -> tuple[Tensor, Label, float]:
        message = self._offer(dst, tensor, label)
        received = self.get(src, timeout_s)
        if self.world.model.rendezvous:
            self._wait_for_receiver(message)
            return *received, self.now()
        assert message.arrival is not None
        return *received, message.arrival

    def _offer(self, dst: int, tensor: Tensor, label: Label) -> Message:
        world, rank = self.world, self.rank
        world.wait_for_turn(rank)
        now = world.clock[rank]
        message = Message(_copy(tensor), label, tensor.numel() * tensor.element_size(), now)
        if not world.model.rendezvous:
            world.transfer(rank, dst, message, now)
        world.lines[rank, dst].append(message)
        world.wake(dst)
        return message

    def _wait_for_receiver(self, message: Message) -> None:
        world = self.world
        world.wait_until(self.rank, lambda: message.arrival is not None)
        assert message.arrival is not None
        world.clock[self.rank] = max(self.now(), message.arrival)


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the layout that a message has on every other transport."""
    if tensor.is_meta:  # nothing to copy, and a new meta tensor costs more than the rest
        return tensor.detach().contiguous()
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor.detach().clone()
    plain = tensor.detach().resolve_conj().resolve_neg()  # x.conj() only sets a mark on x
    return plain.clone(memory_format=torch.contiguous_format)


_stdout_is_ours = threading.RLock()  # one run at a time: sys.stdout belongs to the whole process


@contextlib.contextmanager
def _rank_prefix(world: _World) -> Iterator[None]:
    """Put '[rank r] ' before each line that a rank prints."""
    out = _RankPrefix(world, sys.stdout)
    with contextlib.redirect_stdout(out):
        try:
            yield
        finally:
            for rank, text in out.pending.items():
                if text:
                    show(rank, text, out.out)


@dataclass
class _RankPrefix(io.TextIOBase):
    world: _World
    out: Any
    pending: dict[int, str] = field(default_factory=dict)  # begun lines

    def write(self, text: str) -> int:
        current = greenlet.getcurrent()
        rank = next((r for r, g in enumerate(self.world.greenlets) if g is current), None)
        if rank is None:
            return self.out.write(text)
        *lines, self.pending[rank] = (self.pending.get(rank, "") + text).split("\n")
        for line in lines:
            show(rank, line, self.out)
        return len(text)

    def flush(self) -> None:
        self.out.flush()


COLLECT_AFTER = 100_000  # new objects


@contextlib.contextmanager
def _rare_gc() -> Iterator[None]:
    """Look for garbage less often: a run makes millions of events, and all of them are kept.

    To look through them again and again takes up to half of the time of a run.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], COLLECT_AFTER) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _TimeIsUp(BaseException):
    """Raised in the running rank; no Exception, so that a rank's `except` does not swallow it."""


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in this thread, at whatever Python line it is, once `seconds` are over.

    A simulated rank that computes for ever shares our process, so nobody can end it from outside.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    raise_there = ctypes.pythonapi.PyThreadState_SetAsyncExc
    lock = threading.Lock()
    left = False

    def interrupt() -> None:
        with lock:
            if not left:
                raise_there(thread, ctypes.py_object(_TimeIsUp))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            left = True
            raise_there(thread, None)  # in case it is on its way
        timer.cancel()


def replay(trace: Trace, alpha: float = ALPHA, beta: float = BETA) -> Trace:
    """The same messages on another clock: what the recorded run would cost at alpha and beta.

    With alpha=1 and beta=0 the duration is the number of messages on the longest chain, which is
    what "steps" means.
    """
    return Trace(
        [replace(e, start=new.start, end=new.end) for e, new in zip(events, again, strict=True)]
        for events, again in zip(trace.by_rank, _again(trace, alpha, beta).by_rank, strict=True)
    )


def _again(trace: Trace, alpha: float, beta: float) -> Trace:
    """The trace of a second run, whose messages have the shapes of the first and no place there.

    A trace is a program. Each rank repeats its verbs with tensors that have a shape but no data.
    """

    def program(rank: int) -> Callable[[Mesh], None]:
        def repeat(mesh: Mesh) -> None:
            events = deque(trace.by_rank[rank])
            while events:
                event = events.popleft()
                if event.kind == "recv":
                    mesh.recv(event.peer)
                elif events and events[0].step == event.step:  # the other half of a sendrecv
                    answer = events.popleft()
                    mesh.sendrecv(event.peer, _like(event), answer.peer, like=_like(answer))
                else:
                    mesh.send(event.peer, _like(event))

        return repeat

    @cache
    def empty(shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def _like(event: Any) -> Tensor:
        return empty(event.shape, event.dtype)

    model = Simulated(alpha=alpha, beta=beta)
    return model.run([program(r) for r in range(trace.world_size)], timeout=600.0)[1]


def steps(trace: Trace) -> int:
    """Messages on the longest chain of the run, each rank sending and receiving one at a time."""
    return round(_again(trace, alpha=1.0, beta=0.0).duration)
