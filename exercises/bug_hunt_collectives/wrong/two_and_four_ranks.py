"""Tests 2, 4 and 8 ranks: powers of two hide what 3 shows."""

import torch

CHECK = "found"
SAYS = "Try every world size"


def judge(run, op, world_size, root, strided, extra):
    """What is wrong in one case, or None: `extra` elements more than world_size divides."""
    numel = 4 * world_size + extra
    step = 2 if strided else 1
    inputs = [(1000 * rank + torch.arange(step * numel))[::step] for rank in range(world_size)]
    outcome = run(inputs, root)
    if outcome.hangs:
        return "hangs"
    expected = inputs[root] if op == "broadcast" else torch.stack(inputs).sum(0)
    if not all(torch.equal(result, expected) for result in outcome.results):
        return "wrong"
    if sum(outcome.bytes_sent) > run.price(world_size, 8 * numel):
        return "bytes"
    return None


def find_bug(run, op: str):
    for world_size in (2, 4, 8):
        for root in range(world_size) if op == "broadcast" else (0,):
            for strided in (False, True):
                kinds = {judge(run, op, world_size, root, strided, extra) for extra in (0, 1)}
                for what in ("hangs", "wrong", "bytes"):
                    if what in kinds:
                        return what, world_size, root, strided
    return None
