"""bug_hunt_collectives: a function that finds the bug of a collective, at its smallest case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from minidist.grading import planted
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise, TrialJudge
from minidist.grading.report import Feedback
from minidist.mesh import Deadlock, Mesh
from minidist.trace import Trace
from minidist.transports.simulated import Simulated


class Outcome(NamedTuple):
    """What one run of the collective under test gave."""

    hangs: bool
    results: list[Any] | None  # one per rank; None if it hangs or raises
    bytes_sent: list[int]  # per rank


class Runner:
    """run(inputs, root=0): the collective under test, on len(inputs) simulated ranks."""

    MAX_RUNS = 3000

    def __init__(self, collective: planted.Planted):
        self._collective = collective
        self._runs = 0

    def __call__(self, inputs: list[Tensor], root: int = 0) -> Outcome:
        self._runs += 1
        if self._runs > self.MAX_RUNS:
            raise RuntimeError(f"{self.MAX_RUNS} runs of one collective, and no end of it")
        return outcome(
            self._collective,
            [tensor.clone() if tensor.is_contiguous() else tensor for tensor in inputs],
            root,
        )

    def price(self, world_size: int, nbytes: int) -> int:
        """Bytes that the ranks together may send, for a tensor of `nbytes` bytes on each rank."""
        return price(self._collective.op, world_size, nbytes)


def price(op: str, world_size: int, nbytes: int) -> int:
    """allreduce: 2(N - 1) tensors, padded to whole chunks; broadcast: N - 1 tensors."""
    if op == "broadcast":
        return (world_size - 1) * nbytes
    return 2 * (world_size - 1) * (nbytes + 8 * world_size)


def outcome(collective: planted.Planted, inputs: list[Tensor], root: int) -> Outcome:
    """Run it once."""
    n = len(inputs)
    meshes: list[Mesh] = []

    def program(mesh: Mesh) -> Any:
        meshes.append(mesh)
        extra = (root,) if collective.op == "broadcast" else ()
        return collective.function(mesh, inputs[mesh.rank], *extra)

    results, hangs = None, False
    try:
        results, _ = Simulated().run([program] * n, timeout=30.0)
    except Deadlock:
        hangs = True
    sent = [0] * n
    for mesh in meshes:
        sent[mesh.rank] = Trace([mesh.events]).bytes_sent[0]
    return Outcome(hangs, results, sent)


def hunt(functions: Functions, names: list[str]) -> dict[str, Any]:
    """What the reader's finder says about each collective."""
    found = []
    for name in names:
        answer = functions[0](Runner(planted.ALL[name]), planted.ALL[name].op)
        plain = list(answer) if isinstance(answer, (tuple, list)) else answer
        if plain is not None and not isinstance(plain, list):
            plain = [f"a {type(answer).__name__}"]
        found.append(
            plain and [p if isinstance(p, (str, bool, int)) else repr(p)[:100] for p in plain[:9]]
        )
    return {"found": found}


_HUNTS = [
    *(
        Trial(hunt, f"the collective {p.name}", {"names": [p.name]}, n)
        for n, p in enumerate(planted.SHOWN)
    ),
    Trial(hunt, "collectives that are right", {"names": [p.name for p in planted.RIGHT]}, 20),
    *(
        Trial(hunt, f"a collective that is not shown ({n + 1})", {"names": [p.name]}, 30 + n)
        for n, p in enumerate(planted.HIDDEN)
    ),
]


def _is_a_finding(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for found in said["found"]:
        if found is None:
            continue
        good = (
            len(found) == 4
            and found[0] in ("hangs", "wrong", "bytes")
            and type(found[1]) is int
            and type(found[2]) is int
            and isinstance(found[3], bool)
        )
        if not good:
            return Feedback(
                "The answer is not of the form that the contract says.",
                expected='None or ("hangs" | "wrong" | "bytes", world_size, root, strided)',
                came=", ".join(map(str, found)),
            )
    return None


def _hunted(names: Sequence[planted.Planted]) -> TrialJudge:
    wanted = {p.name: p for p in names}

    def judge(trial: Trial, said: dict[str, Any]) -> Feedback | None:
        for name, found in zip(trial.arguments["names"], said["found"], strict=True):
            if name not in wanted:
                continue
            due = wanted[name].fails
            came = tuple(found) if found else None
            if came == due:
                continue
            if due is None:
                return Feedback(
                    f"{name} is right, yet it is accused.",
                    expected="None",
                    came=_finding(came),
                    diagnosis="Padding and rounding are no bugs: run.price says which bytes are "
                    "allowed; compare whole numbers, whose sums are exact."
                    if came and came[0] != "hangs"
                    else "",
                )
            hidden = wanted[name] in planted.HIDDEN
            return Feedback(
                "The bug is not found."
                if came is None
                else "That is not the smallest case in which it fails.",
                expected="a finding" if hidden else _finding(due),
                came=_finding(came),
                diagnosis=_BLIND[due[0], bool(due[2]), due[3]] if came is None or hidden else
                "Smallest means: fewest ranks, then the lowest root, then not strided.",
            )  # fmt: skip
        return None

    return judge


def _finding(found: tuple | None) -> str:
    if found is None:
        return "None"
    what, world_size, root, strided = found
    return f"{what} at world size {world_size}, root {root}{', strided' if strided else ''}"


_BLIND = {
    ("hangs", False, False): "A run that hangs says so: run(...).hangs. Try every world size.",
    ("wrong", False, False): "Try every world size from 1 to 8, lengths that N divides and lengths "
    "that it does not, and other numbers on every rank and in every element.",
    ("wrong", True, False): "Try every root, not only 0, and other numbers on every rank.",
    ("wrong", False, True): "Try a tensor whose elements do not lie side by side: "
    "x[::2] is one, x[::2] + 1 is a new tensor and none. And let its elements differ: with equal "
    "ones, wrong places hold right numbers.",
    ("wrong", True, True): "Try a strided tensor with every root.",
    ("bytes", False, False): "The numbers are right; look at bytes_sent, too.",
}


EXERCISE = TrialExercise(
    name="bug_hunt_collectives",
    title="Bug hunt: six collectives, six bugs",
    chapter="when_training_stalls",
    minutes=45,
    functions={"find_bug": ("run", "op")},
    cases=_HUNTS,
    checks=(
        ("form", "the answers are findings", _is_a_finding),
        ("found", "the six bugs, each at its smallest case", _hunted(planted.SHOWN)),
        ("innocent", "collectives that are right are not accused", _hunted(planted.RIGHT)),
        ("hidden", "other bugs, which you have not seen", _hunted(planted.HIDDEN)),
    ),
    deadline_s=10.0,
)
