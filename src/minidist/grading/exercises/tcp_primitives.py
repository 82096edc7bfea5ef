"""tcp_primitives: tensors over TCP, and the four primitives over that."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minidist import collectives
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise, TrialJudge
from minidist.grading.loopback import Caller, SocketLink, Trickle
from minidist.grading.report import Feedback
from minidist.grading.tensors import Spec, describe, make_tensor, other_tensor, shown
from minidist.mesh import Mesh

STUCK_S = 2.5  # whoever waits longer for bytes of a primitive waits for what never comes


def exchanged(functions: Functions, tensors: list[tuple], trickle: bool = False) -> dict[str, Any]:
    """Send all tensors, one after the other, and receive them at the other end."""
    send_tensor, recv_tensor = functions
    near, far = socket.socketpair()
    if trickle:
        near, far = Trickle(fileno=near.detach()), Trickle(fileno=far.detach())
    with near, far:
        sender = Caller(lambda: _send_all(send_tensor, near, tensors))
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
        sender = Caller(lambda: (_send_all(send_tensor, near, [tensor]), near.close()))
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

    links = [SocketLink(functions, row) for row in sockets]

    def rank_of(rank: int) -> Callable[[], Any]:
        mesh = Mesh(rank, world_size, links[rank])
        extra = (src,) if op == "broadcast" else ()
        return lambda: getattr(collectives, op)(mesh, make_tensor(seed + rank, *rest), *extra)

    ranks = [Caller(rank_of(rank)) for rank in range(world_size)]
    results = []
    for rank, caller in enumerate(ranks):
        try:
            results.append(describe(caller.result()))
        except Exception as error:
            cause = next((e for link in links for e in link.errors), error)
            return {"raised": f"{type(cause).__name__}: {cause}"[:500], "rank": rank}
    return {"results": results}


def _exchange(says: str, specs: list[Spec], order: int, trickle: bool = False) -> Trial:
    return Trial(exchanged, says, {"tensors": specs, "trickle": trickle}, order)


_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8")
_CUT = (13, "float32", (50,), False)
_TCP = [
    _exchange("five float32", [(1, "float32", (5,), False)], 0),
    _exchange("a 3x4 matrix of int64", [(2, "int64", (3, 4), False)], 1),
    *(_exchange(f"4 elements of {t}", [(3, t, (4,), False)], 2) for t in _DTYPES),
    _exchange("a 0-dim tensor", [(4, "float32", (), False)], 3),
    _exchange("an empty tensor of shape 2x0", [(5, "float32", (2, 0), False)], 3),
    _exchange("a transposed 3x5 matrix", [(6, "float32", (3, 5), True)], 4),
    _exchange("a tensor of five dimensions", [(7, "uint8", (2, 1, 3, 1, 2), False)], 4),
    _exchange("a million elements", [(8, "float32", (1_000_000,), False)], 5),
    _exchange(
        "three tensors, sent before the first is received",
        [(9, "float32", (5,), False), (10, "int64", (2, 2), False), (11, "uint8", (), False)],
        6,
    ),
    _exchange("a socket that gives 3 bytes at a time", [(12, "float32", (5,), False)], 7, True),
    Trial(closed, "the far end is gone, with nothing sent", {"tensor": _CUT, "part": 0.0}, 8),
    Trial(closed, "the far end is gone in the header", {"tensor": _CUT, "part": 0.01}, 9),
    Trial(closed, "the far end is gone in the middle", {"tensor": _CUT, "part": 0.6}, 9),
    *(
        Trial(
            primitives,
            f"{op}, {n} ranks, {dtype} on loopback connections",
            {"op": op, "world_size": n, "tensor": (20, dtype, (6, 2), False), "src": 1},
            10,
        )
        for op in ("ring_allreduce", "allgather", "reduce_scatter", "broadcast")
        for n, dtype in ((2, "bfloat16"), (3, "float32"))
    ),
]


def _expected_of_primitive(op: str, world_size: int, tensor: Spec, src: int) -> list[Tensor]:
    seed, *rest = tensor
    inputs = [make_tensor(seed + rank, *rest) for rank in range(world_size)]
    total = torch.stack(inputs).sum(0, dtype=inputs[0].dtype)
    return {
        "ring_allreduce": [total] * world_size,
        "reduce_scatter": list(total.chunk(world_size)),
        "allgather": [torch.stack(inputs)] * world_size,
        "broadcast": [inputs[src]] * world_size,
    }[op]


def _of_exchanges(which: Callable[[Trial], bool]) -> TrialJudge:
    def judge(trial: Trial, said: dict[str, Any]) -> Feedback | None:
        if trial.driver is not exchanged or not which(trial):
            return None
        sent = [describe(make_tensor(*spec)) for spec in trial.arguments["tensors"]]
        for want, came in zip(sent, said["tensors"], strict=False):
            if feedback := other_tensor(want, came):
                return feedback
        if len(said["tensors"]) < len(sent):
            return Feedback(
                f"Of {len(sent)} messages that were there only {len(said['tensors'])} came.",
                expected="each receive takes its own message and leaves the next one alone",
                diagnosis="A receive has taken bytes of the next message and thrown them away.",
            )
        if said["left"]:
            return Feedback(
                "Bytes of a message are left on the wire; the next message would begin with them.",
            )
        return None

    return judge


def _notices(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    if trial.driver is not closed or "raised" in said:
        return None
    came = said["came"]
    return Feedback(
        "A message that is cut off was taken for a whole one.",
        expected="ConnectionError",
        came=shown(came) if came["type"] == "Tensor" else came["type"],
        diagnosis="recv gives no bytes when the other end is closed: nothing more will come.",
    )


def _same_primitives(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    if trial.driver is not primitives:
        return None
    if "raised" in said:
        return Feedback(f"Rank {said['rank']} raised {said['raised']}", rank=said["rank"])
    expected = _expected_of_primitive(**trial.arguments)
    for rank, (want, came) in enumerate(zip(expected, said["results"], strict=True)):
        if feedback := other_tensor(describe(want), came):
            feedback.rank = rank
            return feedback
    return None


EXERCISE = TrialExercise(
    name="tcp_primitives",
    title="Tensors over TCP, and the four primitives over that",
    chapter="real_wires",
    minutes=40,
    functions={"send_tensor": ("sock", "tensor"), "recv_tensor": ("sock",)},
    cases=_TCP,
    checks=(
        (
            "tensors",
            "dtype, shape and numbers arrive",
            _of_exchanges(lambda t: len(t.arguments["tensors"]) == 1),
        ),
        (
            "frames",
            "each receive takes one message from the wire, and all of it",
            _of_exchanges(lambda t: len(t.arguments["tensors"]) > 1),
        ),
        ("closed", "a connection that is cut is an error", _notices),
        ("primitives", "the four primitives over loopback connections", _same_primitives),
    ),
    deadline_s=4.0,
)
