"""What runs around a reader's functions that are no collectives, in the reader's process.

A driver is called as driver(functions, **arguments) and returns plain values that JSON can carry:
what happened, never whether it was right.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue as queues
import random
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import greenlet
import torch
from torch import Tensor

from minidist import collectives
from minidist.grading import planted
from minidist.mesh import Deadlock, Mesh
from minidist.trace import Trace, dtype_name
from minidist.transports import Label, Link
from minidist.transports.simulated import Simulated

Functions = list[Callable[..., Any]]

# --- choose_algorithm


def choices(functions: Functions, calls: list[tuple]) -> dict[str, Any]:
    """One answer per call."""
    answers = [functions[0](*call) for call in calls]
    return {"answers": [a if isinstance(a, str) else repr(a)[:100] for a in answers]}


# --- receive_deadline


class Line:
    """A line on which messages arrive in pieces, on a clock that only moves when somebody waits."""

    POLL_S = 0.00005  # what looking costs, so that who only looks gets older, too
    MAX_LOOKS = 20_000

    def __init__(self, arrivals: list[tuple[float, bytes, bool]]):
        self.kept: list[bytes] = []
        self._arrivals = deque(arrivals)
        self._clock = 0.0
        self._looks = 0

    def now(self) -> float:
        return self._clock

    def wait(self, seconds: float) -> bool:
        self._looks += 1
        if self._looks > self.MAX_LOOKS:
            raise _Forever
        at = self._next()
        if at <= self._clock + max(0.0, seconds):
            self._clock = max(self._clock, at)
            return True
        self._clock += max(self.POLL_S, seconds)
        return False

    def take(self) -> tuple[bytes, bool]:
        at = self._next()
        if at == float("inf"):
            raise _Forever
        self._clock = max(self._clock, at)
        _, piece, last = self._arrivals.popleft()
        return piece, last

    def _next(self) -> float:
        return self._arrivals[0][0] if self._arrivals else float("inf")


class _Forever(BaseException):
    """Waiting for something that never comes."""


class PipeLine(Line):
    """The same line on a real clock, with another thread at the far end."""

    FOREVER_S = 3.0  # whoever waits longer for one piece is not going to stop

    def __init__(self, arrivals: list[tuple[float, bytes, bool]]):
        super().__init__([])
        self._began = time.monotonic()
        self._queue: queues.Queue[tuple[bytes, bool]] = queues.Queue()
        self._seen: deque[tuple[bytes, bool]] = deque()
        threading.Thread(target=self._send, args=(arrivals,), daemon=True).start()

    def _send(self, arrivals: list[tuple[float, bytes, bool]]) -> None:
        for at, piece, last in arrivals:
            time.sleep(max(0.0, at - self.now()))
            self._queue.put((piece, last))

    def now(self) -> float:
        return time.monotonic() - self._began

    def wait(self, seconds: float) -> bool:
        self._looks += 1
        if not self._seen:
            with contextlib.suppress(queues.Empty):
                room = min(max(1e-6, seconds), self.FOREVER_S)
                self._seen.append(self._queue.get(timeout=room))
        if not self._seen and seconds > self.FOREVER_S:
            raise _Forever
        return bool(self._seen)

    def take(self) -> tuple[bytes, bool]:
        if not self.wait(2 * self.FOREVER_S):
            raise _Forever
        return self._seen.popleft()


def receives(
    functions: Functions,
    arrivals: list[tuple[float, bytes, bool]],
    calls: list[tuple[float, float]],
    place: tuple[int, int, int],
    real: bool = False,
) -> dict[str, Any]:
    """Receive call after call, each (not before this time, deadline in ms), on one line."""
    line = PipeLine(arrivals) if real else Line(arrivals)
    outcomes = []
    busy, began = time.process_time(), time.monotonic()
    for start, deadline_ms in calls:
        if real:
            time.sleep(max(0.0, start - line.now()))
        else:
            line._clock = max(line._clock, start)
        entered, looks = line.now(), line._looks
        outcome: dict[str, Any] = {}
        try:
            message = functions[0](line, deadline_ms, *place)
            outcome["message"] = bytes(message).hex() if _is_bytes(message) else None
            outcome["type"] = type(message).__name__
        except TimeoutError as error:
            outcome["timeout"] = str(error)[:500]
        except _Forever:
            outcome["forever"] = True
            outcomes.append(outcome)
            break
        outcome["took"] = line.now() - entered
        outcome["looks"] = line._looks - looks
        outcomes.append(outcome)
    spent = time.process_time() - busy, time.monotonic() - began
    return {"outcomes": outcomes, "cpu": spent[0], "elapsed": spent[1]}


def _is_bytes(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


# --- tcp_primitives


class Trickle(socket.socket):
    """A socket that never takes or gives more than a few bytes at a time, as a slow wire does."""

    at_most = 3

    def recv(self, count: int, *args: Any) -> bytes:
        return super().recv(min(count, self.at_most), *args)

    def recv_into(self, buffer: Any, count: int = 0, *args: Any) -> int:
        room = count or memoryview(buffer).nbytes
        return super().recv_into(buffer, min(room, self.at_most), *args)

    def send(self, data: Any, *args: Any) -> int:
        return super().send(memoryview(data).cast("B")[: self.at_most], *args)

    def sendmsg(self, parts: Any, *args: Any) -> int:
        return self.send(b"".join(bytes(part) for part in parts))


STUCK_S = 2.5  # whoever waits longer for bytes of a primitive waits for what never comes


def make_tensor(seed: int, dtype: str, shape: tuple[int, ...], strided: bool = False) -> Tensor:
    """Whole numbers that follow from `seed`; strided: a transposed view."""
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(reversed(shape)) if strided else tuple(shape)
    values = torch.randint(0, 100, shape, generator=generator).to(getattr(torch, dtype))
    return values.t() if strided else values


def describe(value: Any) -> dict[str, Any]:
    """A tensor as JSON: its dtype, shape, first numbers and the hash of its bytes."""
    if not isinstance(value, Tensor):
        return {"type": type(value).__name__}
    flat = value.detach().contiguous().reshape(-1)
    return {
        "type": "Tensor",
        "dtype": dtype_name(value.dtype),
        "shape": list(value.shape),
        "head": [float(v) for v in flat[:6].to(torch.float64)],
        "hash": hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest(),
    }


def exchanged(functions: Functions, tensors: list[tuple], trickle: bool = False) -> dict[str, Any]:
    """Send all tensors, one after the other, and receive them at the other end."""
    send_tensor, recv_tensor = functions
    near, far = socket.socketpair()
    if trickle:
        near, far = Trickle(fileno=near.detach()), Trickle(fileno=far.detach())
    with near, far:
        sender = _Caller(lambda: _send_all(send_tensor, near, tensors))
        if len(tensors) > 1:
            sender.result()  # all of it is there before the first is received, and nothing follows
            near.shutdown(socket.SHUT_WR)
        received: list[dict[str, Any]] = []
        try:
            for _ in tensors:
                received.append(describe(recv_tensor(far)))
        except (OSError, EOFError):
            sender.result()  # if sending failed, that is the story
            if len(tensors) == 1:
                raise
            return {"tensors": received, "left": 0}
        sender.result()
        far.setblocking(False)
        try:
            left = len(far.recv(1))
        except BlockingIOError:
            left = 0
        return {"tensors": received, "left": left}


def _send_all(send_tensor: Callable[..., Any], sock: socket.socket, tensors: list[tuple]) -> None:
    try:
        for spec in tensors:
            send_tensor(sock, make_tensor(*spec))
    except BaseException:
        sock.shutdown(socket.SHUT_RDWR)  # or the receiver would wait for it
        raise


def closed(functions: Functions, tensor: tuple, part: float) -> dict[str, Any]:
    """The far end sends a part of a message and is gone."""
    send_tensor, recv_tensor = functions
    near, far = socket.socketpair()
    with near, far:
        sender = _Caller(lambda: (_send_all(send_tensor, near, [tensor]), near.close()))
        message = b""
        while piece := far.recv(65536):
            message += piece
        sender.result()
    near, far = socket.socketpair()
    with far:
        with near:
            near.sendall(message[: int(part * len(message))])
        try:
            return {"came": describe(recv_tensor(far))}
        except (ConnectionError, EOFError) as error:
            return {"raised": type(error).__name__}


class _Caller:
    """A call in a thread of its own, whose exception comes out where the result is asked for."""

    def __init__(self, call: Callable[[], Any]):
        self.call = call
        self.error: BaseException | None = None
        self.value: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.value = self.call()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        self.thread.join()
        if self.error:
            raise self.error
        return self.value


class _SocketLink(Link):
    """A Link made of the reader's pair; a sender thread per peer, so that no send waits."""

    def __init__(self, functions: Functions, sockets: dict[int, socket.socket]):
        self.send_tensor, self.recv_tensor = functions
        self.sockets = sockets
        self.counts: dict[int, int] = dict.fromkeys(sockets, 0)
        self.errors: list[BaseException] = []
        self.lines: dict[int, queues.Queue[Tensor]] = {peer: queues.Queue() for peer in sockets}
        for peer in sockets:
            threading.Thread(target=self._send, args=(peer,), daemon=True).start()

    def now(self) -> float:
        return time.monotonic()

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        self.lines[dst].put(tensor.clone())
        return self.now()

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        tensor = self.recv_tensor(self.sockets[src])
        number = self.counts[src]
        self.counts[src] = number + 1
        return tensor, Label(number)

    def _send(self, peer: int) -> None:
        try:
            while True:
                self.send_tensor(self.sockets[peer], self.lines[peer].get())
        except BaseException as error:
            self.errors.append(error)
            self.sockets[peer].shutdown(socket.SHUT_RDWR)  # or the receiver would wait for it


def primitives(
    functions: Functions, op: str, world_size: int, tensor: tuple, src: int = 0
) -> dict[str, Any]:
    """One of the course's own collectives over loopback connections, a thread per rank."""
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(world_size)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for low in range(world_size):
            for high in range(low + 1, world_size):
                sockets[low][high] = socket.create_connection(server.getsockname())
                sockets[high][low] = server.accept()[0]
                for one in (sockets[low][high], sockets[high][low]):
                    one.settimeout(STUCK_S)
    seed, *rest = tensor

    links = [_SocketLink(functions, row) for row in sockets]

    def rank_of(rank: int) -> Callable[[], Any]:
        mesh = Mesh(rank, world_size, links[rank])
        extra = (src,) if op == "broadcast" else ()
        return lambda: getattr(collectives, op)(mesh, make_tensor(seed + rank, *rest), *extra)

    ranks = [_Caller(rank_of(rank)) for rank in range(world_size)]
    results = []
    for rank, caller in enumerate(ranks):
        try:
            results.append(describe(caller.result()))
        except Exception as error:
            cause = next((e for link in links for e in link.errors), error)
            return {"raised": f"{type(cause).__name__}: {cause}"[:500], "rank": rank}
    return {"results": results}


# --- byte_counter


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


# --- shared_memory_race


class Window:
    """A rank's piece of shared memory. Writing and reading are moments at which others may act."""

    def __init__(self, world: _Interleaving, owner: int, like: Tensor):
        self._world, self._owner = world, owner
        self._memory = torch.full_like(like, -1)

    def write(self, tensor: Tensor) -> None:
        self._world.moment(f"write {self._owner}")
        self._memory.copy_(tensor)
        self._world.moment()

    def read(self) -> Tensor:
        self._world.moment(f"read {self._owner}")
        return self._memory  # no copy: this is the memory itself


class Semaphore:
    """A counting semaphore between ranks."""

    def __init__(self, world: _Interleaving, name: str, count: int):
        self._world, self._name, self._count = world, name, count

    def acquire(self) -> None:
        self._world.moment(waits_for=self)
        self._count -= 1
        self._world.moment()

    def release(self) -> None:
        self._world.moment()
        self._count += 1
        self._world.moment()


class _Interleaving:
    """Ranks that take turns in an order chosen to hurt."""

    MAX_MOMENTS = 5000

    def __init__(self, world_size: int, order: Callable[[list[int]], int]):
        self.world_size, self.order = world_size, order
        self.log: list[list[Any]] = []  # [rank, "write 1" or "read 1"]
        self.waits: dict[int, Semaphore] = {}
        self.moments = 0

    def moment(self, what: str = "", waits_for: Semaphore | None = None) -> None:
        """Let the scheduler decide who goes on; return when it is this rank's turn again."""
        rank = greenlet.getcurrent().rank
        self.moments += 1
        if self.moments > self.MAX_MOMENTS:
            raise RuntimeError(f"{self.MAX_MOMENTS} steps, and no end of it")
        if waits_for is not None:
            self.waits[rank] = waits_for
        greenlet.getcurrent().parent.switch()
        if what:
            self.log.append([rank, what])

    def run(self, program: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self.world_size

        def body(rank: int) -> None:
            try:
                results[rank] = program(rank)
            except BaseException as error:
                error.minidist_rank = rank  # type: ignore[attr-defined]
                raise

        ranks = [greenlet.greenlet(lambda r=r: body(r)) for r in range(self.world_size)]
        for rank, one in enumerate(ranks):
            one.rank = rank
        try:
            while alive := [r for r, one in enumerate(ranks) if not one.dead]:
                free = [r for r in alive if r not in self.waits or self.waits[r]._count > 0]
                if not free:
                    waits = (f"rank {r} waits for {self.waits[r]._name}" for r in alive)
                    raise Deadlock("no rank can go on: " + ", ".join(waits))
                chosen = self.order(free)
                self.waits.pop(chosen, None)
                ranks[chosen].switch()
        finally:
            for one in ranks:
                if one and not one.dead:
                    one.throw(greenlet.GreenletExit)
        return results


def interleaved(
    functions: Functions, world_size: int, first: list[int], seed: int | None = None, calls: int = 2
) -> dict[str, Any]:
    """Call the ring `calls` times in a row on every rank; `first`: who goes first if it can."""
    rng = random.Random(seed)

    def order(free: list[int]) -> int:
        return rng.choice(free) if seed is not None else min(free, key=first.index)

    world = _Interleaving(world_size, order)
    example = make_tensor(0, "float32", (3,))
    windows = [Window(world, rank, example) for rank in range(world_size)]
    full = [Semaphore(world, f"full[{r}]", 0) for r in range(world_size)]
    empty = [Semaphore(world, f"empty[{r}]", 1) for r in range(world_size)]

    def program(rank: int) -> list[Any]:
        return [
            describe(functions[0](rank, world_size, windows, full, empty, ring_input(rank, call)))
            for call in range(calls)
        ]

    results = world.run(program)
    return {
        "results": results,
        "log": world.log,
    }


def ring_input(rank: int, call: int) -> Tensor:
    """What rank `rank` gives to its `call`-th call."""
    return make_tensor(100 * call + rank, "float32", (3,)) + 1000 * (rank + 1)


# --- bug_hunt_collectives


class Outcome(NamedTuple):
    """What one run of the collective under test gave."""

    hangs: bool
    results: list[Any] | None  # one per rank; None if it hangs or raises
    bytes_sent: list[int]  # per rank


class Runner:
    """run(inputs, root=0): the collective under test, on len(inputs) simulated ranks."""

    MAX_RUNS = 3000

    def __init__(self, collective: planted.Planted):
        self._collective = collective
        self._runs = 0

    def __call__(self, inputs: list[Tensor], root: int = 0) -> Outcome:
        self._runs += 1
        if self._runs > self.MAX_RUNS:
            raise RuntimeError(f"{self.MAX_RUNS} runs of one collective, and no end of it")
        return outcome(
            self._collective,
            [tensor.clone() if tensor.is_contiguous() else tensor for tensor in inputs],
            root,
        )

    def price(self, world_size: int, nbytes: int) -> int:
        """Bytes that the ranks together may send, for a tensor of `nbytes` bytes on each rank."""
        return price(self._collective.op, world_size, nbytes)


def price(op: str, world_size: int, nbytes: int) -> int:
    """allreduce: 2(N - 1) tensors, padded to whole chunks; broadcast: N - 1 tensors."""
    if op == "broadcast":
        return (world_size - 1) * nbytes
    return 2 * (world_size - 1) * (nbytes + 8 * world_size)


def outcome(collective: planted.Planted, inputs: list[Tensor], root: int) -> Outcome:
    """Run it once."""
    n = len(inputs)
    meshes: list[Mesh] = []

    def program(mesh: Mesh) -> Any:
        meshes.append(mesh)
        extra = (root,) if collective.op == "broadcast" else ()
        return collective.function(mesh, inputs[mesh.rank], *extra)

    results, hangs = None, False
    try:
        results, _ = Simulated().run([program] * n, timeout=30.0)
    except Deadlock:
        hangs = True
    sent = [0] * n
    for mesh in meshes:
        sent[mesh.rank] = Trace([mesh.events]).bytes_sent[0]
    return Outcome(hangs, results, sent)


def hunt(functions: Functions, names: list[str]) -> dict[str, Any]:
    """What the reader's finder says about each collective."""
    found = []
    for name in names:
        answer = functions[0](Runner(planted.ALL[name]), planted.ALL[name].op)
        plain = list(answer) if isinstance(answer, (tuple, list)) else answer
        if plain is not None and not isinstance(plain, list):
            plain = [f"a {type(answer).__name__}"]
        found.append(
            plain and [p if isinstance(p, (str, bool, int)) else repr(p)[:100] for p in plain[:9]]
        )
    return {"found": found}
