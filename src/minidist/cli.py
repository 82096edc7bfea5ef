"""python -m minidist: verify, simulate, train, bench, doctor, and the exercises."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from minidist import PRIMITIVES, bench, collectives, cost, palette
from minidist.doctor import examine
from minidist.grading.commands import add_commands, new_file
from minidist.launch import WIRES, run
from minidist.mesh import MeshError
from minidist.training import DDPS, LEARNED, TEST_DIGITS, train
from minidist.transports.simulated import ALPHA, BETA, Simulated, steps
from minidist.verify import Comparison, compare

MOST_PROCESSES = 64  # `verify` starts one per rank, and a queue for each pair of them
MOST_RANKS = 4096  # `simulate` keeps them all in one process
MOST_BYTES = 1 << 50

SIMULATED = {
    "naive_allreduce": (collectives.naive_allreduce, cost.naive_allreduce_cost),
    "ring_allreduce": (collectives.ring_allreduce, cost.ring_allreduce_cost),
    "broadcast": (collectives.broadcast, cost.broadcast_cost),
    "allgather": (collectives.allgather, cost.allgather_cost),
    "reduce_scatter": (collectives.reduce_scatter, cost.reduce_scatter_cost),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 only if everything that was asked for holds."""
    parser = argparse.ArgumentParser(prog="python -m minidist", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser("verify", help="hold our collectives against gloo")
    command.add_argument("--world-size", type=_processes, nargs="+", default=[2, 3, 4])
    command.add_argument("--primitive", choices=PRIMITIVES, nargs="+", default=list(PRIMITIVES))
    command.add_argument("--json", type=new_file, metavar="FILE", help="write the rows there")
    command.set_defaults(run=_verify)

    command = commands.add_parser("simulate", help="what a collective costs on a virtual clock")
    command.add_argument("collective", choices=SIMULATED)
    command.add_argument("--world-size", type=_ranks, default=8)
    command.add_argument("--bytes", type=_size, default=1 << 20, help="e.g. 1000, 64K, 16M, 1G")
    command.add_argument("--alpha", type=_seconds, default=ALPHA, help="seconds per message")
    command.add_argument("--beta", type=_seconds, default=BETA, help="seconds per byte")
    command.add_argument("--json", type=new_file, metavar="FILE", help="write the result there")
    command.set_defaults(run=_simulate)

    command = commands.add_parser("train", help="train the digits net with DDP on several ranks")
    command.add_argument("--backend", choices=("minidist", "gloo", "nccl"), default="minidist")
    command.add_argument("--ddp", choices=tuple(DDPS), default="torch", help="whose DDP")
    command.add_argument("--world-size", type=_processes, default=2)
    command.add_argument("--epochs", type=_ranks, default=5)
    command.add_argument("--json", type=new_file, metavar="FILE", help="write the epochs there")
    command.set_defaults(run=_train)

    command = commands.add_parser(
        "bench", help="time allreduce on every wire, beside gloo; `bench ddp`: training steps"
    )
    command.add_argument("--transport", choices=bench.TRANSPORTS, nargs="+", default=list(WIRES))
    command.add_argument(
        "--algorithm", choices=bench.ALGORITHMS, nargs="+", default=list(bench.ALGORITHMS)
    )
    command.add_argument("--world-size", type=_processes, nargs="+", default=[2, 4])
    sizes = [_size(text) for text in ("1K", "64K", "1M", "16M", "64M")]
    command.add_argument("--sizes", type=_size, nargs="+", default=sizes, help="e.g. 1K 64K 16M")
    command.add_argument("--repeats", type=_ranks, default=20, help="rounds per size")
    command.add_argument(
        "--seconds", type=_seconds, default=3.0, help="cut the rounds of a size short after this"
    )
    command.add_argument("--json", type=new_file, metavar="FILE", help="write rows and goals there")
    command.add_argument("--plot", type=new_file, metavar="FILE", help="draw them there (svg, png)")
    command.set_defaults(run=_bench)
    what = command.add_subparsers(title="instead of allreduce", metavar="ddp")
    command = what.add_parser("ddp", help="time a step of our DDP, beside PyTorch's")
    sizes = [_size(text) for text in ("5M", "25M", "100M")]
    command.add_argument("--sizes", type=_size, nargs="+", default=sizes, help="of parameters")
    command.add_argument(
        "--batch", type=_ranks, nargs="+", default=[1, 32], help="with 1, communication is most"
    )
    command.add_argument("--world-size", type=_processes, default=2)
    command.add_argument("--repeats", type=_ranks, default=30, help="rounds per cell")
    command.add_argument(
        "--seconds", type=_seconds, default=15.0, help="cut the rounds of a cell short after this"
    )
    command.add_argument(
        "--sweep", type=_size, default=25 << 20, help="parameters of the model for the bucket caps"
    )
    command.add_argument(
        "--caps", type=_size, nargs="*", default=list(bench.CAPS), help="none: no sweep"
    )
    command.add_argument("--json", type=new_file, metavar="FILE", help="write all of it there")
    command.add_argument("--plot", type=new_file, metavar="FILE", help="draw it there (svg, png)")
    command.set_defaults(run=_bench_ddp)

    command = commands.add_parser("doctor", help="can this machine run the course?")
    command.add_argument("--json", type=new_file, metavar="FILE", help="write the findings there")
    command.set_defaults(run=_doctor)

    add_commands(commands)
    chosen = parser.parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):  # what the terminal has no character for: an escape
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = chosen.run(chosen)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has seen enough; nor can the interpreter's last flush write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MeshError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130  # as shells say it


def _verify(arguments: argparse.Namespace) -> int:
    print("Input: the gradient of a small BatchNorm conv net on digits, each rank its own shard.\n")
    print(f"{'primitive':15} {'ranks':>5}  {'gloo':9} {'max |diff|':>10}  bit-equal")
    rows: list[Comparison] = []
    for world_size in arguments.world_size:
        for op in arguments.primitive:
            row = compare(op, world_size)
            rows.append(row)
            print(
                f"{op:15} {world_size:5}  {'match' if row.match else 'MISMATCH':9} "
                f"{row.max_abs_diff:10.1e}  {'yes' if row.bit_equal else 'no'}",
                flush=True,
            )
    for row in rows:
        if row.op == "allreduce":
            _print_bytes(row)
    good = all(row.match and row.bytes_agree for row in rows)
    _write_json(arguments.json, [_as_json(row) for row in rows])
    print("\nEverything agrees." if good else "\nSOMETHING DISAGREES, see above.")
    return 0 if good else 1


def _print_bytes(row: Comparison) -> None:
    n = row.world_size
    print(
        f"\nBytes that each of {n} ranks sent in allreduce, against 2T(N-1)/N with "
        f"T = {row.nbytes:,} + {row.padding} of padding:"
    )
    for rank, (sent, expected) in enumerate(zip(row.sent, row.expected, strict=True)):
        verdict = "equal" if sent == expected else "DIFFERENT"
        print(f"  rank {rank}: {sent:10,}   expected {expected:10,}   {verdict}")


def _as_json(row: Comparison) -> dict[str, Any]:
    return {**asdict(row), "match": row.match, "bytes_agree": row.bytes_agree}


def _simulate(arguments: argparse.Namespace) -> int:
    fn, closed_form = SIMULATED[arguments.collective]
    n, nbytes, alpha, beta = (
        arguments.world_size,
        arguments.bytes,
        arguments.alpha,
        arguments.beta,
    )
    padded = cost.padded_nbytes(n, nbytes, 1)
    numel = padded if arguments.collective == "reduce_scatter" else nbytes
    # Tensors without data: a gigabyte on 512 ranks costs no memory.
    inputs = [torch.empty(numel, dtype=torch.uint8, device="meta")] * n
    result = run(fn, n, inputs=inputs, transport=Simulated(alpha=alpha, beta=beta), timeout=600.0)
    uses_chunks = arguments.collective in ("ring_allreduce", "reduce_scatter")
    predicted = closed_form(n, padded if uses_chunks else nbytes).time(alpha, beta)
    trace = result.trace
    answer = {
        "collective": arguments.collective,
        "world_size": n,
        "bytes": nbytes,
        "padding": padded - nbytes if uses_chunks else 0,
        "alpha": alpha,
        "beta": beta,
        "steps": steps(trace),
        "bytes_sent_most": max(trace.bytes_sent),
        "bytes_sent_least": min(trace.bytes_sent),
        "seconds": trace.duration,
        "closed_form_seconds": predicted,
    }
    for name, value in answer.items():
        print(f"{name.replace('_', ' '):22} {_shown(value)}")
    _write_json(arguments.json, answer)
    return 0 if abs(trace.duration - predicted) <= 1e-9 * max(predicted, 1e-30) else 1


def _train(arguments: argparse.Namespace) -> int:
    whose = "Our" if arguments.ddp == "ours" else "PyTorch's"
    print(
        f"{whose} DDP on {arguments.backend}, {arguments.world_size} ranks; "
        f"{TEST_DIGITS} digits are kept for the test."
    )
    try:
        epochs = train(arguments.backend, arguments.world_size, arguments.epochs, ddp=arguments.ddp)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    _write_json(arguments.json, [asdict(epoch) for epoch in epochs])
    learned = epochs[-1].accuracy >= LEARNED
    print(f"{'Learned' if learned else 'NOT LEARNED'}: the bound is {LEARNED:.0%} accuracy.")
    return 0 if learned else 1


def _bench(arguments: argparse.Namespace) -> int:
    where = bench.machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    print("allreduce of float32; medians of the slowest rank; bandwidths in GB/s\n")
    print(bench.HEADER, flush=True)
    rows = []
    for row in bench.bench(
        arguments.transport,
        arguments.algorithm,
        arguments.world_size,
        arguments.sizes,
        arguments.repeats,
        arguments.seconds,
    ):
        rows.append(row)
        print(bench.line(row), flush=True)
    if not rows:
        print("Nothing to measure: the backend is measured beside tcp.", file=sys.stderr)
        return 2
    goals = bench.goals(rows)
    if goals:
        print(f"\nGoals: {sum(goal.met for goal in goals)} of {len(goals)} cells meet theirs.")
    for goal in goals:
        print(bench.goal_line(goal))
    answer = {
        "machine": where,
        "rows": [row.as_json() for row in rows],
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
    }
    _write_json(arguments.json, answer)
    if arguments.plot:
        bench.figure(rows).savefig(arguments.plot, facecolor=palette.LIGHT["paper"], dpi=150)
    wrong = sum(row.wrong for row in rows)
    print(f"\n{wrong} WRONG SUMS, see above." if wrong else "\nEvery sum was right.")
    return 1 if wrong else 0


def _bench_ddp(arguments: argparse.Namespace) -> int:
    where = bench.machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    world_size, processors = arguments.world_size, where["processors"]
    if processors < 2 * world_size:
        print(
            f"{world_size} ranks on {processors} processors: what communicates takes time from "
            "what computes, in PyTorch's DDP as in ours."
        )
    print("forward and backward of linear layers in float32; medians of the slowest rank\n")
    print(bench.DDP_HEADER, flush=True)
    rows = []
    rounds = (world_size, arguments.repeats, arguments.seconds)
    for row in bench.bench_ddp(arguments.sizes, arguments.batch, *rounds):
        rows.append(row)
        print(bench.ddp_line(row), flush=True)
    sweep = None
    if arguments.caps:
        batch = max(arguments.batch)
        sweep = bench.sweep(arguments.sweep, batch, sorted(set(arguments.caps)), *rounds)
        print("\n" + "\n".join(bench.sweep_lines(sweep)))
    goals = bench.ddp_goals(rows)
    if goals:
        print(f"\nGoals: {sum(goal.met for goal in goals)} of {len(goals)} cells meet theirs.")
    for goal in goals:
        print(bench.goal_line(goal))
    answer = {
        "machine": where,
        "rows": [row.as_json() for row in rows],
        "sweep": sweep and sweep.as_json(),
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
    }
    _write_json(arguments.json, answer)
    if arguments.plot:
        drawn = bench.ddp_figure(rows, sweep)
        drawn.savefig(arguments.plot, facecolor=palette.LIGHT["paper"], dpi=150)
    wrong = sum(row.wrong for row in rows)
    print(f"\n{wrong} WRONG GRADIENTS, see above." if wrong else "\nEvery gradient was PyTorch's.")
    return 1 if wrong else 0


def _shown(value: str | int | float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else value


def _doctor(arguments: argparse.Namespace) -> int:
    findings = examine()
    for finding in findings:
        print(f"{'ok ' if finding.ok else 'NO '} {finding.name:22} {finding.saw}")
        if not finding.ok:
            print(f"    {'':22} -> {finding.remedy}")
    _write_json(arguments.json, [asdict(finding) for finding in findings])
    return 0 if all(finding.ok for finding in findings) else 1


def _write_json(path: Path | None, value: Any) -> None:
    if path:
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _processes(text: str) -> int:
    return _ranks(text, MOST_PROCESSES)


def _ranks(text: str, most: int = MOST_RANKS) -> int:
    number = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, 1 to {most}")
    return number


def _size(text: str) -> int:
    """'64K' -> 65536."""
    number, unit = text.rstrip("KMGkmg"), text[len(text.rstrip("KMGkmg")) :].upper()
    factor = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit)
    if factor and number.isdecimal() and len(number) < 20 and int(number) * factor <= MOST_BYTES:
        return int(number) * factor
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a size in bytes, like 1000, 64K, 16M or 1G (at most 1048576G)"
    )


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds")


if __name__ == "__main__":
    sys.exit(main())
