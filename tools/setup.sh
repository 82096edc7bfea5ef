#!/bin/sh
# Makes .venv, or brings it up to date. Does nothing when nothing has changed.
# PYTHON: the Python to use; without it, the first python3 on PATH that is new enough.
set -eu

cd "$(dirname "$0")/.."

stop() {
    printf '\n%s\n' "$@" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 ||
            stop "There is no program '$PYTHON'. Set PYTHON to a Python 3.10 or newer."
        new_enough "$PYTHON" ||
            stop "'$PYTHON' is $("$PYTHON" --version 2>&1); the course needs Python 3.10 or newer." \
                "Set PYTHON to a newer one, for example: make book PYTHON=python3.12"
        command -v "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.14 python; do
        if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    if command -v python3 >/dev/null 2>&1; then
        stop "The only Python found is $(python3 --version 2>&1); the course needs 3.10 or newer." \
            "Install a newer one beside it and name it: make book PYTHON=python3.12"
    fi
    stop "No Python found. Install Python 3.10 or newer (on Debian and Ubuntu:" \
        "sudo apt install python3 python3-venv), then run the same command again."
}

python=$(find_python)
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# What the environment depends on. The folder counts too: a moved .venv does not work.
key=$({
    cat requirements.txt pyproject.toml tools/setup.sh
    "$python" -c 'import sys; print(sys.version, sys.base_prefix)'
    pwd
} | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')

if [ -x .venv/bin/python ] && [ "$(cat .venv/ready 2>/dev/null)" = "$key" ]; then
    exit 0
fi

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    stop "$python cannot make environments: its modules venv and ensurepip are missing." \
        "On Debian and Ubuntu: sudo apt install python$version-venv" \
        "Elsewhere, use a Python from python.org or conda: make book PYTHON=/path/to/python"

need_mb=3000
free_mb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
if [ ! -x .venv/bin/python ] && [ "$free_mb" -lt "$need_mb" ]; then
    stop "This needs about $need_mb MB of free disk space, and here are only $free_mb MB." \
        "Free some space, or move this folder to a larger disk."
fi

if [ -x .venv/bin/python ] && [ -f .venv/python ] && [ "$(cat .venv/python)" = "$python $PWD" ]; then
    echo "Updating the environment in .venv (requirements have changed)."
else
    echo "Making an environment in .venv with $python ($version). The first time takes minutes."
    rm -rf .venv
    "$python" -m venv .venv || stop "Making .venv failed; the lines above say why."
    printf '%s' "$python $PWD" > .venv/python
fi
rm -f .venv/ready

install() {
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar on "$@" ||
        stop "pip could not install what the course needs; the lines above say why." \
            "Common reasons: no network, a proxy that pip does not know (set HTTPS_PROXY)," \
            "too little disk ($free_mb MB were free), or no wheel of torch for Python $version on" \
            "this machine (try PYTHON=python3.12). Then run the same command again."
}
install -r requirements.txt
install --no-deps -e .
printf '%s' "$key" > .venv/ready
echo "The environment is ready."
