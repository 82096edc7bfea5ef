"""python -m minidist: what it prints, writes and exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from minidist import cli, verify
from minidist.mesh import MeshError


def test_as_a_module():
    command = [sys.executable, "-m", "minidist", "simulate", "broadcast", "--world-size", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "steps                  3\n" in done.stdout


@pytest.mark.parametrize("collective", cli.SIMULATED)
@pytest.mark.parametrize("world_size", ["1", "5"])
def test_simulate(collective, world_size, tmp_path, capsys):
    file = tmp_path / "answer.json"
    arguments = ["simulate", collective, "--world-size", world_size, "--bytes", "1001"]
    assert cli.main([*arguments, "--alpha", "1", "--beta", "0", "--json", str(file)]) == 0
    answer = json.loads(file.read_text())
    assert answer["seconds"] == answer["closed_form_seconds"] == answer["steps"]
    assert answer["bytes"] == 1001
    uses_chunks = collective in ("ring_allreduce", "reduce_scatter")
    assert answer["padding"] == (4 if uses_chunks and world_size == "5" else 0)
    assert f"steps                  {answer['steps']}\n" in capsys.readouterr().out


def test_simulate_exits_with_1_if_clock_and_formula_disagree(monkeypatch):
    collective, _ = cli.SIMULATED["ring_allreduce"]
    monkeypatch.setitem(
        cli.SIMULATED, "ring_allreduce", (collective, cli.cost.naive_allreduce_cost)
    )
    assert cli.main(["simulate", "ring_allreduce"]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["simulate", "ring_allreduce", "--world-size", "0"], "'0' is not a number of ranks"),
        (["simulate", "ring_allreduce", "--bytes", "much"], "'much' is not a size in bytes"),
        (["simulate", "ring_allreduce", "--alpha", "-1"], "'-1' is not a time in seconds"),
        (["simulate", "ring_allreduce", "--alpha", "soon"], "'soon' is not a time in seconds"),
        (["simulate", "ring_allreduce", "--bytes", "-5"], "'-5' is not a size in bytes"),
        (["simulate", "ring_allreduce", "--bytes", "99999999999G"], "is not a size in bytes"),
        (["simulate", "broadcast", "--world-size", "9" * 30], "is not a number of ranks, 1 to"),
        (["verify", "--world-size", "65"], "is not a number of ranks, 1 to 64"),
        (["simulate", "broadcast", "--json", "/no/such/folder/x"], "no file that can be written"),
        (["doctor", "--json", "/"], "no file that can be written"),
        (["grade", "--html", "/no/such/folder/x"], "no file that can be written"),
        (["simulate", "smoke_signals"], "invalid choice"),
        ([], "required"),
    ],
)
def test_wrong_arguments_exit_with_2_and_say_why(arguments, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("error", [OSError("no disk"), MeshError("no ring")])
def test_what_stops_a_command_is_one_line(error, monkeypatch, capsys):
    def fail():
        raise error

    monkeypatch.setattr(cli, "examine", fail)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == f"python -m minidist: {error}\n"


def test_output_that_nobody_reads_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "minidist", "simulate", "broadcast"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_sizes():
    assert [cli._size(s) for s in ("1000", "64K", "16m", "1G")] == [1000, 65536, 1 << 24, 1 << 30]


def test_verify(tmp_path, capsys):
    file = tmp_path / "rows.json"
    arguments = ["verify", "--world-size", "2", "--json", str(file)]
    assert cli.main([*arguments, "--primitive", "allreduce", "broadcast"]) == 0
    out = capsys.readouterr().out
    assert out.rstrip().endswith("Everything agrees.")
    assert "of padding" in out and out.count("   equal\n") == 2
    rows = json.loads(file.read_text())
    assert [row["op"] for row in rows] == ["allreduce", "broadcast"]
    assert all(row["match"] and row["bytes_agree"] for row in rows)


@pytest.mark.parametrize("fault", ["values", "bytes"])
def test_verify_exits_with_1_on_any_mismatch(fault, monkeypatch, capsys):
    if fault == "values":
        monkeypatch.setattr(verify, "max_abs_diff", lambda ours, theirs: 2e-5)
    else:
        monkeypatch.setattr(verify, "_bytes_sent", lambda *args: 1)
    assert cli.main(["verify", "--world-size", "2", "--primitive", "allreduce"]) == 1
    out = capsys.readouterr().out
    assert ("MISMATCH" in out) == (fault == "values")
    assert ("DIFFERENT" in out) == (fault == "bytes")
    assert out.rstrip().endswith("SOMETHING DISAGREES, see above.")


def test_doctor(tmp_path, capsys):
    file = tmp_path / "findings.json"
    code = cli.main(["doctor", "--json", str(file)])
    findings = json.loads(file.read_text())
    assert code == (0 if all(finding["ok"] for finding in findings) else 1)
    assert all(finding["ok"] or finding["remedy"] for finding in findings)
    out = capsys.readouterr().out
    assert all(finding["name"] in out for finding in findings)
