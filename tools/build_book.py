"""Builds the book into _build/html and never leaves anything stale in it.

Three layers remember things between builds, and each is told when to forget:

- the executed cells (_build/.jupyter_cache) know a page's cells only, so they are dropped when
  anything changes that running a cell can see: the package and the installed versions;
- Sphinx's parsed pages (_build/.doctrees) and the written pages (_build/html) are dropped with
  them, and also when the configuration, the table of contents or our extensions change;
- after a failed or broken-off build the parsed pages go too: Sphinx reports a warning once, when it
  reads a page, so a second try would pass in silence.

An edited page is thus read, run and written alone. Warnings are errors.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import notebooks
from jupyter_book.sphinx import build_sphinx

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
BUILD = ROOT / "_build"
SEEN_BY_CELLS = ["src", "requirements.txt", "pyproject.toml"]
SEEN_BY_PAGES = ["_config.yml", "book/_toc.yml", "book/_ext", "book/assets", "book/references.bib"]
SKIP = {"__pycache__", "mathjax", ".ipynb_checkpoints"}


def files_under(names: list[str]) -> list[Path]:
    files = []
    for name in names:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            parts = file.relative_to(ROOT).parts
            skip = SKIP.intersection(parts) or any(part.endswith(".egg-info") for part in parts)
            if file.is_file() and not skip:
                files.append(file)
    return files


def key(names: list[str], *more: str) -> str:
    """A hash of the named files and folders (and of `more`)."""
    digest = hashlib.sha256("\n".join(more).encode())
    for file in files_under(names):
        digest.update(f"\n{file.relative_to(ROOT)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def installed() -> str:
    """Name and version of every installed package, and of Python."""
    pairs = {f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()}
    return "\n".join([sys.version, *sorted(pairs)])


def keys() -> dict[str, str]:
    cells = key(SEEN_BY_CELLS, installed())
    return {"cells": cells, "pages": key(SEEN_BY_PAGES, cells)}


def whole_key() -> str:
    """What the finished book was made from, the chapters themselves included."""
    return key(["book", "tools"], *keys().values())


def recorded(name: str) -> str:
    file = BUILD / f".{name}.key"
    return file.read_text() if file.is_file() else ""


def record(name: str, value: str) -> None:
    BUILD.mkdir(exist_ok=True)
    (BUILD / f".{name}.key").write_text(value)


def forget(*names: str) -> None:
    for name in names:
        shutil.rmtree(BUILD / name, ignore_errors=True)


def run_sphinx() -> int | Exception:
    """What `jupyter-book build book -W -n --keep-going` does; 0 when all went well."""
    return build_sphinx(
        BOOK,
        BUILD / "html",
        path_config=ROOT / "_config.yml",
        noconfig=True,
        confoverrides={
            "external_toc_path": str(BOOK / "_toc.yml"),
            "latex_individualpages": False,
            "nitpicky": True,
        },
        warningiserror=True,
        keep_going=True,
    )


def is_up_to_date() -> bool:
    return (BUILD / "html" / "index.html").is_file() and recorded("whole") == whole_key()


def build() -> int:
    """Build what is stale; 0 if the book stands, 1 if not."""
    now = keys()
    if now["cells"] != recorded("cells"):
        forget(".jupyter_cache", "jupyter_execute")
    if now["pages"] != recorded("pages"):
        forget(".doctrees", "html", "dark_figures")
    if not recorded("whole"):
        forget(".doctrees")
    for name, value in {**now, "whole": ""}.items():
        record(name, value)
    if run_sphinx():
        print("\nThe book was not built: the messages above are errors.", file=sys.stderr)
        return 1
    try:
        notebooks.write_all()
    except ValueError as fault:
        print(f"\nThe book was not built: {fault}", file=sys.stderr)
        return 1
    record("whole", whole_key())
    return 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One build at a time: a second one waits, and then finds the book up to date."""
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / ".lock", "w") as file:
        with contextlib.suppress(ImportError):  # not on Windows
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("Another build is at work in this folder; waiting for it.", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    with alone():
        return build_if_stale()


def build_if_stale() -> int:
    start = time.monotonic()
    if is_up_to_date():
        print("The book is up to date.")
    elif build():
        return 1
    else:
        print(f"\nBuilt in {time.monotonic() - start:.0f} s.")
    print(f"Open {(BUILD / 'html' / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
