"""Every planted bug fails where it says, and nowhere else; what is right is right everywhere."""

import pytest
import torch

from minidist.grading import planted
from minidist.grading.exercises.bug_hunt_collectives import Runner

STRIDED = {False: lambda t: t, True: lambda t: torch.stack([t, -t], -1).reshape(-1)[::2]}

WHERE = {  # (world_size, numel, root, strided) -> does it fail?
    "everybody_listens": ("hangs", lambda n, numel, root, strided: n > 1),
    "rounds_from_a_table": ("wrong", lambda n, numel, root, strided: n == 3),
    "renumbered": ("wrong", lambda n, numel, root, strided: root == 1),
    "carefully_exact": ("bytes", lambda n, numel, root, strided: n > 1),
    "straight_from_memory": ("wrong", lambda n, numel, root, strided: strided),
    "by_arrival": ("wrong", lambda n, numel, root, strided: n > 1),
    "five_wait": ("hangs", lambda n, numel, root, strided: n == 5),
    "last_root": ("wrong", lambda n, numel, root, strided: root == 3),
    "no_tail": ("wrong", lambda n, numel, root, strided: numel % n != 0),
    "twice_around": ("bytes", lambda n, numel, root, strided: n > 2),
    "strided_root": ("wrong", lambda n, numel, root, strided: strided and root > 0),
}


def inputs_of(n, numel, strided):
    torch.manual_seed(n)
    return [STRIDED[strided](torch.randint(0, 10**6, (numel,))) for _ in range(n)]


def verdict(collective, inputs, root):
    run = Runner(collective)
    outcome = run(inputs, root)
    if outcome.hangs:
        return "hangs"
    expected = inputs[root] if collective.op == "broadcast" else torch.stack(inputs).sum(0)
    if not all(torch.equal(r, expected) for r in outcome.results):
        return "wrong"
    dear = sum(outcome.bytes_sent) > run.price(len(inputs), 8 * expected.numel())
    return "bytes" if dear else None


def cases(op, sizes=range(1, 9)):
    return [
        (n, numel, root, strided)
        for n in sizes
        for root in (range(n) if op == "broadcast" else (0,))
        for strided in (False, True)
        for numel in (4 * n, 4 * n + 1)
    ]


@pytest.mark.parametrize("name", sorted(WHERE))
def test_it_fails_exactly_where_it_should(name):
    collective = planted.ALL[name]
    what, where = WHERE[name]
    first = None
    for n, numel, root, strided in cases(collective.op):
        came = verdict(collective, inputs_of(n, numel, strided), root)
        assert came == (what if where(n, numel, root, strided) else None), (n, numel, root, strided)
        first = first or (came and (came, n, root, strided))
    assert first == collective.fails


@pytest.mark.parametrize("collective", planted.RIGHT, ids=lambda p: p.name)
def test_what_is_right_is_right_everywhere(collective):
    for n, numel, root, strided in cases(collective.op):
        assert verdict(collective, inputs_of(n, numel, strided), root) is None


def test_all_are_accounted_for():
    assert set(WHERE) == {p.name for p in (*planted.SHOWN, *planted.HIDDEN)}
    assert len(planted.SHOWN) == 6


def test_right_on_constants_only():
    for n in range(1, 9):
        same = [torch.full((4 * n,), 7) for _ in range(n)]
        assert verdict(planted.ALL["by_arrival"], same, 0) is None


def test_the_dear_one_sends_four_times_the_bytes():
    for n in (2, 3, 4):
        inputs = [torch.ones(4 * n) for _ in range(n)]
        dear, ring = (
            sum(Runner(planted.ALL[name])(inputs).bytes_sent)
            for name in ("carefully_exact", "ring_allreduce")
        )
        assert dear == 4 * ring
