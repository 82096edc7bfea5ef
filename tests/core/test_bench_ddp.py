"""bench ddp: what is measured and what is said about it. Never how long it took."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from minidist import bench, cli, ddp, run
from minidist.bench import ddp as bench_ddp
from minidist.bench.sweep import Point, fit
from minidist.cost import ring_allreduce_cost
from minidist.overlap import BucketTimes, Step

K, M = bench.K, bench.M
GLOO, SHARED_MEMORY = bench_ddp.BACKENDS


def row(**changes):
    one = bench.DDPRow(GLOO, 2, 5 * M, 32, 9, 0, 1e-2, (8e-3, 2e-2), 2e-2, (1e-2, 3e-2),
                       0.5, (0.4, 0.6), 0.7, 0.6, 3e-3, 5e-3)  # fmt: skip
    return replace(one, **changes)


def test_every_cell_has_its_row():
    rows = list(bench.bench_ddp([20 * K, 400 * K], [1, 3], 2, repeats=4))
    assert [(r.nbytes // (20 * K), r.batch, r.backend) for r in rows] == [
        (size, batch, backend)
        for size in (1, 20)
        for batch in (1, 3)
        for backend in (GLOO, SHARED_MEMORY)
    ]
    for r in rows:
        assert (r.wrong, r.rounds, r.world_size) == (0, 4, 2)
        for median, (low, high) in (
            (r.seconds, r.quartiles),
            (r.torch_seconds, r.torch_quartiles),
            (r.to_torch, r.to_torch_quartiles),
        ):
            assert 0 < low <= median <= high
        assert 0 <= r.overlap < 1 and 0 <= r.torch_overlap < 1
        assert 0 <= r.hidden <= r.communication and r.communication > 0
        json.loads(json.dumps(r.as_json()), parse_constant=pytest.fail)


def test_the_tower():
    module = bench_ddp.tower(M, layers=4)
    size = sum(4 * p.numel() for p in module.parameters())
    assert abs(size / M - 1) < 0.02 and len(list(module.parameters())) == 8
    again = bench_ddp.tower(M, layers=4)
    assert all(map(torch.equal, module.parameters(), again.parameters()))
    one, other = (bench_ddp.batch_for(module, 3, rank) for rank in (0, 1))
    assert one.shape == other.shape == (3, 256) and not torch.equal(one, other)


def test_contenders_take_turns_and_all_ranks_stop_together():
    def note(mesh, repeats, seconds):
        order = []
        contenders = {name: (lambda name=name: order.append(name)) for name in "abc"}
        times = bench_ddp.take_turns(
            contenders, repeats, seconds, lambda n: order.append(n.upper())
        )
        dist.barrier()
        return order, {name: len(of) for name, of in times.items()}

    two = run(note, 2, 5, 60.0, process_group="gloo").results
    order, counts = two[0]
    assert two[1] == two[0] and counts == dict.fromkeys("abc", 5)
    assert order[::2] == [name.upper() for name in order[1::2]]
    ran = order[1::2]
    rounds = [ran[i : i + 3] for i in range(0, len(ran), 3)]
    assert len(rounds) == 5 + bench_ddp.WARM_UP
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert {names[0] for names in rounds[bench_ddp.WARM_UP :]} == {"a", "b", "c"}
    for _, counts in run(note, 2, 50, 0.0, process_group="gloo").results:
        assert counts == dict.fromkeys("abc", bench_ddp.LEAST_ROUNDS)


def test_a_round_takes_as_long_as_its_slowest_rank_and_ratios_are_the_rounds():
    step = Step(0, 0, 1, 1, (), (BucketTimes(0, 8, 2.0, 4.0),), 3, 5)

    def rank(ours, theirs, wrong):
        times = {GLOO: ours, SHARED_MEMORY: ours, bench_ddp.TORCH: theirs}
        both = {GLOO: wrong, SHARED_MEMORY: wrong}
        return bench_ddp._Seen(8, times, both, {GLOO: [step], SHARED_MEMORY: [step]}, [0.25])

    ranks = [rank([1.0, 4.0, 9.0], [2.0, 2.0, 2.0], 0), rank([3.0, 2.0, 1.0], [1.0, 8.0, 1.0], 2)]
    first, _ = bench_ddp._rows(2, 32, ranks)
    assert (first.seconds, first.torch_seconds) == (4.0, 2.0)  # of 3, 4, 9 and of 2, 8, 2
    assert first.to_torch == 1.5  # of 1.5, 0.5, 4.5: not 4 over 2
    assert first.wrong == 2
    assert first.overlap == pytest.approx(1 / 3) and first.torch_overlap == 0.25
    assert (first.hidden, first.communication) == (0, 2)


def test_pytorchs_overlap_is_read_from_its_clock():
    """Of a step with many buckets, of which PyTorch's logging data tells the same as its clock."""

    def fn(mesh):
        module = bench_ddp.tower(200 * K)
        torch_ddp = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.02)
        torch_ddp._set_ddp_runtime_logging_sample_rate(1)
        inputs = bench_ddp.batch_for(module, 64, mesh.rank)
        seen = []
        for _ in range(4):
            bench_ddp.step(torch_ddp, inputs)
            seen.append(bench_ddp._logged_overlap(torch_ddp))
        data = torch_ddp._get_ddp_logging_data()
        dist.barrier()
        names = ("avg_backward_compute_comm_overlap_time", "avg_backward_comm_time")
        return seen, [data[name] for name in names]

    for seen, (overlap, communication) in run(fn, 2, process_group="gloo").results:
        assert all(0 <= x <= 1 for x in seen)
        assert max(seen[2:]) > 0 and 0 < overlap < communication


# The sweep


@given(st.integers(2, 9), st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-8))
def test_the_fit_finds_the_network(world_size, alpha, beta):
    sizes = (4 * K, 64 * K, M, 25 * M)
    times = {n: ring_allreduce_cost(world_size, n).time(alpha, beta) for n in sizes}
    found = fit(world_size, times)
    assert found == (pytest.approx(alpha, rel=1e-3), pytest.approx(beta, rel=1e-3))


def test_the_fit_is_never_negative():
    assert fit(1, {4: 0.0, 8: 0.0}) == (0.0, 0.0)
    alpha, beta = fit(2, {1000: 3.0, 2000: 2.0})  # less for more
    assert alpha > 0 and beta == 0
    alpha, beta = fit(2, {1000: 1.0, 2000: 3.0})  # more than twice for twice
    assert alpha == 0 and beta > 0


def test_a_sweep():
    found = bench.sweep(400 * K, 4, [1 * K, 64 * K, M], 2, repeats=4)
    assert (found.world_size, found.batch, found.rounds) == (2, 4, 4)
    assert [point.cap for point in found.points] == [K, 64 * K, M]
    many, some, one = (point.buckets for point in found.points)
    assert many > some > one == 1
    assert all(0 < p.quartiles[0] <= p.seconds <= p.quartiles[1] for p in found.points)
    assert found.best_predicted <= min(point.predicted for point in found.points)
    assert found.fastest.seconds == min(point.seconds for point in found.points)
    text = "\n".join(bench.sweep_lines(found))
    assert "Fastest cap measured: " in text and text.count("\n") == 5
    json.loads(json.dumps(found.as_json()), parse_constant=pytest.fail)


# What is said


def test_goals():
    def found(**changes):
        return [(goal.what, goal.bound, goal.met) for goal in bench.ddp_goals([row(**changes)])]

    time_, less = "of PyTorch's time", "of communication overlaps less"
    assert found(to_torch=1.02) == [(time_, 1.02, True), (less, 0.0, True)]
    assert found(to_torch=1.021, overlap=0.59) == [(time_, 1.02, False), (less, 0.0, False)]
    assert found(backend=SHARED_MEMORY, batch=1, to_torch=0.9) == [(time_, 0.9, True)]
    assert found(backend=SHARED_MEMORY, batch=1, to_torch=0.91) == [(time_, 0.9, False)]
    assert found(backend=SHARED_MEMORY) == found(world_size=3) == found(nbytes=M) == []
    assert found(nbytes=200 * M) == []


def test_a_line():
    said = bench.ddp_line(row(wrong=3))
    for what in ("5.2MB", " 32 ", "8.00 - 20.00", " 0.500 ", "0.40 - 0.60", "3.0 of 5.0"):
        assert what in said
    assert said.endswith("3 WRONG") and bench.ddp_line(row()).endswith("bit-equal")


def test_the_figure():
    points = tuple(Point(c, 1, 1e-2, (8e-3, 2e-2), 9e-3) for c in (K, M))
    swept = bench.Sweep(2, 5 * M, 32, 4, 1e-4, 1e-9, points, 2 * K, 8e-3)
    rows = [row(), row(backend=SHARED_MEMORY), row(batch=1)]
    ratios, curve = bench.ddp_figure(rows, swept).axes
    assert [t.get_text() for t in ratios.get_xticklabels()] == ["5 MB\nbatch 32", "5 MB\nbatch 1"]
    run_line, model_line, fastest, best = curve.lines
    assert list(run_line.get_ydata()) == [10, 10] and list(model_line.get_ydata()) == [9, 9]
    assert list(fastest.get_xdata()) == [K] and list(best.get_xdata()) == [2 * K]
    assert len(bench.ddp_figure(rows, None).axes) == len(bench.ddp_figure([], swept).axes) == 1


def test_the_command(tmp_path, capsys):
    data, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    arguments = ["bench", "ddp", "--sizes", "200K", "--batch", "2", "--repeats", "3"]
    arguments += ["--sweep", "100K", "--caps", "4K", "1M"]
    assert cli.main([*arguments, "--json", str(data), "--plot", str(plot)]) == 0
    answer = json.loads(data.read_text())
    assert answer["machine"]["processors"] >= 1 and answer["goals"] == []
    assert [r["backend"] for r in answer["rows"]] == [GLOO, SHARED_MEMORY]
    assert [p["cap"] for p in answer["sweep"]["points"]] == [4 * K, M]
    out = capsys.readouterr().out
    assert out.rstrip().endswith("Every gradient was PyTorch's.") and out.count("bit-equal\n") == 2
    assert plot.read_text().lstrip().startswith("<?xml")


def test_wrong_gradients_are_an_exit_code(monkeypatch, capsys):
    class Forgetful(ddp.DistributedDataParallel):
        """Leaves the last bucket's gradients as they are on this rank."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            put = self.reducer._give_back
            self.reducer._give_back = lambda bucket, result: (
                None if bucket is self.reducer.buckets[-1] else put(bucket, result)
            )

    monkeypatch.setattr(bench_ddp, "DistributedDataParallel", Forgetful)
    assert all(r.wrong > 10 for r in _in_this_process(monkeypatch))
    monkeypatch.setattr(bench, "bench_ddp", lambda *_: iter([row(wrong=40)]))
    assert cli.main(["bench", "ddp", "--caps"]) == 1
    assert capsys.readouterr().out.rstrip().endswith("40 WRONG GRADIENTS, see above.")


def _in_this_process(monkeypatch):
    """bench_ddp whose ranks see what this test has changed: the function takes it along."""
    fault = bench_ddp.DistributedDataParallel
    on_each_rank = bench_ddp._on_each_rank

    def with_the_fault(mesh, *args):
        bench_ddp.DistributedDataParallel = fault
        return on_each_rank(mesh, *args)

    monkeypatch.setattr(bench_ddp, "_on_each_rank", with_the_fault)
    return bench.bench_ddp([20 * K], [2], 2, repeats=3)
