"""What runs inside one rank's process: the other half of launch.py."""

from __future__ import annotations

import ctypes
import datetime
import importlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch

from minidist._travel import pack, unpack
from minidist.diagnosis import report_on
from minidist.faults import inject
from minidist.mesh import Mesh

if sys.platform == "linux":
    import fcntl

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
WHERE = b"where"  # the parent's question: what are you doing?


def main(control: Connection, mesh: Mesh, group: tuple[str, str, float] | None) -> None:
    """Take (function, arguments) from `control`, run it, send back what came of it, and stay.

    A rank stays until its parent closes the pipe: another rank may still need a message that is
    on its way out of here. If the parent itself is gone, the pipe closes too.
    """
    _tie_to_parent()
    torch.set_num_threads(1)
    talk = _Talk(control)
    try:
        payload = control.recv_bytes()
    except (EOFError, OSError):
        return
    main_thread = threading.get_ident()
    answering = threading.Thread(target=_answer, args=(talk, mesh, main_thread), daemon=True)
    answering.start()
    sys.stdout = sys.stderr = lines = _Lines(talk)
    try:
        if group:
            _init_process_group(mesh, *group)
        fn, args, faults = unpack(payload)
        inject(mesh, faults)
        message = ("done", pack(fn(mesh, *args)), list(mesh.events), mesh.marks)
    except BaseException as error:  # also SystemExit: leaving early is a failure
        message = ("error", _pickled(error), _own_traceback(error))
    lines.flush()
    talk.say(*message)
    answering.join()


def _tie_to_parent() -> None:
    """Leave with the parent, never before it, and take along whatever this rank has started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which ends us
    if hasattr(os, "setsid"):
        os.setsid()  # a process group of its own, so that one signal ends all of it
    if sys.platform == "linux":
        # Whatever loses its own parent becomes our child, so that the launcher finds it.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # The answering thread sees the parent go, but cannot act while other code holds the GIL.
        # So let the kernel send SIGIO, which ends a process, when the parent's pipe closes.
        pipe = multiprocessing.parent_process().sentinel
        fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | fcntl.FASYNC)


def _init_process_group(mesh: Mesh, backend: str, store: str, timeout: float) -> None:
    # Loopback only: a machine's host name often resolves to an address that cannot be reached.
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    if backend.startswith("minidist"):
        importlib.import_module("minidist.backend")  # registers it
    if backend == "nccl":
        torch.cuda.set_device(mesh.rank)
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=mesh.rank,
        world_size=mesh.world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )


def _answer(talk: _Talk, mesh: Mesh, main_thread: int) -> None:
    """Answer WHERE for as long as the parent is there, then end the process at once."""
    try:
        while talk.control.recv_bytes() == WHERE:
            talk.say("where", report_on(mesh, sys._current_frames()[main_thread]))
    except (EOFError, OSError):
        pass
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _own_traceback(error: BaseException) -> str:
    """The traceback from the function's own first line on, without the launcher's."""
    first = error.__traceback__
    own = first.tb_next if first and first.tb_next else first
    return "".join(traceback.format_exception(type(error), error, own))


def _pickled(error: BaseException) -> bytes | None:
    try:
        return cloudpickle.dumps(error)
    except Exception:  # some exceptions hold locks or sockets; their text still travels
        return None


class _Talk:
    """The pipe to the parent, shared by the main thread and the answering thread."""

    def __init__(self, control: Connection):
        self.control = control
        self.lock = threading.Lock()

    def say(self, *message: Any) -> None:
        with self.lock:
            self.control.send(message)


class _Lines(io.TextIOBase):
    """A stdout that hands whole lines to the parent, which shows them as '[rank r] ...'."""

    def __init__(self, talk: _Talk):
        self.talk = talk
        self.pending = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self.pending = (self.pending + text).split("\n")
        if lines:
            self.talk.say("print", "\n".join(lines))
        return len(text)

    def flush(self) -> None:
        if self.pending:
            self.talk.say("print", self.pending)
            self.pending = ""
