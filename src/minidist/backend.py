"""The torch.distributed backend "minidist": PyTorch's own DDP on the collectives of this course.

`import minidist.backend` registers it; afterwards `init_process_group("minidist", ...)` works like
"gloo" does, with any rendezvous. It keeps a backend's contract: a call with async_op returns at
once with a Work, one thread per group does the calls in the order in which they came, a Work's
future tells DDP when to go on, and what goes wrong is raised by wait(). Tensors are on the CPU.

allreduce is the ring in gloo's order, so its sums are gloo's bit for bit. Unlike gloo, it also
gives the right result for strided tensors.

Messages travel over TCP. The import also registers "minidist_shared_memory", the same for ranks on
one machine: there its collectives go through memory that the ranks share.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minidist._memory_group import shared_link
from minidist._rendezvous import connect
from minidist._work import Callbacks, Work, Worker
from minidist.collectives.allreduce import ring_allreduce_
from minidist.collectives.broadcast import broadcast
from minidist.collectives.group import group
from minidist.collectives.ring import gather_pass_, reduce_pass_
from minidist.collectives.tree import reduce, tree_allreduce
from minidist.mesh import Mesh, MeshError, PeerLost, describe
from minidist.trace import Event
from minidist.transports import Link
from minidist.transports.tcp import TcpLink

OVER_TCP, SHARED_MEMORY = "minidist", "minidist_shared_memory"
EVENTS_KEPT = 10_000  # per group: a training run must not fill the memory
SMALL = 100  # elements
ReduceOp = dist.ReduceOp


class Group(dist.ProcessGroup):
    """A process group whose calls are done by the collectives of this package."""

    def __init__(self, options: Any, shares_memory: bool = False):
        rank, world_size = options.group_rank, options.group_size
        super().__init__(rank, world_size)
        self._group_name = options.group_id
        self._store = options.store
        self._timeout_s = options.timeout.total_seconds()
        self._who = f"rank {rank} of {world_size}"
        ranks = list(options.global_ranks_in_group)
        if ranks and ranks != [*range(world_size)]:
            self._who += f" in the group of ranks {ranks}"
        self._calls = 0
        self._began = time.monotonic()
        self._error: Exception | None = None
        self._lock = threading.Lock()
        # DDP's Join keeps the C++ half of a small Work, which is nothing without this half.
        self._small_works: deque[Work] = deque(maxlen=100)
        # Three lines between any two ranks: one for collectives, and one for the messages of each
        # direction, so that a thread can send while another one receives.
        lines = connect(self._store, rank, world_size, 3, self._timeout_s)
        both, down, up = lines
        self._sockets = [connection for line in lines for connection in line.values()]
        self._out = {peer: (down if peer < rank else up)[peer] for peer in both}
        self._in = {peer: (up if peer < rank else down)[peer] for peer in both}
        self._name = SHARED_MEMORY if shares_memory else OVER_TCP
        if shares_memory:
            link = shared_link(self._store, rank, world_size, both, self._timeout_s)
        else:
            link = TcpLink(both, self._began)
        self._collectives = self._worker(link)
        self._callbacks: list[Callbacks] = []
        self._senders: dict[int, Worker] = {}  # a thread per peer, started when it is needed
        self._receivers: dict[int, Worker] = {}
        self._early: dict[int, list[tuple[int, Tensor]]] = {peer: [] for peer in both}

    def _worker(self, link: Link) -> Worker:
        events: Any = deque(maxlen=EVENTS_KEPT)
        return Worker(Mesh(self.rank(), self.size(), link, events=events), self._failed)

    @property
    def events(self) -> list[Event]:
        """The latest messages of this rank's collectives."""
        return list(self._collectives.mesh.events)

    # The way of every call

    def _submit(
        self,
        name: str,
        opts: Any,
        result: list[Tensor],
        job: Callable[[Mesh], None],
        worker: Worker | None = None,
        source: int = -1,
    ) -> Work:
        self._calls += 1
        name = f"{name}, call {self._calls} on {self._who}"
        depth = getattr(Callbacks.this_thread, "depth", 0)
        with self._lock:
            if depth == len(self._callbacks):
                self._callbacks.append(Callbacks(depth + 1))
        work = Work(name, result, source, self._callbacks[depth])
        if sum(tensor.numel() for tensor in result) <= SMALL:
            self._small_works.append(work)
        if self._error:
            work.finish(type(self._error)(f"{name}: the group has failed: {self._error}"))
            return work
        timeout_s = opts.timeout.total_seconds() if opts is not None else -1
        if timeout_s <= 0:  # not given
            timeout_s = self._timeout_s
        caller_waits = not getattr(opts, "asyncOp", True)
        return (worker or self._collectives).submit(work, timeout_s, job, caller_waits)

    def _failed(self, name: str, error: BaseException) -> Exception:
        """Make the group unusable, tell the other ranks why; return what wait() is to raise."""
        kind = type(error) if isinstance(error, MeshError) else MeshError
        text = str(error) if isinstance(error, MeshError) else f"{type(error).__name__}: {error}"
        text = f"{name}: {text}"
        with self._lock:
            first = str(self._error) if self._error else self._first_failure(text)
            if first != text:
                text += f"\nWhat failed first: {first}"
            if self._error is None:
                self._error = kind(text)
                for connection in self._sockets:
                    connection.close()  # the other ranks need not wait for their deadlines
        return kind(text)

    def _first_failure(self, text: str) -> str:
        """The first error of this group on any rank; `text` if ours is the first."""
        try:
            return self._store.compare_set("first failure", "", text).decode()
        except Exception:  # the store may have died with the rank that served it
            return text

    def shutdown(self) -> None:
        """Finish what has been asked for, then let go of the threads and the sockets."""
        peers = (*self._senders.values(), *self._receivers.values())
        for thread in (self._collectives, *peers, *self._callbacks):
            thread.stop(self._timeout_s)
        for connection in self._sockets:
            connection.close()

    def abort(self) -> None:
        self._failed(f"abort on {self._who}", PeerLost("the group was aborted"))

    # What torch.distributed wants to know

    def getBackendName(self) -> str:
        return self._name

    def name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    # Collectives

    def allreduce(self, tensors: list[Tensor] | Tensor, opts: Any = None) -> Work:
        if isinstance(tensors, Tensor):  # so PyTorch's Join calls it, with find_unused_parameters
            tensors, opts = [tensors], dist.AllreduceOptions()
        (tensor,) = tensors
        if tensor.is_sparse:
            return self._sparse_allreduce(tensor, opts)
        _check(tensor)
        combine_, finish_ = _reduction(opts.reduceOp, tensor.dtype, self.size())

        def job(mesh: Mesh) -> None:
            with _contiguous(tensor) as flat:
                ring_allreduce_(mesh, flat, combine_)
                finish_(flat)

        return self._submit("allreduce", opts, tensors, job)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        _check(*tensors)
        combine_, finish_ = _reduction(opts.reduceOp, tensors[0].dtype, self.size())

        def job(mesh: Mesh) -> None:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            ring_allreduce_(mesh, flat, combine_)
            finish_(flat)
            parts = flat.split([tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.data.copy_(part.view_as(tensor))

        return self._submit("allreduce_coalesced", opts, tensors, job)

    def _sparse_allreduce(self, tensor: Tensor, opts: Any) -> Work:
        """Every rank gets everybody's indices and values, and adds them up."""
        if opts.reduceOp != ReduceOp.SUM:
            raise ValueError("a sparse tensor can only be summed")

        def add_up(mesh: Mesh) -> None:
            mine = tensor.detach().coalesce()
            everyone = []
            for root in range(mesh.world_size):
                count = broadcast(mesh, torch.tensor(mine.values().shape[0]), root).item()
                indices, values = mine.indices(), mine.values()
                if root != mesh.rank:
                    indices = indices.new_empty(indices.shape[0], count)
                    values = values.new_empty(count, *values.shape[1:])
                indices, values = broadcast(mesh, indices, root), broadcast(mesh, values, root)
                everyone.append(
                    torch.sparse_coo_tensor(
                        indices, values, tensor.shape, is_coalesced=True, check_invariants=True
                    )
                )
            total = everyone[0]
            for theirs in everyone[1:]:
                total = total + theirs
            tensor.copy_(total.coalesce())

        def job(mesh: Mesh) -> None:
            with torch.inference_mode(False), torch.no_grad():  # `tensor` keeps what is made here
                add_up(mesh)

        return self._submit("sparse allreduce", opts, [tensor], job)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        (tensor,) = tensors
        _check(tensor)
        root = self._root(opts)

        def job(mesh: Mesh) -> None:
            received = broadcast(mesh, tensor, root)
            if mesh.rank != root:
                tensor.data.copy_(received)

        return self._submit("broadcast", opts, tensors, job)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        (tensor,) = tensors
        _check(tensor)
        root = self._root(opts)
        combine_, finish_ = _reduction(opts.reduceOp, tensor.dtype, self.size())

        def job(mesh: Mesh) -> None:
            total = reduce(mesh, tensor, root, combine_)
            if mesh.rank == root:
                finish_(total)
                tensor.data.copy_(total)

        return self._submit("reduce", opts, tensors, job)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        (rows,), (mine,) = outputs, inputs
        _check(mine, *rows)

        def job(mesh: Mesh) -> None:
            rows[mesh.rank].data.copy_(mine.view_as(rows[mesh.rank]))
            with contextlib.ExitStack() as stack:
                flat = [stack.enter_context(_contiguous(row)).view(-1) for row in rows]
                gather_pass_(mesh, flat, first=mesh.rank)

        return self._submit("allgather", opts, rows, job)

    def all_gather_single(self, output: Tensor, mine: Tensor, opts: Any) -> Work:
        return self.all_gather_single_coalesced([output], [mine], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> Work:
        world_size = self.size()
        for output, mine in zip(outputs, inputs, strict=True):
            _check(mine, output)
            if output.numel() != world_size * mine.numel():
                raise ValueError(
                    f"all_gather_single of {describe(mine)} on {world_size} ranks into "
                    f"{describe(output)}: the output needs {world_size} times as many elements"
                )

        def job(mesh: Mesh) -> None:
            for output, mine in zip(outputs, inputs, strict=True):
                with _contiguous(output) as flat:
                    rows = flat.view(world_size, mine.numel())
                    rows[mesh.rank].copy_(mine.reshape(-1))
                    gather_pass_(mesh, rows, first=mesh.rank)

        return self._submit("all_gather_single", opts, outputs, job)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        (output,), (parts,) = outputs, inputs
        _check(output, *parts)
        combine_, finish_ = _reduction(opts.reduceOp, output.dtype, self.size())

        def job(mesh: Mesh) -> None:
            total = _reduce_to_owner(mesh, [part.reshape(-1).clone() for part in parts], combine_)
            finish_(total)
            output.data.copy_(total.view_as(output))

        return self._submit("reduce_scatter", opts, outputs, job)

    def reduce_scatter_single(self, output: Tensor, whole: Tensor, opts: Any) -> Work:
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any
    ) -> Work:
        world_size = self.size()
        for output, whole in zip(outputs, inputs, strict=True):
            _check(whole, output)
            if whole.numel() != world_size * output.numel():
                raise ValueError(
                    f"reduce_scatter_single of {describe(whole)} on {world_size} ranks into "
                    f"{describe(output)}: the input needs {world_size} times as many elements"
                )
        combine_, finish_ = _reduction(opts.reduceOp, outputs[0].dtype, world_size)

        def job(mesh: Mesh) -> None:
            for output, whole in zip(outputs, inputs, strict=True):
                rows = whole.reshape(world_size, output.numel()).clone()
                total = _reduce_to_owner(mesh, rows, combine_)
                finish_(total)
                output.data.copy_(total.view_as(output))

        return self._submit("reduce_scatter_single", opts, outputs, job)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        (mine,) = inputs
        rows = outputs[0] if outputs else []
        _check(mine, *rows)
        root = self._root(opts)

        def job(mesh: Mesh) -> None:
            if mesh.rank != root:
                mesh.send(root, mine)
                return
            for rank, row in enumerate(rows):
                row.data.copy_(mine if rank == root else mesh.recv(rank, like=row))

        return self._submit("gather", opts, rows, job)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        (mine,) = outputs
        rows = inputs[0] if inputs else []
        _check(mine, *rows)
        root = self._root(opts)

        def job(mesh: Mesh) -> None:
            if mesh.rank != root:
                mine.data.copy_(mesh.recv(root, like=mine))
                return
            for rank, row in enumerate(rows):
                if rank == root:
                    mine.data.copy_(row)
                else:
                    mesh.send(rank, row)

        return self._submit("scatter", opts, outputs, job)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        _check(*outputs, *inputs)

        def job(mesh: Mesh) -> None:
            rank, world_size = mesh.rank, mesh.world_size
            outputs[rank].data.copy_(inputs[rank])
            for hop in range(1, world_size):
                right, left = (rank + hop) % world_size, (rank - hop) % world_size
                received = mesh.sendrecv(right, inputs[right], left, like=outputs[left])
                outputs[left].data.copy_(received)

        return self._submit("alltoall", opts, outputs, job)

    def all_to_all_single(
        self,
        output: Tensor,
        whole: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any,
    ) -> Work:
        world_size = self.size()
        parts = []
        for tensor, sizes in ((output, output_sizes), (whole, input_sizes)):
            if not sizes and tensor.shape[0] % world_size:
                raise ValueError(
                    f"all_to_all_single cuts dimension 0 into {world_size} equal parts, but this "
                    f"tensor has size {tensor.shape[0]} there; give the sizes of the parts"
                )
            parts.append(tensor.split([*sizes] or [tensor.shape[0] // world_size] * world_size))
        return self.alltoall(*parts, opts)

    def barrier(self, opts: Any) -> Work:
        return self._submit("barrier", opts, [], lambda mesh: tree_allreduce(mesh, torch.zeros(0)))

    # The names that these had before torch 2.13

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any
    ) -> Work:
        works = [
            self.allgather([list(rows)], [mine], opts)
            for rows, mine in zip(zip(*outputs, strict=True), inputs, strict=True)
        ]
        return works[-1]  # they are done in order

    # Messages between two ranks

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> Work:
        (tensor,) = tensors
        _check(tensor)
        sender = self._peer_worker(self._senders, self._out, dst)

        def job(mesh: Mesh) -> None:
            mesh.send(dst, torch.tensor(tag))
            mesh.send(dst, tensor.reshape(-1))

        return self._submit("send", None, tensors, job, sender)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> Work:
        (tensor,) = tensors
        _check(tensor)
        receiver = self._peer_worker(self._receivers, self._in, src)

        def job(mesh: Mesh) -> None:
            received = self._tagged(mesh, src, tag, tensor.reshape(-1))
            tensor.data.copy_(received.view_as(tensor))

        return self._submit("recv", None, tensors, job, receiver, source=src)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        raise NotImplementedError(
            "minidist receives from a rank that is named, never from anyone: give recv its `src`"
        )

    def _tagged(self, mesh: Mesh, src: int, tag: int, like: Tensor) -> Tensor:
        """The next message from `src` with this tag; those with another tag are kept for later."""
        early = self._early[src]
        for i, (its_tag, message) in enumerate(early):
            if its_tag == tag:
                del early[i]
                return message
        while (its_tag := mesh.recv(src).item()) != tag:
            early.append((its_tag, mesh.recv(src)))
        return mesh.recv(src, like=like)

    def _peer_worker(
        self, workers: dict[int, Worker], sockets: dict[int, Any], peer: int
    ) -> Worker:
        if peer not in sockets:
            raise ValueError(f"{self._who} cannot send to or receive from rank {peer}")
        if peer not in workers:
            workers[peer] = self._worker(TcpLink({peer: sockets[peer]}, self._began))
        return workers[peer]

    def _root(self, opts: Any) -> int:
        if not 0 <= opts.rootRank < self.size():
            raise ValueError(f"invalid root rank: {opts.rootRank} on {self._who}")
        return opts.rootRank


@contextlib.contextmanager
def _contiguous(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor to work on in place: itself, or a copy of a strided one that is copied back.

    `.data`, because a collective on a buffer must not count as a change that autograd forbids.
    """
    if tensor.is_contiguous():
        yield tensor.data
    else:
        copy = tensor.data.contiguous()
        yield copy
        tensor.data.copy_(copy)


def _reduce_to_owner(
    mesh: Mesh, chunks: Tensor | list[Tensor], combine_: Callable[[Tensor, Tensor], object]
) -> Tensor:
    """The reduction of chunk r over all ranks, on rank r. The chunks are used up.

    Around a ring that turns left, as in ring_allreduce_: there the pass ends on the right rank.
    """
    backwards = group(mesh, range(mesh.world_size - 1, -1, -1))
    reduce_pass_(
        backwards, [chunks[-k % mesh.world_size] for k in range(mesh.world_size)], combine_
    )
    return chunks[mesh.rank]


def _reduction(
    op: Any, dtype: torch.dtype, world_size: int
) -> tuple[Callable[[Tensor, Tensor], object], Callable[[Tensor], object]]:
    """How to combine two tensors in place, and what to do with the result at the end."""
    if op == ReduceOp.AVG:
        if not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"AVG of {dtype}: an average needs a floating-point dtype")
        return Tensor.add_, lambda total: total.div_(world_size)
    for known, combine_ in _COMBINE_:
        if op == known:
            return combine_, lambda total: None
    raise ValueError(f"minidist has no reduction {op}; it has SUM, AVG, PRODUCT, MIN, MAX and B*")


_COMBINE_ = (
    (ReduceOp.SUM, Tensor.add_),
    (ReduceOp.PRODUCT, Tensor.mul_),
    (ReduceOp.MIN, lambda mine, theirs: torch.minimum(mine, theirs, out=mine)),
    (ReduceOp.MAX, lambda mine, theirs: torch.maximum(mine, theirs, out=mine)),
    (ReduceOp.BAND, Tensor.bitwise_and_),
    (ReduceOp.BOR, Tensor.bitwise_or_),
    (ReduceOp.BXOR, Tensor.bitwise_xor_),
)


def _check(*tensors: Tensor) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise ValueError(
                f"minidist works on dense tensors on the CPU, not on {tensor.layout} on "
                f"{tensor.device}"
            )
        if tensor.dtype != tensors[0].dtype:
            raise ValueError(f"one call, two dtypes: {describe(tensors[0])} and {describe(tensor)}")


def _create(options: Any, backend_options: Any) -> Group:
    return Group(options)


def _create_sharing_memory(options: Any, backend_options: Any) -> Group:
    return Group(options, shares_memory=True)


for _name, _creator in ((OVER_TCP, _create), (SHARED_MEMORY, _create_sharing_memory)):
    dist.Backend.register_backend(_name, _creator, extended_api=True, devices=["cpu"])
