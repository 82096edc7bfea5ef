"""The command line: grade, --watch, --json, --html, exercises, reset."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minidist.cli import main
from minidist.grading import EXERCISES, workspace

FOLDER = Path(__file__).parents[2] / "exercises"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A copy of exercises/ as a reader starts with it, and the current folder in it."""
    shutil.copytree(FOLDER, tmp_path / "exercises", ignore=shutil.ignore_patterns("*.bak", ".p*"))
    for name in EXERCISES:
        file = tmp_path / "exercises" / name / "exercise.py"
        file.write_text(workspace.stub(FOLDER, name))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "exercises"


def test_grade_says_what_fails_and_writes_files(course, capsys):
    assert main(["grade", "broadcast", "--json", "out.json", "--html", "out.html"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  runs" in shown
    assert "not yet, fails at runs" in shown
    assert "\x1b[" not in shown  # this is no terminal
    report = json.loads(Path("out.json").read_text())
    assert report["passed"] is False
    assert report["exercises"][0]["exercise"] == "broadcast"
    states = [c["state"] for c in report["exercises"][0]["checks"]]
    assert states[:4] == ["passed", "passed", "failed", "not reached"]
    assert "NotImplementedError" in Path("out.html").read_text()


def test_page_with_a_run_needs_no_network(course):
    wrong = str(course / "ring_allgather" / "wrong" / "sends_own_row_again.py")
    main(["grade", "ring_allgather", "--file", wrong, "--html", "out.html"])
    text = Path("out.html").read_text()
    assert 'class="player"' in text
    assert "createObjectURL" in text
    assert 'src="http' not in text


def test_passing_is_remembered_for_this_very_text(course, capsys):
    file = course / "ring_allgather" / "exercise.py"
    assert workspace.state(course, "ring_allgather") == "not started"
    file.write_text((course / "ring_allgather" / "solution.py").read_text())
    assert workspace.state(course, "ring_allgather") == "started"
    assert main(["grade", "ring_allgather"]) == 0
    assert workspace.state(course, "ring_allgather") == "passed"
    capsys.readouterr()
    assert main(["exercises"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("ring_allgather" in line and "passed" in line for line in lines)
    file.write_text(file.read_text() + "# changed\n")
    assert workspace.state(course, "ring_allgather") == "started"


def test_all_must_pass(course, capsys):
    for name in EXERCISES:
        shutil.copy(course / name / "solution.py", course / name / "exercise.py")
    assert main(["grade"]) == 0
    assert f"{len(EXERCISES)} of {len(EXERCISES)} exercises pass" in capsys.readouterr().out
    (course / "broadcast" / "exercise.py").write_text("nonsense")
    assert main(["grade", "broadcast", "ring_allgather"]) == 1
    assert "1 of 2 exercises pass" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["grade", "ring"], ["grade", "--file", "x.py"], ["grade", "broadcast", "--file", "no.py"],
     ["reset", "ring"]],
)  # fmt: skip
def test_wrong_arguments(course, capsys, arguments):
    assert main(arguments) == 2
    assert capsys.readouterr().err


PLAIN = b"def broadcast(mesh, tensor, src):\n    return tensor.clone()\n"


@pytest.mark.parametrize(
    ("content", "check"),
    [(b"\xff\xfe\x00 no text", "loads"), (b"", "loads"), (b"x = '\0'\n", "loads"),
     (b"\xef\xbb\xbf" + PLAIN, "values"), (b"# coding: latin-1\n# \xe9\n" + PLAIN, "values")],
    ids=["binary", "empty", "null", "with a mark of order", "latin-1"],
)  # fmt: skip
def test_files_are_read_as_python_reads_them(course, content, check, capsys):
    file = course / "broadcast" / "exercise.py"
    file.write_bytes(content)
    assert main(["grade", "broadcast"]) == 1
    assert f"FAIL  {check}" in capsys.readouterr().out
    assert workspace.state(course, "broadcast") == "started"
    assert main(["reset", "broadcast"]) == 0
    assert [backup.read_bytes() for backup in file.parent.glob("*.bak")] == [content]


def test_reset_keeps_what_the_reader_wrote(course, capsys):
    file = course / "broadcast" / "exercise.py"
    stub = file.read_text()
    assert main(["reset", "broadcast"]) == 0
    assert "nothing of yours" in capsys.readouterr().out
    for text in ("mine\n", "mine, second try\n"):  # twice in one second: two backups
        file.write_text(text)
        assert main(["reset", "broadcast"]) == 0
        assert file.read_text() == stub
    backups = {b.read_text() for b in file.parent.glob("*.bak")}
    assert backups == {"mine\n", "mine, second try\n"}


def test_grading_never_writes_to_the_readers_file(course):
    file = course / "broadcast" / "exercise.py"
    file.write_text(f"open({str(file)!r}).read()\ndef broadcast(mesh, tensor, src): return tensor")
    before = file.read_text(), file.stat().st_mtime_ns
    main(["grade", "broadcast"])
    assert (file.read_text(), file.stat().st_mtime_ns) == before


class Watching:
    """`grade --watch` in a process of its own, its lines with the time at which they came."""

    def __init__(self, course, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "minidist", "grade", "broadcast", "--watch"],
            cwd=course,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)

    def until(self, words, seconds=60.0):
        """The lines up to one with `words`, or a failure."""
        deadline, seen = time.monotonic() + seconds, []
        while words not in "".join(seen):
            seen.append(self.lines.get(timeout=max(0.1, deadline - time.monotonic())))
        return "".join(seen)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()


def test_watch_grades_at_each_save_and_survives_half_written_files(course):
    file = course / "broadcast" / "exercise.py"
    solution = (course / "broadcast" / "solution.py").read_text()
    with Watching(course) as watching:
        assert "not yet, fails at runs" in watching.until("Watching;")

        file.write_text(solution[:-40] + "(((\n")  # in the middle of typing
        saved = time.monotonic()
        assert "FAIL  loads" in watching.until("FAIL")
        assert time.monotonic() - saved < 20  # well under a second where nothing else runs
        watching.until("Watching;")

        file.unlink()
        time.sleep(0.5)  # it looks at a file that is not there
        scratch = file.with_name("exercise.py.new")  # as editors save: write aside, then rename
        scratch.write_text(solution)
        scratch.replace(file)
        assert "broadcast: passed" in watching.until("Watching;")

        watching.process.send_signal(signal.SIGINT)
        assert watching.process.wait(timeout=30) == 0
    rest = ""
    while not watching.lines.empty():
        rest += watching.lines.get()
    assert "Traceback" not in rest


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch):
    from minidist.grading.report import Paint

    class Terminal:
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Paint.for_stream(Terminal()).good("x") != "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Paint.for_stream(Terminal()).good("x") == "x"
