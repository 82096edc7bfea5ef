"""The exercises/ folder: finding it, reading it, and never overwriting what a reader wrote."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import time
from pathlib import Path

import minidist
from minidist.grading.exercises import EXERCISES

_PASSED = ".passed.json"  # exercise -> hash of the file that passed


def find_folder(start: Path | None = None) -> Path | None:
    """The exercises/ folder of the course: here, in a parent, or where the package comes from."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        for candidate in (folder, folder / "exercises"):
            if _is_exercises(candidate):
                return candidate
    repository = Path(minidist.__file__).resolve().parents[2] / "exercises"
    return repository if _is_exercises(repository) else None


def _is_exercises(folder: Path) -> bool:
    return folder.name == "exercises" and any(
        (folder / name / "exercise.py").is_file() or (folder / name / "solution.py").is_file()
        for name in EXERCISES
    )


def exercise_file(folder: Path, name: str) -> Path:
    return folder / name / "exercise.py"


def read(file: Path) -> str:
    """A reader's file, to compare and to hash; it may hold anything."""
    return file.read_text(encoding="utf-8", errors="replace")


def stub(folder: Path, name: str) -> str:
    """The file as it was at the start: the solution's contract without its body.

    Where something is to be repaired, the start is broken.py.
    """
    broken = folder / name / "broken.py"
    if broken.is_file():
        return broken.read_text(encoding="utf-8")
    source = (folder / name / "solution.py").read_text(encoding="utf-8")
    lines = source.splitlines()
    functions = [
        lines[node.lineno - 1 : node.body[0].end_lineno]  # up to the end of its docstring
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in EXERCISES[name].functions
    ]
    imports = [
        node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    import_lines = lines[imports[0].lineno - 1 : imports[-1].end_lineno] if imports else []
    docstring = ast.parse(source).body[0]
    head = lines[docstring.lineno - 1 : docstring.end_lineno]
    parts = [*head, "", *import_lines] if imports else head
    for function in functions:
        parts += ["", "", *function, "    raise NotImplementedError"]
    return "\n".join([*parts, ""])


def state(folder: Path, name: str) -> str:
    """'not started', 'started' or 'passed' (passed means: this very text has passed)."""
    file = exercise_file(folder, name)
    if not file.is_file():
        return "missing"
    text = read(file)
    if _passed(folder).get(name) == _hash(text):
        return "passed"
    return "not started" if text == stub(folder, name) else "started"


def remember_passed(folder: Path, name: str, text: str) -> None:
    """Note that this text of the exercise has passed."""
    notes = {**_passed(folder), name: _hash(text)}
    temporary = folder / f"{_PASSED}.{os.getpid()}"
    temporary.write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / _PASSED)


def reset(folder: Path, name: str) -> Path | None:
    """Put the stub back; return where the reader's file went, None if there was nothing to keep."""
    file, fresh = exercise_file(folder, name), stub(folder, name)
    backup = None
    if file.is_file() and read(file) != fresh:
        backup = _free_name(file)
        file.rename(backup)
    if not file.is_file():
        with open(file, "x", encoding="utf-8") as new:
            new.write(fresh)
    return backup


def _free_name(file: Path) -> Path:
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    number = 0
    while True:
        suffix = f"-{number}" if number else ""
        name = file.with_name(f"{file.stem}.{stamp}{suffix}.bak")
        if not name.exists():
            return name
        number += 1


def _passed(folder: Path) -> dict[str, str]:
    try:
        notes = json.loads((folder / _PASSED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
