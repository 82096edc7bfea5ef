"""The palette is one, and it can be told apart: numbers, not impressions."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from minidist import palette

ROOT = Path(__file__).resolve().parents[2]

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISION = {
    "full": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)

THEMES = {
    "light": (palette.PALETTE_LIGHT, palette.LIGHT, False),
    "dark": (palette.PALETTE_DARK, palette.DARK, True),
}


def oklab(colour, vision):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return TO_OKLAB @ np.cbrt(TO_LMS @ np.clip(VISION[vision] @ linear, 0, 1))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", THEMES)
def test_any_two_chunks_stay_apart(theme, vision):
    # 0.02 in OKLab is about one just noticeable difference; 0.11 is more than five of them.
    for a, b in combinations(THEMES[theme][0], 2):
        distance = np.linalg.norm(oklab(a, vision) - oklab(b, vision))
        assert distance > 0.11, f"{a} and {b} are {distance:.3f} apart for {vision}"


@pytest.mark.parametrize("theme", THEMES)
def test_contrast(theme):
    chunks, names, dark = THEMES[theme]
    for ground in (names["paper"], names["surface"]):
        for name in ("ink", "muted", "accent", "good", "bad"):
            assert palette.contrast(names[name], ground) >= 4.5, (name, ground)
    for k, colour in enumerate(chunks):
        assert palette.contrast(colour, names["paper"]) >= 3, colour
        assert palette.contrast(palette.on_chunk(k, dark), colour) >= 4.5, colour


def test_no_colour_has_two_meanings():
    # Figures are turned dark colour by colour, so a colour may stand for one thing only.
    light = palette.css_variables().values()
    assert len(set(light)) == len(light)


@pytest.mark.parametrize("theme", THEMES)
def test_page_and_figures_share_the_palette(theme):
    css = (ROOT / "book/assets/course.css").read_text()
    block = re.search(rf"/\* palette: {theme} \*/(.*?)/\* end \*/", css, re.S).group(1)
    found = dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6});", block))
    assert found == palette.css_variables(THEMES[theme][2])
