"""The collectives over torch.distributed's own point-to-point calls, as torchrun starts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cases import WORLD_SIZES, all_cases, bits, run_cases

from minidist import MessageMismatch, PeerLost, RecvTimeout, Trace, ring_allreduce, run
from minidist.transports.process_group import mesh_from_process_group

SCRIPT = Path(__file__).with_name("torchrun_script.py")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_collective_as_on_the_queue(world_size):
    def fn(_, cases):
        mesh = mesh_from_process_group()
        outcomes = run_cases(mesh, cases)
        mesh.link.close()
        return outcomes, mesh.events

    cases = all_cases(world_size)
    ours = run(fn, world_size, cases, process_group="gloo").results
    expected = run(run_cases, world_size, cases, transport="simulated")
    assert Trace(events for _, events in ours) == expected.trace
    for rank, (outcomes, _) in enumerate(ours):
        for case, (mine, faults), (theirs, _) in zip(
            cases, outcomes, expected.results[rank], strict=True
        ):
            assert bits(mine) == bits(theirs), (case, rank)
            assert not faults, (case, rank)


def test_sends_are_buffered_on_gloo():
    def fn(_):
        mesh = mesh_from_process_group()
        right, left = (mesh.rank + 1) % 3, (mesh.rank - 1) % 3
        x = torch.zeros(1_000_000)
        for value in range(4):
            x.fill_(10 * mesh.rank + value)
            mesh.send(right, x)
        x.fill_(-1)
        got = [mesh.recv(left).unique().tolist() for _ in range(4)]
        big = torch.arange(3_000_000) + mesh.rank
        around = mesh.sendrecv(right, big, left)
        mesh.link.close()
        return got == [[10.0 * left + v] for v in range(4)] and torch.equal(
            around, torch.arange(3_000_000) + left
        )

    assert run(fn, 3, process_group="gloo").results == [True] * 3


def test_a_group_of_some_ranks():
    def fn(mesh):
        odd = dist.new_group([1, 3])
        even = dist.new_group([0, 2])
        mine = mesh_from_process_group(odd if mesh.rank % 2 else even)
        total = ring_allreduce(mine, torch.tensor([10.0 * mesh.rank]))
        mine.link.close()
        return mine.rank, mine.world_size, total.item()

    assert run(fn, 4, process_group="gloo").results == [
        (0, 2, 20.0),
        (0, 2, 40.0),
        (1, 2, 20.0),
        (1, 2, 40.0),
    ]


def test_errors():
    def mismatch(_):
        mesh = mesh_from_process_group()
        mesh.sendrecv(1 - mesh.rank, torch.ones(2 + mesh.rank), 1 - mesh.rank)

    with pytest.raises(MessageMismatch, match=r"rank \d expected float32 of shape"):
        run(mismatch, 2, process_group="gloo")

    def silent(_):
        mesh = mesh_from_process_group(recv_timeout_ms=300)
        if mesh.rank == 0:
            mesh.recv(1)
        time.sleep(5)

    began = time.monotonic()
    with pytest.raises(RecvTimeout, match=r"rank 0 waited 0.3 s for a message from rank 1 at step"):
        run(silent, 2, process_group="gloo")
    assert time.monotonic() - began < 3

    def dies(_):
        mesh = mesh_from_process_group()
        if mesh.rank == 1:
            os.kill(os.getpid(), 9)
        mesh.recv(1)

    with pytest.raises(PeerLost, match="rank 1"):
        run(dies, 2, process_group="gloo")


def test_an_error_carries_the_last_messages_of_its_rank():
    """Under torchrun nobody collects them."""

    def fn(_):
        mesh = mesh_from_process_group(recv_timeout_ms=300)
        mesh.sendrecv(1 - mesh.rank, torch.ones(3), 1 - mesh.rank)
        if mesh.rank == 0:
            mesh.recv(1)
        time.sleep(5)

    last = "Last messages of rank 0: step 0 send to 1, 12 bytes; step 0 recv from 1, 12 bytes"
    with pytest.raises(RecvTimeout, match=last):
        run(fn, 2, process_group="gloo")


def test_without_a_process_group():
    with pytest.raises(RuntimeError, match=r"call torch.distributed.init_process_group first"):
        mesh_from_process_group()


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_nccl_without_a_gpu_says_what_it_needs():
    with pytest.raises(RuntimeError, match="NCCL needs an NVIDIA GPU for each rank"):
        run(ring_allreduce, 2, torch.ones(2), process_group="nccl")


# As readers start it


def torchrun(*options, prefix=(), timeout=90):
    command = [*prefix, sys.executable, "-m", "torch.distributed.run", *options, str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def output_of(process):
    try:
        return process.communicate(timeout=90)[0]
    finally:
        process.kill()


@pytest.mark.parametrize("world_size", [2, 3])
def test_torchrun(world_size):
    process = torchrun("--standalone", f"--nproc-per-node={world_size}")
    output = output_of(process)
    assert process.returncode == 0, output
    for rank in range(world_size):
        assert f"rank {rank} of {world_size}: all as expected" in output


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them: hosts with an own loopback and address."""
    ip = shutil.which("ip")
    if ip is None:
        pytest.skip("blocked: two hosts need `ip` (iproute2) to make network namespaces")
    tag = uuid.uuid4().hex[:6]
    names = [f"minidist-{tag}-{i}" for i in range(2)]
    setup = [f"netns add {name}" for name in names]
    setup.append(f"link add v{tag}a netns {names[0]} type veth peer name v{tag}b netns {names[1]}")
    for i, (name, end) in enumerate(zip(names, "ab", strict=True)):
        setup += [
            f"-n {name} link set lo up",
            f"-n {name} address add 10.123.45.{i + 1}/24 dev v{tag}{end}",
            f"-n {name} link set v{tag}{end} up",
        ]
    try:
        for command in setup:
            done = subprocess.run([ip, *command.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(
                    "blocked: two hosts need network namespaces and veth (as root): "
                    f"ip {command}: {done.stderr.strip()}"
                )
        yield [(name, f"v{tag}{end}") for name, end in zip(names, "ab", strict=True)]
    finally:
        for name in names:
            subprocess.run([ip, "netns", "delete", name], capture_output=True)


def test_two_hosts(two_hosts):
    processes = []
    for host, (name, interface) in enumerate(two_hosts):
        processes.append(
            torchrun(
                "--nnodes=2",
                "--nproc-per-node=2",
                f"--node-rank={host}",
                "--master-addr=10.123.45.1",
                "--master-port=29400",  # nobody else lives in these namespaces
                prefix=(
                    *("ip", "netns", "exec", name),
                    *("env", f"GLOO_SOCKET_IFNAME={interface}", f"TP_SOCKET_IFNAME={interface}"),
                ),
            )
        )
    outputs = [output_of(process) for process in processes]
    assert [p.returncode for p in processes] == [0, 0], "\n".join(outputs)
    for rank in range(4):
        assert f"rank {rank} of 4: all as expected" in outputs[rank // 2]


# On GPUs

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="blocked: needs a CUDA device, and none is here"
)


@gpu
@needs_gpu
@pytest.mark.parametrize("transport", ["queue", "tcp", "shared_memory"])
def test_tensors_on_a_gpu_are_staged(transport):
    def fn(mesh):
        x = torch.arange(10.0, device="cuda") + mesh.rank
        total = ring_allreduce(mesh, x)
        return total.device.type, total.tolist()

    expected = [2 * v + 1.0 for v in range(10)]
    assert run(fn, 2, transport=transport).results == [("cuda", expected)] * 2


@gpu
@needs_gpu
def test_nccl_with_one_rank():
    def fn(_):
        mesh = mesh_from_process_group()
        total = ring_allreduce(mesh, torch.arange(10.0, device="cuda"))
        mesh.link.close()
        return total.device.type, total.tolist()

    assert run(fn, 1, process_group="nccl").results == [("cuda", [float(v) for v in range(10)])]


@gpu
@pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="blocked: needs two CUDA devices for two NCCL ranks"
)
def test_nccl_with_two_ranks():
    def fn(mesh):
        torch.cuda.set_device(mesh.rank)
        ours = mesh_from_process_group()
        total = ring_allreduce(ours, torch.arange(10.0, device="cuda") + mesh.rank)
        ours.link.close()
        return total.device.type, total.tolist()

    expected = [2 * v + 1.0 for v in range(10)]
    assert run(fn, 2, process_group="nccl").results == [("cuda", expected)] * 2
