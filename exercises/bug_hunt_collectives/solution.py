"""Exercise: a test that finds the bug, whatever the collective."""

import torch


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
    """The smallest case in which a collective is wrong, or None if it is right.

    run(inputs, root=0) calls the collective on len(inputs) simulated ranks, rank r with inputs[r],
    and gives an outcome: .hangs (bool), .results (one tensor per rank; None if it hangs),
    .bytes_sent (one number per rank). run.price(world_size, nbytes): what all ranks together may
    send for a tensor of nbytes bytes.
    op: "allreduce" (sum; there is no root, leave it 0) or "broadcast" (root's tensor, on every
    rank).

    Try world sizes 1 to 8. Returns None, or (what, world_size, root, strided) for the smallest case
    that fails: fewest ranks first, then the lowest root, then contiguous before strided. what:
    "hangs", or else "wrong" (some rank has other numbers), or else "bytes" (all together send too
    many).
    """
    for world_size in range(1, 9):
        for root in range(world_size) if op == "broadcast" else (0,):
            for strided in (False, True):
                kinds = {judge(run, op, world_size, root, strided, extra) for extra in (0, 1)}
                for what in ("hangs", "wrong", "bytes"):
                    if what in kinds:
                        return what, world_size, root, strided
    return None
