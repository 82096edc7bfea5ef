"""Opens JupyterLab on the chapters; a double click on a chapter opens it as a notebook."""

from __future__ import annotations

import os
import sys
from pathlib import Path

BOOK = Path(__file__).resolve().parents[1] / "book"
OPEN_AS_NOTEBOOK = (
    '{"defaultViewers": {"markdown": "Jupytext Notebook", "myst": "Jupytext Notebook"}}'
)

if __name__ == "__main__":
    settings = Path(sys.prefix, "share/jupyter/lab/settings/overrides.json")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'{{"@jupyterlab/docmanager-extension:plugin": {OPEN_AS_NOTEBOOK}}}\n')
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(BOOK), *sys.argv[1:]])
