"""Every exercise keeps its own contract: the stub fails, the solution passes, each wrong answer is
refused by the check meant for it, with the sentence written for it."""

import ast
from pathlib import Path

import pytest

from minidist.grading import EXERCISES, grade_file, workspace
from minidist.grading.report import Paint, explain

FOLDER = Path(__file__).parents[2] / "exercises"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/solution.py"))
WRONG = sorted(FOLDER.glob("*/wrong/*.py"))


def constants(path):
    """CHECK and SAYS of a wrong answer, read without running it."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("CHECK", "SAYS")
    }


def test_folders_and_contracts_are_the_same_exercises():
    assert sorted(EXERCISES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_folder_is_complete(name):
    here = FOLDER / name
    assert {"exercise.py", "solution.py", "README.md", "wrong"} <= {p.name for p in here.iterdir()}
    assert len(list((here / "wrong").glob("*.py"))) >= 4
    readme = (here / "README.md").read_text()
    for part in ("## Contract", "## What is graded", "## Hints"):
        assert part in readme
    assert (here / "exercise.py").read_text() == workspace.stub(FOLDER, name), (
        f"exercises/{name}/exercise.py is not as at the start; "
        f"python -m minidist reset {name} puts it back and keeps what is there"
    )


@pytest.mark.parametrize("name", NAMES)
def test_stub_fails(name, tmp_path):
    stub = tmp_path / "exercise.py"
    stub.write_text(workspace.stub(FOLDER, name))
    report = grade_file(name, stub)
    assert not report.passed
    if (FOLDER / name / "broken.py").exists():  # something to repair: it runs, and is wrong
        own = [check for check, _, _ in EXERCISES[name].checks]
        assert report.failed_check.name in own and report.failed_check.feedback.diagnosis
    else:
        assert report.failed_check.name == "runs"
        assert "Nothing is written yet" in report.failed_check.feedback.diagnosis


@pytest.mark.parametrize("name", NAMES)
def test_solution_passes(name):
    report = grade_file(name, FOLDER / name / "solution.py")
    assert report.passed, str(report)
    assert report.printed == ""


@pytest.mark.parametrize("path", WRONG, ids=lambda p: f"{p.parent.parent.name}-{p.stem}")
def test_wrong_answer_is_refused_by_its_check_with_its_sentence(path):
    said = constants(path)
    assert ast.get_docstring(ast.parse(path.read_text()))
    report = grade_file(path.parent.parent.name, path)
    assert report.failed_check is not None, "this wrong answer passes"
    text = explain(report.failed_check.feedback, Paint(False))
    assert report.failed_check.name == said["CHECK"], text
    assert said["SAYS"] in " ".join(text.split())
