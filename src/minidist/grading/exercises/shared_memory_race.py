"""shared_memory_race: find the race in a shared-memory ring."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.interleaving import Interleaving, Semaphore, Window
from minidist.grading.report import Feedback
from minidist.grading.tensors import describe, make_tensor, other_tensor


def interleaved(
    functions: Functions, world_size: int, first: list[int], seed: int | None = None, calls: int = 2
) -> dict[str, Any]:
    """Call the ring `calls` times in a row on every rank; `first`: who goes first if it can."""
    rng = random.Random(seed)

    def order(free: list[int]) -> int:
        return rng.choice(free) if seed is not None else min(free, key=first.index)

    world = Interleaving(world_size, order)
    example = make_tensor(0, "float32", (3,))
    windows = [Window(world, rank, example) for rank in range(world_size)]
    full = [Semaphore(world, f"full[{r}]", 0) for r in range(world_size)]
    empty = [Semaphore(world, f"empty[{r}]", 1) for r in range(world_size)]

    def program(rank: int) -> list[Any]:
        return [
            describe(functions[0](rank, world_size, windows, full, empty, ring_input(rank, call)))
            for call in range(calls)
        ]

    results = world.run(program)
    return {
        "results": results,
        "log": world.log,
    }


def ring_input(rank: int, call: int) -> Tensor:
    """What rank `rank` gives to its `call`-th call."""
    return make_tensor(100 * call + rank, "float32", (3,)) + 1000 * (rank + 1)


def _orders() -> list[Trial]:
    trials = []
    for n in (1, 2, 3, 4):
        ranks = list(range(n))
        orders = {f"rank {r} is slow": [*(x for x in ranks if x != r), r] for r in ranks}
        orders |= {f"rank {r} is fast": [r, *(x for x in ranks if x != r)] for r in ranks}
        for says, first in orders.items():
            arguments = {"world_size": n, "first": first, "calls": 2}
            trials.append(Trial(interleaved, f"world size {n}, {says}", arguments, 10 * n))
        for seed in range(6):
            arguments = {"world_size": n, "first": ranks, "seed": seed, "calls": 3}
            says = f"world size {n}, a shuffled order ({seed})"
            trials.append(Trial(interleaved, says, arguments, 10 * n + 1))
    return trials


def _no_race(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    n = trial.arguments["world_size"]
    written, read = [0] * n, [0] * n
    for rank, what in said["log"]:
        verb, owner = what.split()
        owner = int(owner)
        right = (owner + 1) % n
        if verb == "write" and rank != owner:
            return Feedback(
                f"Rank {rank} writes into the window of rank {owner}.",
                rank=rank,
                expected="a rank writes into its own window, and its right neighbour reads it",
            )
        if verb == "read" and rank != right:
            return Feedback(
                f"Rank {rank} reads the window of rank {owner}.",
                rank=rank,
                expected=f"only rank {right}, the right neighbour, reads it",
            )
        if verb == "write" and written[owner] > read[owner]:
            return Feedback(
                f"Race: rank {owner} writes message {written[owner]} into its window before rank "
                f"{right} has read message {written[owner] - 1}.",
                rank=owner,
                expected="write, read, write, read: in turns",
                came="write, write",
                diagnosis="The place is not free yet: what makes the writer wait until the reader "
                "is done? A pause only makes it rarer.",
            )
        if verb == "read" and read[owner] >= written[owner]:
            return Feedback(
                f"Race: rank {right} reads message {read[owner]} of rank {owner} before it is "
                "written.",
                rank=right,
                expected="write, read, write, read: in turns",
                came="read, read",
                diagnosis="full[rank] says that the window is written: release it after the "
                "write, and acquire full[left] before the read.",
            )
        if verb == "write":
            written[owner] += 1
        else:
            read[owner] += 1
    return None


def _right_sums(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    n = trial.arguments["world_size"]
    for rank, results in enumerate(said["results"]):
        for call, came in enumerate(results):
            want = describe(torch.stack([ring_input(r, call) for r in range(n)]).sum(0))
            if came == want:
                continue
            feedback = other_tensor(want, came)
            assert feedback is not None
            feedback.sentence = f"Rank {rank} returned a wrong sum from call {call + 1}."
            feedback.rank = rank
            feedback.diagnosis = (
                "All took turns at the windows, so what was read changed afterwards: read() gives "
                "the window's own memory. Copy it (clone) before you release the place."
            )
            return feedback
    return None


def _writes(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    n, calls = trial.arguments["world_size"], trial.arguments["calls"]
    for rank in range(n):
        count = sum(r == rank and what.startswith("write") for r, what in said["log"])
        if count != calls * (n - 1):
            return Feedback(
                f"Rank {rank} writes {count} messages in {calls} calls.",
                rank=rank,
                expected=f"N - 1 in each call, {calls * (n - 1)} in all",
            )
    return None


EXERCISE = TrialExercise(
    name="shared_memory_race",
    title="Find the race in a shared-memory ring",
    chapter="real_wires",
    minutes=35,
    functions={"shared_memory_ring": ("rank", "world_size", "windows", "full", "empty", "tensor")},
    cases=_orders(),
    checks=(
        ("race", "windows are written and read in turns, in every order", _no_race),
        ("sums", "the right sums, in every order", _right_sums),
        ("writes", "N - 1 messages per rank and call", _writes),
    ),
)
