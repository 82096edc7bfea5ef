"""bench: what is measured, in which order, and what is said about it. Never how long it took."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from minidist import bench, cli, run
from minidist.bench import allreduce


def row(**changes):
    one = bench.Row("shared_memory", "ring", 2, 1024, 5, 0, 1e-3, (8e-4, 2e-3), 2e-3, (1e-3, 3e-3),
                    5e-4, 1e10, 2e10)  # fmt: skip
    return replace(one, **changes)


def test_every_transport_and_algorithm_has_its_row():
    transports, sizes = bench.TRANSPORTS, [4, 4000]
    rows = list(bench.bench(transports, world_sizes=[2], sizes=sizes, repeats=1))
    assert [(r.transport, r.nbytes, r.algorithm) for r in rows] == [
        (transport, nbytes, algorithm)
        for transport in transports
        for nbytes in sizes
        for algorithm in bench.ALGORITHMS
        if algorithm != bench.BACKEND or transport == "tcp"
    ]
    for r in rows:
        assert r.wrong == 0 and r.rounds == 1 and r.world_size == 2
        low, high = r.quartiles
        assert 0 < low <= r.seconds <= high and r.gloo_seconds > 0 and r.floor_seconds > 0


def test_one_rank():
    (r,) = bench.bench(["queue"], ["ring"], world_sizes=[1], sizes=[64], repeats=1)
    assert r.wrong == 0 and r.busbw == 0 and bench.goals([r]) == []
    json.loads(json.dumps(r.as_json()), parse_constant=pytest.fail)


def test_the_figures_of_a_row():
    r = row(world_size=4, nbytes=4_000_000, seconds=2e-3, gloo_seconds=8e-3, floor_seconds=1e-3)
    assert r.algbw == pytest.approx(2e9) and r.busbw == pytest.approx(3e9)
    assert r.to_gloo == 0.25 and r.to_floor == 2
    assert r.as_json()["busbw"] == r.busbw and r.as_json()["algorithm"] == "ring"


def test_a_round_takes_as_long_as_its_slowest_rank():
    def rank(*seconds):
        names = ("gloo", "ring", "floor", "copy", "add")
        return allreduce._Times(
            8, {n: list(seconds) for n in names}, {n: [False, False] for n in names}
        )

    ranks = (rank(1.0, 9.0, 2.0), rank(5.0, 3.0, 1.0))  # slowest: 5, 9, 2
    (r,) = allreduce._rows("tcp", ["ring"], 2, ranks)
    assert (r.seconds, r.quartiles, r.rounds) == (5.0, (3.5, 7.0), 3)
    assert r.copy_bandwidth == 12 / 5.0 and r.add_bandwidth == 4 / 5.0
    ranks[1].wrong["ring"][1] = True
    assert next(allreduce._rows("tcp", ["ring"], 2, ranks)).wrong == 1
    ranks[0].wrong["gloo"][0] = True
    with pytest.raises(RuntimeError, match="gloo's own sum is wrong"):
        next(allreduce._rows("tcp", ["ring"], 2, ranks))


def test_contenders_take_turns_and_all_ranks_stop_together():
    def note(mesh, repeats, seconds):
        order = []

        def contender(name):
            def add_up(tensor):
                order.append(name)
                torch.distributed.all_reduce(tensor)
                return tensor

            return add_up

        contenders = {name: contender(name) for name in ("gloo", "a", "b")}
        times = allreduce._one_size(mesh, contenders, allreduce.BYTES_IN_A_ROW, repeats, seconds)
        assert not any(map(any, times.wrong.values()))
        return order, len(times.seconds["a"]), len(times.wrong["a"])

    two = run(note, 2, 6, 60.0, process_group="gloo").results
    order, rounds, checked = two[0]
    assert two[1] == two[0] and rounds == 6 and checked == 7
    in_rounds = [order[i : i + 3] for i in range(0, 21, 3)]
    assert all(sorted(names) == ["a", "b", "gloo"] for names in in_rounds)
    assert {names[0] for names in in_rounds[1:]} == {"a", "b", "gloo"}
    assert len(set(map(tuple, in_rounds))) > 2
    for _, rounds, checked in run(note, 2, 50, 0.0, process_group="gloo").results:
        assert rounds == allreduce.LEAST_ROUNDS == checked - 1


def test_small_operations_come_in_a_row():
    """Each on memory of its own: in place ten times on one tensor would give another sum."""

    def count(mesh, nbytes):
        seen = []

        def contender(tensor):
            seen.append(tensor.data_ptr())
            torch.distributed.all_reduce(tensor)
            return tensor

        times = allreduce._one_size(mesh, {"gloo": contender}, nbytes, 1, 60.0)
        assert not any(times.wrong["gloo"])
        return len(seen), len(set(seen))

    for nbytes, calls in ((4, 10), (2 << 20, 4), (8 << 20, 1)):
        assert run(count, 1, nbytes, process_group="gloo").results == [(2 * calls, calls)]


@pytest.mark.parametrize(("world_size", "added", "fetched"), [(1, 0, 0), (2, 4, 4), (4, 6, 6)])
def test_the_floor_is_the_traffic_of_an_allreduce(world_size, added, fetched, monkeypatch):
    """Of 8 elements: all copied out, then all but the rank's own chunk added and copied in."""
    done = []
    for name in ("add_", "copy_"):
        real = getattr(torch.Tensor, name)

        def noted(mine, other, name=name, real=real):
            done.append((name, len(other)))
            return real(mine, other)

        monkeypatch.setattr(torch.Tensor, name, noted)
    total, copying, adding = bench.floor(world_size, torch.ones(8), torch.zeros(8))
    assert done == [("copy_", 8), ("add_", added), ("copy_", fetched)]
    assert math.isclose(total, copying + adding)


def wrong_on_rank_1(mesh, tensor):
    from minidist import ring_allreduce

    return ring_allreduce(mesh, tensor) + mesh.rank


def last_element_missing(mesh, tensor):
    from minidist import ring_allreduce

    total = ring_allreduce(mesh, tensor)
    total[-1] = tensor[-1]
    return total


def forgets_to_add(mesh, tensor):
    return None


@pytest.mark.parametrize("fault", [wrong_on_rank_1, last_element_missing, forgets_to_add])
def test_a_wrong_sum_is_an_exit_code(fault, monkeypatch, capsys):
    monkeypatch.setitem(bench.OURS, "tree", fault)
    arguments = ["bench", "--transport", "queue", "--world-size", "2", "--sizes", "1K"]
    assert cli.main([*arguments, "--algorithm", "ring", "tree", "--repeats", "2"]) == 1
    out = capsys.readouterr().out
    ring, tree = (s for s in out.splitlines() if s.startswith("   1K") and "queue" in s)
    assert ring.endswith("  ok") and tree.endswith("  WRONG x 3")  # warming up counts
    assert out.rstrip().endswith("3 WRONG SUMS, see above.")


def test_the_command(tmp_path, capsys):
    data, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    arguments = ["bench", "--transport", "shared_memory", "tcp", "--world-size", "2"]
    arguments += ["--sizes", "1K", "2000", "--repeats", "2", "--algorithm", "ring_", "backend"]
    assert cli.main([*arguments, "--json", str(data), "--plot", str(plot)]) == 0
    answer = json.loads(data.read_text())
    assert answer["machine"]["processors"] >= 1 and answer["machine"]["torch"] == torch.__version__
    assert [(r["transport"], r["nbytes"], r["algorithm"]) for r in answer["rows"]] == [
        ("shared_memory", 1024, "ring_"),
        ("shared_memory", 2000, "ring_"),
        *[("tcp", nbytes, name) for nbytes in (1024, 2000) for name in ("ring_", "backend")],
    ]
    out = capsys.readouterr().out
    assert out.rstrip().endswith("Every sum was right.")
    assert out.count("  ok\n") == 6
    goals = answer["goals"]  # shared memory at two sizes, the backend at two
    assert len(goals) == 4 and out.count("\nmet ") + out.count("\nMISS") == 4
    assert f"Goals: {sum(g['met'] for g in goals)} of 4 cells meet theirs." in out
    assert plot.read_text().lstrip().startswith("<?xml")


def test_the_backend_alone_without_tcp_is_nothing(capsys):
    assert cli.main(["bench", "--transport", "queue", "--algorithm", "backend"]) == 2
    assert "measured beside tcp" in capsys.readouterr().err


K, M = bench.K, bench.M
GOALS = [  # transport, ranks, bytes, our seconds if gloo needs 1 s, bound, met
    ("shared_memory", 2, K, 0.5, 0.5, True),
    ("shared_memory", 4, 64 * M, 0.51, 0.5, False),
    ("tcp", 4, M, 1.0, 1.0, True),
    ("tcp", 4, M, 1.01, 1.0, False),
    ("tcp", 4, 64 * K, 1.01, None, None),
    ("queue", 2, 64 * K, 1.01, 1.0, False),
    ("queue", 2, M, 9.0, None, None),
    ("queue", 2, 16 * M, 3.0, 3.0, True),
    ("queue", 2, 16 * M, 3.01, 3.0, False),
    ("process_group", 2, M, 9.0, None, None),
]


@pytest.mark.parametrize(("transport", "world_size", "nbytes", "seconds", "bound", "met"), GOALS)
def test_goals(transport, world_size, nbytes, seconds, bound, met):
    cell = {"transport": transport, "world_size": world_size, "nbytes": nbytes, "gloo_seconds": 1.0}
    rows = [row(**cell, seconds=seconds, algorithm="tree"), row(**cell, seconds=10.0)]
    found = [goal for goal in bench.goals(rows) if goal.what == "of gloo's time"]
    if bound is None:
        assert found == []
        return
    (goal,) = found
    assert (goal.algorithm, goal.value, goal.bound) == ("tree", seconds, bound)  # the best one
    assert goal.met is met
    assert bench.goal_line(goal).startswith("met " if met else "MISS")


def test_the_goal_of_the_floor():
    def found(**changes):
        return [g for g in bench.goals([row(**changes)]) if g.what == "of the floor"]

    (goal,) = found(nbytes=16 * M, seconds=3.0, floor_seconds=2.0)
    assert goal.met and goal.bound == 1.5
    assert not found(nbytes=64 * M, seconds=3.1, floor_seconds=2.0)[0].met
    assert found(nbytes=M) == found(nbytes=16 * M, world_size=4) == []
    assert found(nbytes=16 * M, transport="tcp") == []


@pytest.mark.parametrize(
    ("ring", "backend", "met"),
    [(1e-4, 1.49e-4, True), (1e-4, 1.51e-4, False), (1.0, 1.149, True), (1.0, 1.151, False)],
)
def test_the_goal_of_the_backend(ring, backend, met):
    rows = [
        row(transport="tcp", algorithm="ring_", seconds=ring),
        row(transport="tcp", algorithm="backend", seconds=backend),
    ]
    (goal,) = [g for g in bench.goals(rows) if g.algorithm == "backend"]
    assert goal.met is met
    assert bench.goals(rows[1:]) == []  # nothing to hold it against


def test_lines():
    r = row(nbytes=64 * K, seconds=1.2345e-3, quartiles=(9.1e-6, 0.0123456), wrong=2)
    said = bench.line(r)
    for what in (" 64K ", " 1,234 ", " 9.1 - 12,346 ", " 0.62 ", "WRONG x 2"):
        assert what in said
    assert [bench.size_name(n) for n in (4, 1000, K, 3 * M, 1 << 30)] == (
        ["4", "1000", "1K", "3M", "1G"]
    )


def test_the_figure():
    rows = [
        row(transport=t, world_size=n, nbytes=size, algorithm=a)
        for t in ("tcp", "queue")
        for n in (2, 4)
        for size in (M, K)
        for a in ("ring", "tree")
    ]
    drawn = bench.figure(rows)
    panels = drawn.axes
    assert [p.get_title(loc="left") for p in panels] == [
        f"{t}, {n} ranks" for n in (2, 4) for t in ("tcp", "queue")
    ]
    for panel in panels:
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        assert len(panel.lines) == 4  # ring, tree, gloo, floor
        assert list(panel.lines[0].get_xdata()) == [K, M]
    (legend,) = drawn.legends
    assert [t.get_text() for t in legend.get_texts()] == ["ring", "tree", "gloo", "floor"]
    bench.figure(rows[:1])  # one size in one panel
