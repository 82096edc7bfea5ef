"""What `make` says on a machine where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Stand-ins for a program that lacks something; each is a shell script.
TOO_OLD = 'case "$1" in --version) echo "Python 3.8.1";; *) exit 1;; esac'
NO_VENV = f'case "$*" in *ensurepip*) exit 1;; *) exec "{sys.executable}" "$@";; esac'
NO_PIP = (
    f'case "$*" in "-m venv .venv") mkdir -p .venv/bin; printf "#!/bin/sh\\nexit 1\\n" >'
    f' .venv/bin/python; chmod +x .venv/bin/python;; *) exec "{sys.executable}" "$@";; esac'
)
FULL_DISK = "echo head; echo dev 9000000 8900000 100000 99% /"


@pytest.fixture
def fresh(tmp_path):
    """A copy of what setup needs, without an environment."""
    for name in ("requirements.txt", "pyproject.toml", "tools/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(folder: Path, name: str, body: str) -> str:
    file = folder / "bin" / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


def setup(folder: Path, python: str) -> subprocess.CompletedProcess:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "tools/setup.sh"],
        cwd=folder,
        env={**os.environ, "PYTHON": python, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_no_such_python(fresh):
    done = setup(fresh, "python2.99")
    assert done.returncode == 1
    assert "no program 'python2.99'" in done.stderr


def test_python_too_old(fresh):
    done = setup(fresh, program(fresh, "old", TOO_OLD))
    assert done.returncode == 1
    assert "is Python 3.8.1; the course needs Python 3.10 or newer" in done.stderr


def test_no_venv_module(fresh):
    done = setup(fresh, program(fresh, "bare", NO_VENV))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 1
    assert f"sudo apt install python{version}-venv" in done.stderr


def test_full_disk(fresh):
    program(fresh, "df", FULL_DISK)
    done = setup(fresh, sys.executable)
    assert done.returncode == 1
    assert "only 97 MB" in done.stderr
    assert not (fresh / ".venv").exists()


def test_pip_fails(fresh):
    done = setup(fresh, program(fresh, "nopip", NO_PIP))
    assert done.returncode == 1
    assert "pip could not install what the course needs" in done.stderr
    assert not (fresh / ".venv" / "ready").exists()
