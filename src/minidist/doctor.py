"""Is this machine able to run the course? Each check that fails says what to do about it."""

from __future__ import annotations

import multiprocessing
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from minidist.collectives import ring_allreduce
from minidist.launch import run
from minidist.mesh import Mesh

OPEN_FILES_WANTED = 512
SHARED_MEMORY_WANTED = 64 << 20


@dataclass(frozen=True)
class Finding:
    """What one check saw, and what to do if it is not well."""

    name: str
    ok: bool
    saw: str
    remedy: str = ""


def examine() -> list[Finding]:
    """All checks, in the order in which a fault would show itself."""
    checks: list[Callable[[], Finding]] = [
        _python,
        _torch,
        _start_method,
        _open_files,
        _shared_memory,
        _first_allreduce,
        _gloo,
    ]
    findings = []
    for check in checks:
        try:
            findings.append(check())
        except Exception as error:
            name = check.__name__.lstrip("_").replace("_", " ")
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            findings.append(
                Finding(name, False, first_line, "run it again; if it stays, report this line")
            )
    return findings


def _python() -> Finding:
    ok = sys.version_info >= (3, 10)
    return Finding("Python", ok, platform.python_version(), "install Python 3.10 or newer")


def _torch() -> Finding:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ok = dist.is_available() and dist.is_gloo_available()
    return Finding(
        "torch",
        ok,
        f"{torch.__version__}, {gpus or 'no'} GPU{'' if gpus == 1 else 's'}",
        "this torch was built without torch.distributed and gloo: install a standard build",
    )


def _start_method() -> Finding:
    ok = "forkserver" in multiprocessing.get_all_start_methods()
    return Finding(
        "start method",
        ok,
        "forkserver" if ok else "spawn only",
        "each run takes seconds here instead of a tenth; on Windows use WSL",
    )


def _open_files() -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("open files", True, "no limit known on this system")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    ok = limit == resource.RLIM_INFINITY or limit >= OPEN_FILES_WANTED
    saw = "unlimited" if limit == resource.RLIM_INFINITY else f"limit {limit}"
    return Finding("open files", ok, saw, f"run `ulimit -n {2 * OPEN_FILES_WANTED}` first")


def _shared_memory() -> Finding:
    if not Path("/dev/shm").is_dir():
        return Finding("shared memory", True, "no /dev/shm on this system, not needed here")
    free = shutil.disk_usage("/dev/shm").free
    return Finding(
        "shared memory",
        free >= SHARED_MEMORY_WANTED,
        f"/dev/shm has {free / 2**20:,.0f} MiB free",
        "in a container, start it with --shm-size=1g",
    )


def _first_allreduce() -> Finding:
    inputs = [torch.arange(1000) * (rank + 1) for rank in range(4)]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        result = run(ring_allreduce, 4, inputs=inputs)
        seconds.append(time.perf_counter() - start)
    right = all(torch.equal(r, torch.arange(1000) * 10) for r in result.results)
    return Finding(
        "ring of 4 processes",
        right,
        f"first {seconds[0]:.2f} s, then {min(seconds[1:]):.2f} s" if right else "wrong sum",
        "the package and torch do not fit together: install both again",
    )


def _gloo() -> Finding:
    results = run(_gloo_sum, 2, process_group="gloo", timeout=20.0).results
    return Finding(
        "gloo on loopback",
        results == [3.0, 3.0],
        "2 processes agree",
        "gloo cannot use the loopback interface: set GLOO_SOCKET_IFNAME to its name (`ip link`)",
    )


def _gloo_sum(mesh: Mesh) -> float:
    one = torch.tensor(float(mesh.rank + 1))
    dist.all_reduce(one)
    return one.item()
