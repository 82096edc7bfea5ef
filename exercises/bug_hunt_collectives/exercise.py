"""Exercise: a test that finds the bug, whatever the collective."""

import torch


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
    raise NotImplementedError
