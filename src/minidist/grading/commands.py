"""The commands grade, exercises and reset."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from minidist.grading import workspace
from minidist.grading.exercises import EXERCISES
from minidist.grading.grade import grade_file
from minidist.grading.page import page
from minidist.grading.report import CheckResult, Paint, Report, check_line, closing

LOOK_EVERY_S = 0.2  # --watch looks at the files' times this often
NO_FOLDER = (
    "There is no exercises/ folder here or in a folder above. Change into the course's folder, or "
    'name a file with --file. In a notebook: from minidist.grading import check; check("NAME", fn).'
)


def add_commands(subparsers: Any) -> None:
    """Add `grade`, `exercises` and `reset` to the command line."""
    grade = subparsers.add_parser("grade", help="grade exercises")
    grade.add_argument("exercise", nargs="*", metavar="EXERCISE", help="all, if none is named")
    grade.add_argument("--file", type=Path, help="grade this file instead of exercise.py")
    grade.add_argument("--watch", action="store_true", help="grade again whenever a file is saved")
    grade.add_argument("--json", type=new_file, metavar="FILE", help="write the reports there")
    grade.add_argument("--html", type=new_file, metavar="FILE", help="a page with your run drawn")
    grade.set_defaults(run=_grade)

    listing = subparsers.add_parser("exercises", help="list the exercises and how far you are")
    listing.add_argument("--json", type=new_file, metavar="FILE", help="write the list there")
    listing.set_defaults(run=_exercises)

    reset = subparsers.add_parser("reset", help="start an exercise afresh, keeping your file")
    reset.add_argument("exercise", metavar="EXERCISE")
    reset.set_defaults(run=_reset)


def _grade(arguments: argparse.Namespace) -> int:
    names = arguments.exercise or list(EXERCISES)
    for name in names:
        if name not in EXERCISES:
            return _wrong(f"There is no exercise {name!r}; there are {', '.join(EXERCISES)}.")
    if arguments.file and len(names) != 1:
        return _wrong("--file needs the name of the one exercise that the file answers.")
    folder = workspace.find_folder()
    if arguments.file:
        files = {names[0]: arguments.file}
    elif folder is None:
        return _wrong(NO_FOLDER)
    else:
        files = {name: workspace.exercise_file(folder, name) for name in names}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if missing:
        return _wrong(f"There is no file {', '.join(missing)}.")
    if arguments.watch:
        return _watch(files, arguments.json, arguments.html)
    return _grade_all(files, arguments.json, arguments.html)


def _grade_all(files: dict[str, Path], json_file: Path | None, html_file: Path | None) -> int:
    reports = [_grade_one(name, file) for name, file in files.items()]
    if len(reports) > 1:
        print(f"\n{sum(r.passed for r in reports)} of {len(reports)} exercises pass.")
    if json_file:
        everything = {
            "passed": all(r.passed for r in reports),
            "exercises": [r.to_json() for r in reports],
        }
        json_file.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    if html_file:
        html_file.write_text(page(reports), encoding="utf-8")
    return 0 if all(r.passed for r in reports) else 1


def _grade_one(name: str, file: Path) -> Report:
    paint = Paint.for_stream(sys.stdout)
    print(f"{paint.strong(EXERCISES[name].title)}  {paint.dim(str(file))}", flush=True)

    def progress(check: CheckResult) -> None:
        print(check_line(check, paint), flush=True)

    text = workspace.read(file)
    report = grade_file(name, file, progress)
    print(closing(report, paint) + "\n", flush=True)
    if report.passed and file.name == "exercise.py" and file.parent.name == name:
        workspace.remember_passed(file.parent.parent, name, text)
    return report


def _watch(files: dict[str, Path], json_file: Path | None, html_file: Path | None) -> int:
    """Grade again whenever one of the files was saved; Ctrl-C ends it."""
    good = False
    seen: dict[Path, tuple[int, int] | None] = {}
    try:
        while True:
            times = {file: _stamp(file) for file in files.values()}
            changed = {n: f for n, f in files.items() if times[f] and times[f] != seen.get(f)}
            seen.update(times)
            if changed:
                try:
                    good = _grade_all(changed, json_file, html_file) == 0
                except FileNotFoundError:  # an editor replaces it, or it was deleted
                    print("The file has gone; it is graded when it is there again.")
                    continue
                print("Watching; save the file to grade it again, Ctrl-C to stop.", flush=True)
            time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        print()
        return 0 if good else 1


def _stamp(file: Path) -> tuple[int, int] | None:
    """Changes when the file is saved; None while an editor has it replaced half-way."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _exercises(arguments: argparse.Namespace) -> int:
    folder = workspace.find_folder()
    rows = [
        {
            "exercise": e.name,
            "title": e.title,
            "chapter": e.chapter,
            "minutes": e.minutes,
            "state": workspace.state(folder, e.name) if folder else "no folder here",
        }
        for e in EXERCISES.values()
    ]
    for row in rows:
        print(f"{row['exercise']:20} {row['state']:12} {row['minutes']:3} min  {row['title']}")
        print(f"{'':20} {'':12} {'':3}      chapter {row['chapter']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    name = arguments.exercise
    if name not in EXERCISES:
        return _wrong(f"There is no exercise {name!r}; there are {', '.join(EXERCISES)}.")
    folder = workspace.find_folder()
    if folder is None:
        return _wrong(NO_FOLDER)
    backup = workspace.reset(folder, name)
    kept = f"your file is now {backup}" if backup else "there was nothing of yours to keep"
    print(f"{workspace.exercise_file(folder, name)} is as at the start; {kept}.")
    return 0


def new_file(text: str) -> Path:
    """The argument of --json and --html; said to be wrong before the work and not after it."""
    file = Path(text)
    there = file if file.exists() else file.parent
    if file.is_dir() or not file.parent.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} is no file that can be written")
    return file


def _wrong(text: str) -> int:
    print(text, file=sys.stderr)
    return 2
