"""Calls on their way: the promise that a caller gets, and the threads that keep it.

A collective of a torch.distributed backend returns a Work before it is done. A Worker does the
calls of one mesh one after another; Callbacks run what waits for their futures.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from minidist.mesh import Mesh, RecvTimeout


class Work(dist.Work):
    """One call on its way. wait() returns when it is done, and raises if it has failed."""

    def __init__(self, name: str, result: list[Tensor], source: int, callbacks: Callbacks):
        super().__init__()
        self.name = name  # for messages
        self._result = result
        self._source = source
        self._callbacks = callbacks
        self._done = threading.Event()
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._future: Future | None = None  # made when somebody asks for it

    def finish(self, error: Exception | None = None) -> None:
        with self._lock:
            self._error = error
            self._done.set()
        if self._future:
            self._callbacks.run(lambda: self._future.set_result(None))

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        seconds = timeout.total_seconds()
        if not self._done.wait(seconds if seconds > 0 else None):
            raise RecvTimeout(f"{self.name} was not done after {seconds:g} s")
        self._outcome()
        return True

    def get_future(self) -> Future:
        with self._lock:
            future = self._future or Future()
            if self._done.is_set() and not self._future:
                future.set_result(None)
            self._future = future
        # Only a callback that raises gives a future an error that C++, and so DDP, sees as one.
        return future.then(self._outcome)

    def _outcome(self, _: object = None) -> list[Tensor]:
        if self._error:
            raise self._error
        return self._result

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank
    synchronize = wait


class Callbacks:
    """A thread that runs what waits for the futures of a group, in the order of their calls.

    Not the worker's: a callback may start another collective and wait for it, as PowerSGD's does.
    Whoever waits for a call that was made `depth` callbacks deep is served by a thread of that
    depth, so it never waits for itself.
    """

    this_thread = threading.local()  # .depth: how deep in callbacks it is

    def __init__(self, depth: int):
        self.depth = depth  # of the calls that these callbacks make
        self.jobs: queue.SimpleQueue = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def run(self, job: Callable[[], object]) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._loop, name="minidist", daemon=True)
            self.thread.start()
        self.jobs.put(job)

    def stop(self, timeout_s: float) -> None:
        self.jobs.put(None)
        if self.thread and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)

    def _loop(self) -> None:
        self.this_thread.depth = self.depth
        while job := self.jobs.get():
            job()
            del job


class Worker:
    """A thread that does jobs in the order in which they come, on a mesh of its own.

    A caller who would wait anyway does the job itself if the thread has nothing to do: to wake
    another thread and to be woken by it costs more than a small message.
    """

    def __init__(self, mesh: Mesh, failed: Callable[[str, BaseException], Exception]):
        self.mesh = mesh
        self.failed = failed
        self.jobs: queue.SimpleQueue = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.unfinished = 0
        self.turn = threading.Lock()  # held by whoever uses the mesh
        self.thread = threading.Thread(target=self._loop, name="minidist", daemon=True)
        self.thread.start()

    def submit(
        self, work: Work, timeout_s: float, job: Callable[[Mesh], None], caller_waits: bool
    ) -> Work:
        with self.lock:
            at_once = caller_waits and not self.unfinished
            self.unfinished += 1
        if at_once:
            self._do(work, timeout_s, job)
        else:
            self.jobs.put((work, timeout_s, job))
        return work

    def stop(self, timeout_s: float) -> None:
        self.jobs.put(None)
        self.thread.join(timeout_s)

    def _loop(self) -> None:
        while item := self.jobs.get():
            self._do(*item)
            del item  # keep no tensors alive while waiting

    def _do(self, work: Work, timeout_s: float, job: Callable[[Mesh], None]) -> None:
        error = None
        try:
            with self.turn, torch.inference_mode():
                self.mesh.recv_timeout_s = timeout_s
                job(self.mesh)
        except Exception as caught:
            error = self.failed(work.name, caught)
        except BaseException as caught:  # an interrupt of the caller: half a message has gone out
            self.failed(work.name, caught)
            raise
        finally:
            with self.lock:
                self.unfinished -= 1
        work.finish(error)
