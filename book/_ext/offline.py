"""What makes the built book complete in itself, and its notebooks reachable.

- MathJax is copied from the installed package sphinx-mathjax-offline to assets/mathjax. The one
  file with SVG output is enough: it draws formulas as shapes, so no font file is needed, which
  some browsers refuse to load from file://.
- The Colab button of a page points at the notebook made from it (tools/notebooks.py), which is
  published beside the site on the branch gh-pages; a second button downloads it.
"""

from __future__ import annotations

import shutil
from importlib.metadata import files
from pathlib import Path

from sphinx.application import Sphinx

PUBLISHED_BRANCH = "gh-pages"


def copy_mathjax(app: Sphinx, config) -> None:
    wanted = Path(config.mathjax_path).name
    target = Path(app.srcdir, "assets", config.mathjax_path)
    source = next(f for f in files("sphinx-mathjax-offline") if f.name == wanted).locate()
    if not target.exists() or target.stat().st_size != Path(source).stat().st_size:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def point_at_notebook(app: Sphinx, pagename, templatename, context, doctree) -> None:
    options = app.config.html_theme_options
    repository = options["repository_url"].removeprefix("https://github.com/").strip("/")
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []) if isinstance(group, dict) else []:
            if button.get("text") == "Colab":
                colab = options["launch_buttons"]["colab_url"].rstrip("/")
                path = f"blob/{PUBLISHED_BRANCH}/notebooks/{pagename}.ipynb"
                button["url"] = f"{colab}/github/{repository}/{path}"
            elif button.get("label") == "download-notebook-button":
                button["url"] = context["pathto"](f"notebooks/{pagename}.ipynb", 1)


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", copy_mathjax)
    app.connect("html-page-context", point_at_notebook, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
