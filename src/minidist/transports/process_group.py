"""Any torch.distributed process group as a wire: gloo or NCCL, one machine or many.

`torchrun` starts the ranks and `init_process_group` joins them; this module only turns the group's
point-to-point calls into the three verbs. Each message is a header of fixed size and then its
elements. With NCCL both lie on the GPU, and so do the results.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minidist.mesh import RECV_TIMEOUT_S, Mesh
from minidist.transports import Label, Link, LostConnection
from minidist.transports.header import NBYTES, pack_header, unpack_header


def mesh_from_process_group(
    group: dist.ProcessGroup | None = None, recv_timeout_ms: float | None = None
) -> Mesh:
    """This rank's Mesh over `group`, or over all ranks if it is None.

    Mesh ranks are the group's ranks: 0 to its size - 1. All ranks of the group must call it, and
    use the group for nothing else while messages are on their way. Call `mesh.link.close()` before
    `destroy_process_group()`: it waits until what was sent has left. `mesh.events` keeps every
    event; for a long training, give it a `collections.deque(maxlen=...)` instead.
    With gloo, sends are buffered as everywhere; but a receive that runs out of time closes its
    connection for good. With NCCL a `send` occupies the GPU until its receiver comes: use sendrecv
    where all ranks send at once.
    Raises RuntimeError if there is no process group, or if its backend needs a GPU and there is
    none.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "there is no process group: call torch.distributed.init_process_group first, and start "
            "the script with torchrun"
        )
    group = group or dist.group.WORLD
    device = torch.device("cpu")
    if "nccl" in dist.get_backend(group):
        check_nccl()
        device = torch.device("cuda", torch.cuda.current_device())
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    timeout_s = RECV_TIMEOUT_S if recv_timeout_ms is None else recv_timeout_ms / 1000
    return Mesh(rank, world_size, ProcessGroupLink(group, device), timeout_s, alone=True)


def check_nccl() -> None:
    """RuntimeError, saying what NCCL needs, where it is not there."""
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        raise RuntimeError(
            "NCCL needs an NVIDIA GPU for each rank and a PyTorch built for CUDA, and this machine "
            'does not offer both; the backend "gloo" runs everywhere'
        )


class ProcessGroupLink(Link):
    """One rank's end of a process group. For one thread."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        self.group = group
        self.device = device
        self.buffered = device.type == "cpu"  # gloo takes what is sent, NCCL waits for the receiver
        self.peers = dist.get_process_group_ranks(group)  # torch's calls take global ranks
        self.began = time.monotonic()
        self.leaving = _Leaving() if device.type == "cpu" else _LeavingGPU()

    def now(self) -> float:
        return time.monotonic() - self.began

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        for send in self._sends(dst, tensor, label):
            try:
                self.leaving.add(dist.isend(send.tensor, send.peer, self.group), send.tensor)
            except RuntimeError as error:
                raise LostConnection(dst, _why(error)) from error
        return self.now()

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        deadline = time.monotonic() + timeout_s
        head = torch.empty(NBYTES, dtype=torch.uint8, device=self.device)
        self._together([self._receive(src, head)], src, deadline)
        header = unpack_header(bytes(head.cpu().numpy()))
        tensor = torch.empty(header.shape, dtype=header.dtype, device=self.device)
        if tensor.numel():
            self._together([self._receive(src, _flat(tensor))], src, deadline)
        return tensor, header.label

    def exchange(
        self, dst: int, tensor: Tensor, label: Label, src: int, timeout_s: float
    ) -> tuple[Tensor, Label, float]:
        """Two batches of one send and one receive each: the headers, then the elements."""
        deadline = time.monotonic() + timeout_s
        head = torch.empty(NBYTES, dtype=torch.uint8, device=self.device)
        send_head, *send_elements = self._sends(dst, tensor, label)
        self._together([send_head, self._receive(src, head)], src, deadline)
        header = unpack_header(bytes(head.cpu().numpy()))
        received = torch.empty(header.shape, dtype=header.dtype, device=self.device)
        receive = [self._receive(src, _flat(received))] if received.numel() else []
        self._together([*send_elements, *receive], src, deadline)
        return received, header.label, self.now()

    def _sends(self, dst: int, tensor: Tensor, label: Label) -> list[dist.P2POp]:
        """Header and elements, copied to where the backend wants them: the caller goes on."""
        head = torch.frombuffer(bytearray(pack_header(tensor, label)), dtype=torch.uint8)
        elements = tensor.detach().resolve_conj().resolve_neg()
        elements = elements.to(self.device, copy=True, memory_format=torch.contiguous_format)
        parts = [head.to(self.device), _flat(elements)]
        return [
            dist.P2POp(dist.isend, part, self.peers[dst], self.group)
            for part in parts
            if part.numel()
        ]

    def _receive(self, src: int, room: Tensor) -> dist.P2POp:
        return dist.P2POp(dist.irecv, room, self.peers[src], self.group)

    def _together(self, ops: list[dist.P2POp], src: int, deadline: float) -> None:
        """Start them all, wait for what is received."""
        if not ops:
            return
        try:
            works = dist.batch_isend_irecv(ops)
            # gloo has one piece of work for each operation, NCCL one for all of them.
            for op, work in zip(ops, works * len(ops), strict=False):
                if op.op is dist.isend:
                    self.leaving.add(work, op.tensor)
                else:
                    work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))
        except RuntimeError as error:
            if "imed out" in str(error):
                raise TimeoutError from None
            raise LostConnection(src, _why(error)) from error

    def close(self) -> None:
        """Wait until everything that was sent has left."""
        self.leaving.close()


class _Leaving:
    """Keeps what gloo is sending alive. Its work is only ever done while somebody waits for it."""

    def __init__(self) -> None:
        self.works: queue.SimpleQueue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._wait, name="sends", daemon=True)

    def add(self, work: Any, tensor: Tensor) -> None:
        if self.thread.ident is None:
            self.thread.start()
        self.works.put((work, tensor))

    def _wait(self) -> None:
        while (item := self.works.get()) is not None:
            # A receiver that is gone needs nothing; the next receive from it says so.
            with contextlib.suppress(RuntimeError):
                item[0].wait()
            del item

    def close(self) -> None:
        if self.thread.ident is not None:
            self.works.put(None)
            self.thread.join()


class _LeavingGPU:
    """Keeps what NCCL is sending alive. It goes on by itself."""

    def __init__(self) -> None:
        self.works: deque[tuple[Any, Tensor]] = deque()

    def add(self, work: Any, tensor: Tensor) -> None:
        while self.works and self.works[0][0].is_completed():
            self.works.popleft()
        self.works.append((work, tensor))

    def close(self) -> None:
        torch.cuda.synchronize()
        self.works.clear()


def _flat(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as bytes: every backend can carry those."""
    return tensor.view(-1).view(torch.uint8)


def _why(error: RuntimeError) -> str:
    """What torch.distributed said, without the line of its source."""
    what = str(error).split("] ", 1)[-1].split(". This is typically")[0].strip().rstrip(".")
    return f"torch.distributed says '{what}': its process has ended, or a receive there timed out"
