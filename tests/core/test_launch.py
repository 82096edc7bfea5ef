"""run(): from everywhere, whatever the ranks do, and nothing is left behind.

Functions for ranks are defined inside the tests: they travel by value, so that a rank need not
import this file.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from minidist import (
    MeshError,
    MessageMismatch,
    PeerLost,
    RankFailed,
    RecvTimeout,
    RunTimeout,
    launch,
    ring_allreduce,
    run,
)

BOTH = pytest.mark.parametrize("transport", ["queue", "simulated"])
AT_ONCE_S = 20.0  # far below the timeouts of run() and recv(), enough for a busy machine


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Start the server that ranks are forked from, so that it does not count as left behind."""
    run(lambda mesh: None, 2)


@pytest.fixture(autouse=True)
def nothing_left_behind(warm, tmp_path, monkeypatch):
    """No process, thread, file descriptor, temporary file or semaphore outlives its test."""
    ours = f"mp-test-{os.getpid()}"
    monkeypatch.setitem(multiprocessing.current_process()._config, "semprefix", f"/{ours}")
    folder = tmp_path / "temporary files"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def what_there_is():
        gc.collect()
        return {
            "processes": len(descendants(os.getpid())),
            "threads": sorted(t.name for t in threading.enumerate()),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "temporary files": os.listdir(folder),
            "semaphores": [name for name in os.listdir("/dev/shm") if ours in name],
        }

    before = what_there_is()
    yield
    assert eventually(lambda: what_there_is() == before), (before, what_there_is())


def descendants(pid):
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended since
            state, parent = Path("/proc", entry, "stat").read_text().rsplit(")")[-1].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry))
    found, todo = set(), [pid]
    while todo:
        fresh = children.get(todo.pop(), [])
        found.update(fresh)
        todo += fresh
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def eventually(holds, seconds=AT_ONCE_S):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def assert_all_end(processes):
    try:
        assert eventually(lambda: not any(map(alive, processes)))
    finally:
        for pid in filter(alive, processes):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def raises_at_once(error, match):
    start = time.monotonic()
    with pytest.raises(error, match=match) as raised:
        yield raised
    assert time.monotonic() - start < AT_ONCE_S


def python(code, *args, **options):
    """Start `code` as a script of its own."""
    script = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, args)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(script, start_new_session=True, **options)


# The ordinary run


@BOTH
def test_results_inputs_and_arguments(transport):
    def fn(mesh, x, factor, offset):
        return mesh.rank, mesh.world_size, x * factor + offset

    result = run(fn, 3, 10, 5, inputs=[1, 2, 3], transport=transport)
    assert result.results == [(0, 3, 15), (1, 3, 25), (2, 3, 35)]
    assert len(result.trace) == 0 and result.trace.world_size == 3


def test_a_lambda_a_closure_and_a_class_of_this_file():
    class Payload:
        def __init__(self, value):
            self.value = value

    shift = 5
    assert run(lambda mesh: mesh.rank + shift, 2).results == [5, 6]
    results = run(lambda mesh, p: Payload(p.value + mesh.rank), 2, Payload(7)).results
    assert [p.value for p in results] == [7, 8]


def test_one_thread_per_rank_and_a_warm_call_does_not_import_torch_again():
    def fn(mesh):
        return torch.get_num_threads(), os.getpid(), time.process_time()

    seconds = []
    for _ in range(5):
        start = time.monotonic()
        results = run(fn, 4).results
        seconds.append(time.monotonic() - start)
    print(f"warm calls with 4 ranks: {', '.join(f'{s:.3f}' for s in seconds)} s")
    threads, pids, cpu_seconds = zip(*results, strict=True)
    assert threads == (1, 1, 1, 1)
    assert len({*pids, os.getpid()}) == 5
    assert max(cpu_seconds) < 0.5  # importing torch takes more


def test_after_a_large_operation_and_a_backward_in_the_parent():
    w = torch.randn(600, 600, requires_grad=True)
    (w @ w).sum().backward()
    x = torch.randn(600, 600)
    outputs = run(lambda mesh: (x @ x).sum().item(), 2).results
    assert outputs == pytest.approx([(x @ x).sum().item()] * 2, rel=1e-3)


def test_results_that_require_grad_and_views():
    def fn(mesh):
        w = torch.ones(3, requires_grad=True)
        return w, (w * 2).sum().detach(), torch.arange(6.0).reshape(2, 3).t()

    w, total, view = run(fn, 2).results[1]
    assert w.requires_grad and w.is_leaf
    assert total == 6 and torch.equal(view, torch.arange(6.0).reshape(2, 3).t())


def test_large_results_and_large_arguments():
    x = torch.arange(10_000_000, dtype=torch.float32)
    results = run(lambda mesh, x: x + mesh.rank, 2, x).results
    assert torch.equal(results[1], x + 1)


def test_process_group():
    def fn(mesh):
        x = torch.ones(3) * (mesh.rank + 1)
        torch.distributed.all_reduce(x)
        return x.tolist(), torch.distributed.get_rank()

    results = run(fn, 3, process_group="gloo").results
    assert results == [([6.0] * 3, rank) for rank in range(3)]


@BOTH
def test_two_runs_at_the_same_time_from_two_threads(transport, capsys):
    def fn(mesh, x):
        print("start", flush=True)
        time.sleep(0.02)  # let the other threads go on
        for _ in range(20):
            x = ring_allreduce(mesh, x) / mesh.world_size
        return x

    results = {}

    def one(number):
        x = torch.full((5,), float(number))
        results[number] = run(fn, 3, x, transport=transport).results

    stdout = sys.stdout
    threads = [threading.Thread(target=one, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.stdout is stdout
    for number in range(3):
        assert all(torch.equal(x, torch.full((5,), float(number))) for x in results[number])
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        f"[rank {r}] start" for r in [0, 1, 2] * 3
    )


def test_run_on_a_rank_is_refused_but_a_simulated_one_works():
    def nested(mesh):
        return run(lambda inner: inner.rank, 2).results

    def simulated(mesh):
        return run(lambda inner: inner.rank, 2, transport="simulated").results

    with raises_at_once(RankFailed, r"run\(\) on a rank.*transport=\"simulated\""):
        run(nested, 2)
    assert run(simulated, 2).results == [[0, 1]] * 2
    assert run(simulated, 2, transport="simulated").results == [[0, 1]] * 2
    assert run(nested, 2, transport="simulated").results == [[0, 1]] * 2


# What is wrong before anything starts


def test_wrong_arguments():
    def fn(mesh):
        return mesh.rank

    with pytest.raises(ValueError, match="world_size is 0; a run needs at least one rank"):
        run(fn, 0)
    with pytest.raises(ValueError, match="2 inputs for 3 ranks: give one per rank"):
        run(fn, 3, inputs=[1, 2])
    with pytest.raises(ValueError, match="transport is 'carrier pigeon'; there are"):
        run(fn, 2, transport="carrier pigeon")
    with pytest.raises(ValueError, match="no process group"):
        run(fn, 2, transport="simulated", process_group="gloo")
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot travel to a rank's process: .*lock"):
        run(lambda mesh: lock, 2)


# Ranks that fail

others_wait = r"(?s).*At that moment:.*rank {}: recv from rank 1, step 0"


def test_a_rank_that_raises():
    def fn(mesh):
        if mesh.rank == 1:
            time.sleep(1.5)  # until the others wait
            x = {"a": 1}
            return x["b"]  # the line to be shown
        mesh.recv(1)

    with raises_at_once(RankFailed, r"^rank 1 raised KeyError: 'b'") as raised:
        run(fn, 3)
    text = str(raised.value)
    assert 'return x["b"]  # the line to be shown' in text
    assert "test_launch.py" in text and "_rank.py" not in text  # its own lines, not the launcher's
    assert "rank 0: recv from rank 1, step 0" in text
    assert "rank 2: recv from rank 1, step 0" in text
    assert isinstance(raised.value.__cause__, KeyError)
    # Notebooks keep the last error, and with it the frames that it went through.
    assert not [name for name in os.listdir("/dev/shm") if f"mp-test-{os.getpid()}" in name]


def test_a_simulated_rank_that_raises():
    def fn(mesh):
        if mesh.rank == 1:
            return {}["b"]
        mesh.recv(1)

    with raises_at_once(RankFailed, r"^rank 1 raised KeyError: 'b'") as raised:
        run(fn, 3, transport="simulated")
    assert isinstance(raised.value.__cause__, KeyError)


DEATHS = {
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
    "os._exit(0)": (lambda: os._exit(0), r"left with exit code 0 \(sys.exit or os._exit\?\)"),
    "os._exit(7)": (lambda: os._exit(7), "left with exit code 7"),
    "abort": (os.abort, "killed by SIGABRT"),
    "segmentation fault": (lambda: __import__("ctypes").string_at(0), "killed by SIGSEGV"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_rank_that_dies(death):
    die, says = DEATHS[death]

    def fn(mesh):
        if mesh.rank == 1:
            time.sleep(1.5)  # until the others wait
            die()
        mesh.recv(1)

    with raises_at_once(PeerLost, f"^rank 1 ended before its function returned: .*{says}") as error:
        run(fn, 3)
    assert "rank 0: recv from rank 1, step 0" in str(error.value)
    assert "rank 2: recv from rank 1, step 0" in str(error.value)


def test_a_rank_that_dies_while_its_child_holds_the_pipe_open(tmp_path):
    file = tmp_path / "pid"

    def fn(mesh):
        if mesh.rank == 1:
            if (pid := os.fork()) == 0:
                time.sleep(60)
            file.write_text(str(pid))
            os._exit(3)
        mesh.recv(1)

    with raises_at_once(PeerLost, "rank 1 ended .* exit code 3"):
        run(fn, 2)
    assert eventually(lambda: not alive(int(file.read_text())))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only its process group is ended")
def test_what_leaves_a_ranks_process_group_is_ended_too():
    def fn(mesh):
        sleep = subprocess.Popen(["sleep", "60"], start_new_session=True).pid
        script = "sleep 60 >/dev/null & echo $!"  # its parent ends at once
        orphan = subprocess.check_output(["sh", "-c", script], start_new_session=True)
        return sleep, int(orphan)

    assert_all_end([pid for pids in run(fn, 2).results for pid in pids])


@BOTH
@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_calls_sys_exit(transport, code):
    def fn(mesh):
        if mesh.rank == 1:
            sys.exit(code)
        mesh.recv(1)

    with raises_at_once(RankFailed, f"^rank 1 raised SystemExit: {code}"):
        run(fn, 2, transport=transport)


def loop_in_python():
    while True:
        pass


def loop_in_torch():
    x = torch.ones(100)
    while True:
        x = x * 1.0


HANGS = {
    "python": (loop_in_python, "in its own code, loop_in_python at test_launch.py"),
    "torch": (loop_in_torch, "in its own code, loop_in_torch at test_launch.py"),
    "sleep": (lambda: time.sleep(60), "in its own code, <lambda> at test_launch.py"),
    "holds the GIL": (lambda: sum(range(10**12)), "does not answer"),
}


@pytest.mark.parametrize("hang", HANGS)
def test_a_rank_that_hangs(hang):
    work, doing = HANGS[hang]
    by_value = type(work)(work.__code__, {"torch": torch, "time": time}, work.__name__)

    def fn(mesh):
        if mesh.rank == 1:
            by_value()

    with raises_at_once(RunTimeout, r"^rank 1 had not returned after 3 s") as raised:
        run(fn, 3, timeout=3)
    assert f"rank 1: {doing}" in str(raised.value)
    assert "ranks 0, 2: returned already" in str(raised.value)


@pytest.mark.parametrize("hang", ["python", "torch"])
def test_a_simulated_rank_that_hangs(hang):
    work, doing = HANGS[hang]

    def fn(mesh):
        if mesh.rank == 1:
            work()
        elif mesh.rank == 0:
            mesh.recv(1)

    with raises_at_once(RunTimeout, r"^rank 1 had not returned after 1.5 s") as raised:
        run(fn, 3, timeout=1.5, transport="simulated")
    assert doing in str(raised.value)
    assert "rank 0: recv from rank 1, step 0" in str(raised.value)
    time.sleep(0.6)  # the interrupt of an ended run must not arrive later


def test_a_simulated_rank_that_swallows_every_exception_still_ends():
    def fn(mesh):
        while True:
            with contextlib.suppress(Exception):
                mesh.send(1 - mesh.rank, torch.ones(1))

    with raises_at_once(RunTimeout, "had not returned after 0.3 s"):
        run(fn, 2, timeout=0.3, transport="simulated")


def test_a_simulated_run_that_is_done_in_time_is_never_interrupted():
    for _ in range(50):
        with contextlib.suppress(RunTimeout):
            run(lambda mesh: time.sleep(0.001), 2, timeout=0.002, transport="simulated")
    time.sleep(0.05)


def test_a_rank_that_prints_for_ever(capsys):
    def fn(mesh):
        while mesh.rank == 1:
            print("again\n" * 2000, end="")  # faster than anyone can show it

    with raises_at_once(RunTimeout, r"^rank 1 had not returned after 3 s"):
        run(fn, 2, timeout=3)
    assert "[rank 1] again" in capsys.readouterr().out


@BOTH
def test_a_rank_that_returns_early(transport):
    def fn(mesh):
        if mesh.rank != 1:
            mesh.recv(1)

    with raises_at_once(MeshError, "which has already finished") as raised:
        run(fn, 3, timeout=3, transport=transport)
    assert "rank 0: recv from rank 1, step 0 (which has already finished)" in str(raised.value)


def test_a_message_that_never_comes():
    def fn(mesh):
        if mesh.rank == 2:
            time.sleep(1.5)  # until the others have begun
            mesh.send(0, torch.ones(1))
            mesh.recv(1)
        time.sleep(6)

    says = r"^rank 2 waited 0.2 s for a message from rank 1 at step 1\. .*recv_timeout_ms"
    with raises_at_once(RecvTimeout, says) as raised:
        run(fn, 3, recv_timeout_ms=200)
    assert "rank 1: in its own code, fn at test_launch.py" in str(raised.value)


# Results and errors that cannot travel


def test_results_that_cannot_travel():
    def lock(mesh):
        return __import__("threading").Lock()

    def trap(mesh):
        class Trap:
            def __reduce__(self):
                return (eval, ("1 / 0",))

        return Trap()

    with raises_at_once(RankFailed, "rank 0 raised TypeError: cannot pickle '_thread.lock'"):
        run(lock, 1)
    with raises_at_once(RankFailed, "rank 0 returned what cannot be rebuilt here: ZeroDivision"):
        run(trap, 1)


@BOTH
def test_errors_that_cannot_travel(transport):
    class Needy(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    class Locked(Exception):
        def __init__(self):
            super().__init__("locked")
            self.lock = __import__("threading").Lock()

    def needy(mesh):
        raise Needy(1, 2)

    def locked(mesh):
        raise Locked

    with raises_at_once(RankFailed, "rank 0 raised .*Needy: 1 and 2"):
        run(needy, 1, transport=transport)
    with raises_at_once(RankFailed, "rank 0 raised .*Locked: locked"):
        run(locked, 1, transport=transport)


@BOTH
def test_a_mesh_error_of_ones_own(transport):
    class Mine(MessageMismatch):
        def __init__(self, a, b):
            super().__init__(f"{a} is not {b}")

    def fn(mesh):
        raise Mine(1, 2)

    with raises_at_once(MeshError, "1 is not 2"):
        run(fn, 1, transport=transport)


# What ranks print


@BOTH
def test_prints_of_ranks(transport, capsys):
    def fn(mesh):
        print("one", mesh.rank)
        print("two", end=" ")
        print("parts")
        print()
        print("first\nsecond")
        if mesh.rank == 1:
            print("\udce4 \u2028 ä 漢")  # half a character, and one that only looks like a line end
            print("x" * 300_000)
        print("unfinished", end="")

    run(fn, 2, transport=transport)
    out = capsys.readouterr().out
    for rank in range(2):
        lines = [line for line in out.split("\n") if line.startswith(f"[rank {rank}]")]
        texts = [line.removeprefix(f"[rank {rank}] ") for line in lines]
        assert texts[:5] == [f"one {rank}", "two parts", "", "first", "second"]
        assert texts[-1] == "unfinished"
        if rank == 1:
            assert texts[5].endswith("\u2028 ä 漢") and len(texts[6]) == 300_000
    assert all(line.startswith("[rank ") for line in out.split("\n")[:-1])


def test_prints_of_a_rank_that_fails_come_before_its_error(capsys):
    def fn(mesh):
        print("last words", end="")
        raise ValueError

    with pytest.raises(RankFailed):
        run(fn, 1)
    assert capsys.readouterr().out == "[rank 0] last words\n"


@BOTH
def test_a_rank_that_replaces_stdout(transport):
    def fn(mesh):
        import io
        import sys

        sys.stdout = io.StringIO()
        sys.stdout.close()
        return 1

    stdout = sys.stdout
    assert run(fn, 1, transport=transport).results == [1]
    assert sys.stdout is stdout


# Where it is called from


def test_from_a_notebook(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    cells = [
        """
        import time
        import torch
        from minidist import RankFailed, ring_allreduce, run

        w = torch.randn(1500, 1500, requires_grad=True)
        (w @ w).relu().sum().backward()  # now this process has busy thread pools
        """,
        """
        shift = 5

        class Shift:
            def __init__(self, by):
                self.by = by

        def mean(mesh, x, by):
            y = torch.randn(300, 300, requires_grad=True)
            (y @ y).sum().backward()
            print("on rank", mesh.rank)
            return ring_allreduce(mesh, x * (mesh.rank + 1)) / mesh.world_size + shift + by.by

        print(run(mean, 3, torch.ones(2), Shift(1)).results)
        """,
        """
        def broken(mesh):
            if mesh.rank == 1:
                time.sleep(0.7)
                nothing = None
                nothing.append(1)  # the line of this cell
            mesh.recv(1)

        try:
            run(broken, 2)
        except RankFailed as error:
            print(error)
        """,
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells]
    )
    file = tmp_path / "notebook.ipynb"
    nbformat.write(notebook, file)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", "--inplace", "--timeout=60", file],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    notebook = nbformat.read(file, as_version=4)
    texts = ["".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells]
    assert sorted(texts[1].splitlines()[:-1]) == [f"[rank {r}] on rank {r}" for r in range(3)]
    assert texts[1].splitlines()[-1] == str([torch.full((2,), 8.0)] * 3)
    assert "rank 1 raised AttributeError" in texts[2]
    assert "nothing.append(1)  # the line of this cell" in texts[2]
    assert "rank 0: recv from rank 1, step 0" in texts[2]


def test_from_a_script_without_a_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        from minidist import ring_allreduce, run
        print("script starts")
        def double(mesh, x):
            return ring_allreduce(mesh, x)
        print(run(double, 2, torch.ones(1)).results)
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["script starts", "[tensor([2.]), tensor([2.])]"]
    assert (done.returncode, done.stderr) == (0, "")


def test_the_parent_is_killed(tmp_path):
    """Each rank does something else that could make it stay; one has started a child."""
    parent = python(
        f"""
        import os, subprocess, time
        from pathlib import Path
        from minidist import run

        def loop():
            while True: pass

        def fn(mesh):
            child = subprocess.Popen(["sleep", "60"]) if mesh.rank == 0 else None
            Path({str(tmp_path)!r}, f"rank{{mesh.rank}}").touch()
            [
                lambda: child.wait(),
                loop,
                lambda: sum(range(10**12)),  # holds the GIL
                lambda: time.sleep(60),
                lambda: mesh.recv(0),
            ][mesh.rank]()

        run(fn, 5)
        """
    )
    assert eventually(lambda: len(list(tmp_path.glob("rank*"))) == 5, 60)
    time.sleep(0.2)
    everyone = descendants(parent.pid)
    assert len(everyone) == 8  # 5 ranks, a child, and the two servers of multiprocessing
    parent.kill()
    parent.communicate()
    assert_all_end(everyone)


def test_the_parent_is_killed_before_the_ranks_have_started():
    parent = python("from minidist import run\nrun(lambda mesh: mesh.recv(1 - mesh.rank), 2)")
    assert eventually(lambda: len(descendants(parent.pid)) >= 2, 60)
    everyone = descendants(parent.pid)
    parent.kill()
    parent.communicate()
    assert_all_end(everyone)


def test_the_parent_is_interrupted(tmp_path):
    parent = python(
        f"""
        import time
        from pathlib import Path
        from minidist import run

        def fn(mesh):
            Path({str(tmp_path)!r}, f"rank{{mesh.rank}}").touch()
            while True: pass

        run(fn, 2)
        """
    )
    assert eventually(lambda: len(list(tmp_path.glob("rank*"))) == 2, 60)
    everyone = descendants(parent.pid)
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal or a notebook does
    out, err = parent.communicate(timeout=30)
    assert err.strip().endswith("KeyboardInterrupt") and "RankFailed" not in err
    assert "[rank" not in out
    assert_all_end(everyone)


def test_the_server_that_ranks_are_forked_from_was_killed():
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    assert run(lambda mesh: mesh.rank, 2).results == [0, 1]


def test_closed_stdout():
    code = "from minidist import run\nrun(lambda mesh: print('hello'), 2)\n"
    done = subprocess.run(
        f'exec {sys.executable} -c "{code}" >&- 2>&- 0<&-', shell=True, timeout=60, check=False
    )
    assert done.returncode == 0


# A machine that refuses


def test_a_temporary_folder_with_a_long_name(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    code = "from minidist import run\nprint(run(lambda mesh: mesh.rank, 2).results)"
    process = python(code, env={**os.environ, "TMPDIR": str(folder)})
    out, err = process.communicate(timeout=60)
    assert out.strip() == "[0, 1]" or "at most 70 characters (TMPDIR" in err
    assert not list(folder.glob("minidist-*"))


def test_too_few_file_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    gaps = [os.dup(0)]
    while gaps[-1] < highest:
        gaps.append(os.dup(0))
    for spare in (10, 60, 100, 120):  # it gives out in the queues, or when the ranks start
        resource.setrlimit(resource.RLIMIT_NOFILE, (gaps[-1] + spare, hard))
        try:
            with pytest.raises(OSError, match=r"could not start 8 ranks: .*Too many open files"):
                run(lambda mesh: mesh.rank, 8)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for descriptor in gaps:
        os.close(descriptor)

    def works():  # the server may have died of it, and is started again
        with contextlib.suppress(OSError):
            return run(lambda mesh: mesh.rank, 2).results == [0, 1]

    assert eventually(works)


def test_no_room_for_semaphores(monkeypatch):
    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multiprocessing.synchronize._multiprocessing.SemLock", refuse)
    with pytest.raises(OSError, match=r"could not start 4 ranks: .*No space left.*36 semaphores"):
        run(lambda mesh: mesh.rank, 4)


def test_counting_the_children_of_a_process_that_has_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert launch._children(process.pid) == []
