"""Every SVG figure in the palette's light colours gets a dark twin.

Figures are drawn once, light (`minidist.palette.figure_style`). When a page is written, each SVG
that uses palette colours is copied with every colour replaced by its dark counterpart, and the
page shows the one that fits the theme (course.css: drawn-light, drawn-dark). The theme's own
classes for this would hide the caption too; its class dark-light says: leave the colours alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from minidist import palette

TO_DARK = dict(
    zip(
        palette.css_variables().values(),
        palette.css_variables(dark=True).values(),
        strict=True,
    )
)


def darken(svg: str) -> str:
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda hit: TO_DARK.get(hit[0].lower(), hit[0]), svg)


class DarkTwins(SphinxPostTransform):
    default_priority = 900  # after myst-nb has chosen which form of an output to show
    formats = ("html",)

    def run(self, **kwargs) -> None:
        for image in list(self.document.findall(nodes.image)):
            if image["uri"].endswith(".svg") and "://" not in image["uri"]:
                self.add_twin(image)

    def add_twin(self, image: nodes.image) -> None:
        light = Path(self.env.srcdir, image["uri"]).read_text()
        dark = darken(light)
        if dark == light:
            return
        folder = Path(self.app.outdir).parent / "dark_figures"
        folder.mkdir(exist_ok=True)
        file = folder / f"{hashlib.sha256(dark.encode()).hexdigest()[:32]}-dark.svg"
        file.write_text(dark)
        twin = image.deepcopy()
        twin["ids"], twin["names"] = [], []
        twin["uri"] = Path(os.path.relpath(file, self.env.srcdir)).as_posix()
        twin["candidates"] = {"*": twin["uri"]}
        self.env.images.add_file(self.env.docname, twin["uri"])
        image["classes"] = [*image["classes"], "drawn-light"]
        twin["classes"] = [*twin["classes"], "drawn-dark", "dark-light"]
        image.parent.insert(image.parent.index(image) + 1, twin)


def setup(app: Sphinx) -> dict:
    app.add_post_transform(DarkTwins)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
