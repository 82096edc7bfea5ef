"""The backend "minidist" against gloo, live: every call, PyTorch's own DDP, and what goes wrong."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
import time
from datetime import timedelta

import backend_cases
import pytest
import torch
import torch.distributed as dist
from cases import bits

from minidist import (
    MessageMismatch,
    PeerLost,
    RankFailed,
    RecvTimeout,
    run,
)
from minidist.mesh import CollectiveMismatch

WORLD_SIZES = (1, 2, 3, 4)


def on_ranks(world_size, fn, *args, **options):
    return run(fn, world_size, *args, process_group="minidist", **options)


@functools.cache
def both(world_size):
    """Per rank: {name: (ours, gloo's)}, from one set of processes."""
    return on_ranks(world_size, backend_cases.compare_all, timeout=200).results


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_call_and_every_training_is_gloos_to_the_last_bit(world_size):
    for rank, results in enumerate(both(world_size)):
        expected = 30 + 18 + 2 * len(backend_cases.TRAINING) + 4 * (world_size > 1)
        assert len(results) >= expected
        wrong = [name for name, (ours, gloo) in results.items() if bits(ours) != bits(gloo)]
        assert not wrong, rank


@pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
def test_training_is_not_trivially_equal(world_size):
    """Ranks agree in the end, and the ways of training differ from each other where they must."""
    first, *others = both(world_size)
    trained = {name: ours for name, (ours, _) in first.items() if name.startswith("training")}
    for other in others:
        for name, ours in trained.items():
            assert bits(other[name][0]) == bits(ours), name
    plain = trained["training: plain"]
    assert all(torch.isfinite(x).all() for x in trained.values())
    for name in ("fp16 hook", "bf16 hook", "PowerSGD", "no_sync"):
        assert not torch.equal(trained[f"training: {name}"], plain), name


def test_strided_tensors():
    assert on_ranks(3, lambda mesh: backend_cases.strided()).results == [[], [], []]


# Groups


def in_subgroups(mesh):
    evens, odds = dist.new_group([0, 2, 4]), dist.new_group([1, 3])
    mine = odds if mesh.rank % 2 else evens
    x = torch.tensor([float(mesh.rank)])
    dist.all_reduce(x, group=mine)
    y = torch.tensor([mesh.rank])
    dist.broadcast(y, 3 if mesh.rank % 2 else 4, group=mine)
    dist.destroy_process_group(mine)
    z = torch.tensor([1])
    dist.all_reduce(z)  # the world still works
    return x.item(), y.item(), z.item()


def test_subgroups():
    assert on_ranks(5, in_subgroups).results == [(6, 4, 5), (4, 3, 5)] * 2 + [(6, 4, 5)]


def test_a_group_can_be_made_again_after_it_was_destroyed(tmp_path):
    def fn(mesh, folder):
        import minidist.backend  # noqa: F401

        sums = []
        for turn in range(3):
            dist.init_process_group(
                "minidist", f"file://{folder}/{turn}", rank=mesh.rank, world_size=2
            )
            x = torch.ones(5)
            dist.all_reduce(x)
            sums.append(x.sum().item())
            dist.destroy_process_group()
        return sums, sum(t.name == "minidist" for t in threading.enumerate())

    assert run(fn, 2, str(tmp_path)).results == [([10.0] * 3, 0)] * 2


SCRIPT = """
import torch, torch.distributed as dist, minidist.backend
dist.init_process_group("minidist")
x = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print(f"rank {dist.get_rank()}: {x.sum().item():g}")
dist.destroy_process_group()
"""


def test_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, script], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    # The ranks share one output, so lines may run into each other.
    assert sorted(re.findall(r"rank \d: \d+?(?=rank|\s|$)", done.stdout)) == [
        f"rank {r}: 6000" for r in range(3)
    ]


def test_fully_sharded():
    """One step of FSDP: the parameters afterwards are those of one process on the whole batch."""

    def fn(mesh):
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        x = torch.randn(6, 8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(x).mean().backward()
        optimizer.step()
        alone = [p.detach().clone() for p in net.parameters()]

        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        mesh_of_devices = dist.device_mesh.init_device_mesh("cpu", (mesh.world_size,))
        fully_shard(net, mesh=mesh_of_devices)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(x.chunk(mesh.world_size)[mesh.rank]).mean().backward()
        optimizer.step()
        sharded = [p.full_tensor().detach() for p in net.parameters()]
        return [(a - b).abs().max().item() for a, b in zip(alone, sharded, strict=True)]

    for differences in on_ranks(2, fn).results:
        assert max(differences) < 1e-6


# The contract of a Work


def test_a_call_returns_before_it_is_done_and_its_future_tells():
    def fn(mesh):
        x = torch.ones(4)
        if mesh.rank == 0:
            work = dist.all_reduce(x, async_op=True)
            early = work.is_completed()
            doubled = work.get_future().then(lambda f: f.value()[0] * 2)
            dist.distributed_c10d._get_default_store().set("go", "")
            work.wait()
            return early, work.is_completed(), doubled.wait().tolist()
        dist.distributed_c10d._get_default_store().wait(["go"])
        dist.all_reduce(x)

    assert on_ranks(2, fn).results[0] == (False, True, [4.0] * 4)


def test_a_callback_may_start_a_collective_and_wait_for_it():
    def fn(mesh):
        def again(future):
            x = future.value()[0].clone()
            return dist.all_reduce(x, async_op=True).get_future().then(twice).wait()

        def twice(future):
            y = future.value()[0].clone()
            return dist.all_reduce(y, async_op=True).get_future().wait()[0].sum().item()

        first = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(again)
        return first.wait()

    assert on_ranks(3, fn).results == [2 * 3.0**3] * 3


def test_inference_mode_of_the_caller_and_gradients_do_not_matter():
    def fn(mesh):
        with torch.inference_mode():
            x = torch.ones(3)
            dist.all_reduce(x)
        weight = torch.ones(3, requires_grad=True)
        buffer = torch.ones(3)
        loss = (weight * buffer).sum()  # keeps `buffer` for the backward
        dist.broadcast(buffer, 0)
        loss.backward()  # a change of `buffer` that autograd counts would raise here
        dist.all_reduce(weight.grad)
        return x.tolist(), weight.grad.tolist(), x.is_inference(), weight.grad.is_inference()

    assert on_ranks(2, fn).results == [([2.0] * 3, [2.0] * 3, True, False)] * 2


# What goes wrong


def failing(fn, world_size=3, **options):
    """What every rank's fn(mesh) raised: (type, text, seconds) of each, or None."""

    def guarded(mesh):
        start = time.monotonic()
        try:
            fn(mesh)
        except Exception as error:
            return type(error), str(error), time.monotonic() - start
        return None

    return on_ranks(world_size, guarded, **options).results


@pytest.mark.parametrize(
    "odd_one", [torch.ones(9), torch.ones(4, dtype=torch.float64)], ids=["shape", "dtype"]
)
def test_ranks_that_disagree_are_told_so_at_wait(odd_one):
    def fn(mesh):
        work = dist.all_reduce(odd_one if mesh.rank == 1 else torch.ones(4), async_op=True)
        work.wait()

    outcomes = failing(fn)
    assert any(kind is MessageMismatch for kind, _, _ in outcomes)
    for rank, (_, text, seconds) in enumerate(outcomes):
        assert text.startswith(f"allreduce, call 1 on rank {rank} of 3: ")
        assert re.search(r"rank \d expected .* from rank \d at step \d", text), text
        assert seconds < 5


def test_another_order_of_calls_is_named():
    def fn(mesh):
        x = torch.ones(4)
        if mesh.rank == 2:
            dist.broadcast(x, 2)
            dist.all_reduce(x)
        else:
            dist.all_reduce(x)
            dist.broadcast(x, 2)
        dist.barrier()

    outcomes = failing(fn)
    assert all(o is not None for o in outcomes)
    assert any(kind in (CollectiveMismatch, MessageMismatch) for kind, _, _ in outcomes), outcomes


def test_a_group_that_failed_stays_failed_and_says_why():
    def fn(mesh):
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(4 + mesh.rank))
        dist.all_reduce(torch.ones(4))

    for _, text, seconds in failing(fn, 2):
        assert "the group has failed" in text and "expected float32" in text
        assert seconds < 5


def test_a_rank_that_does_not_come():
    def fn(mesh):
        group = dist.new_group(timeout=timedelta(seconds=1))
        if mesh.rank == 1:
            time.sleep(3)
            return
        dist.all_reduce(torch.ones(4), group=group)

    outcomes = failing(fn)
    assert outcomes[1] is None
    for rank in (0, 2):
        kind, text, seconds = outcomes[rank]
        assert kind in (RecvTimeout, PeerLost)
        assert re.search(r"rank \d waited 1 s for a message from rank \d at step \d", text), text
        assert seconds < 3


def test_a_timeout_of_wait():
    def fn(mesh):
        if mesh.rank == 1:
            time.sleep(1.5)
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.wait(timedelta(seconds=0.5))

    outcomes = failing(fn, 2)
    assert outcomes[1] is None
    kind, text, _ = outcomes[0]
    assert (
        kind is RecvTimeout and text == "allreduce, call 1 on rank 0 of 2 was not done after 0.5 s"
    )


def test_a_rank_that_dies_in_the_middle_of_training():
    def fn(mesh):
        net = torch.nn.Linear(4, 4)
        ddp = torch.nn.parallel.DistributedDataParallel(net)
        for step in range(10):
            if mesh.rank == 1 and step == 3:
                dist.distributed_c10d._get_default_group()._sockets[0].shutdown(2)
                time.sleep(2)
                return
            ddp(torch.ones(2, 4)).sum().backward()

    outcomes = failing(fn)
    assert outcomes[1] is None or issubclass(outcomes[1][0], RuntimeError)
    for rank in (0, 2):
        kind, text, seconds = outcomes[rank]
        assert issubclass(kind, RuntimeError)
        assert re.search(r"rank \d lost .*rank \d at step \d", text), text
        assert seconds < 15  # most of it before the first step; the deadline would be 60


def test_a_rank_that_is_killed():
    def fn(mesh):
        dist.all_reduce(torch.ones(4))
        if mesh.rank == 1:
            os.kill(os.getpid(), 9)
        dist.all_reduce(torch.ones(4))

    start = time.monotonic()
    with pytest.raises((PeerLost, RankFailed), match="rank 1"):
        on_ranks(3, fn)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.AVG), "average"),
        (lambda: dist.all_reduce(torch.ones(2, device="meta")), "on the CPU"),
        (lambda: dist.recv(torch.ones(2)), "give recv its `src`"),
        (lambda: backend_cases.single("all_gather", torch.ones(3), torch.ones(2)), "2 times as"),
        (lambda: backend_cases.single("reduce_scatter", torch.ones(3), torch.ones(2)), "2 times"),
        (lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)), "into 2 equal parts"),
    ],
)
def test_what_cannot_be_done_is_refused_at_the_call(call, says):
    def fn(mesh):
        try:
            call()
        finally:  # and the group still works
            x = torch.ones(1)
            dist.all_reduce(x)
            assert x.item() == 2

    for _, text, _ in failing(fn, 2):
        assert says in text
