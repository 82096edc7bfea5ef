"""One palette for page, widgets and figures: a colour is a chunk.

Eight chunk colours, in a light and a dark variant, chosen so that any two stay apart for readers
with full colour vision and with protanopia, deuteranopia and tritanopia, and so that each stands
out from its paper (tests/book/test_palette.py computes both). Colour is never the only sign:
chunks carry their number too.

The page reads the same values as CSS variables: `--chunk-0` to `--chunk-7`, `--on-chunk-0` to
`--on-chunk-7` (text on such a chunk), and the names of LIGHT and DARK below.
"""

from __future__ import annotations

PALETTE_LIGHT = [
    "#5977fc",  # blue
    "#f55d19",  # orange
    "#2c716b",  # teal
    "#cd6fb4",  # pink
    "#0a4266",  # navy
    "#513807",  # brown
    "#8641b2",  # violet
    "#a74907",  # rust
]
PALETTE_DARK = [
    "#5066de",  # blue
    "#fc852d",  # orange
    "#5dbfa3",  # teal
    "#9c708e",  # pink
    "#8df1fb",  # navy's counterpart, pale cyan
    "#fed551",  # brown's counterpart, yellow
    "#c489fe",  # violet
    "#d33412",  # rust
]

LIGHT = {
    "paper": "#fcfbf8",
    "surface": "#f3f1ea",  # a card, a code cell
    "ink": "#1d2430",
    "muted": "#596170",  # secondary text
    "line": "#d9d5ca",
    "accent": "#2f4bc4",  # links, focus, the current thing
    "good": "#1b6e45",
    "bad": "#b3261e",
}
DARK = {
    "paper": "#15181d",
    "surface": "#1f242c",
    "ink": "#e8e6e0",
    "muted": "#a7afbb",
    "line": "#3a414d",
    "accent": "#9db0ff",
    "good": "#63d29b",
    "bad": "#ff8f86",
}


def luminance(colour: str) -> float:
    """Relative luminance (0 black to 1 white) of "#rrggbb", as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio of two colours, 1 to 21; text wants 4.5, graphics want 3."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def on_chunk(k: int, dark: bool = False) -> str:
    """The text colour, nearly black or white, that reads better on chunk k (always above 4.5).

    The last digit names the chunk: figures are turned dark colour by colour, and text on a chunk
    may have to go from white to black where its chunk goes from navy to cyan.
    """
    colour = (PALETTE_DARK if dark else PALETTE_LIGHT)[k]
    black, white = f"#00000{k}", f"#fffff{8 + k:x}"
    return max((black, white), key=lambda text: contrast(text, colour))


def css_variables(dark: bool = False) -> dict[str, str]:
    """CSS variable name -> colour, the whole palette of one theme."""
    chunks = PALETTE_DARK if dark else PALETTE_LIGHT
    variables = {f"--{name}": colour for name, colour in (DARK if dark else LIGHT).items()}
    variables |= {f"--chunk-{k}": colour for k, colour in enumerate(chunks)}
    variables |= {f"--on-chunk-{k}": on_chunk(k, dark) for k in range(len(chunks))}
    return variables


def figure_style(dark: bool = False) -> None:
    """Make matplotlib draw in the course's colours, as SVG on the course's paper.

    The paper belongs to the figure: on a transparent ground, ink is lost in a dark notebook.

    Call it once at the top of a chapter. Draw with the light palette (the default): when the book
    is built, each figure gets a dark twin in which every palette colour is replaced by its dark
    counterpart, and the page shows the one that fits the theme.
    """
    import matplotlib as mpl

    names, chunks = (DARK, PALETTE_DARK) if dark else (LIGHT, PALETTE_LIGHT)
    mpl.rcParams.update(
        {
            "figure.facecolor": names["paper"],
            "figure.figsize": (6.8, 3.0),
            "figure.constrained_layout.use": True,
            "savefig.facecolor": names["paper"],
            "savefig.edgecolor": "none",
            "svg.fonttype": "path",
            "svg.hashsalt": "minidist",  # the same drawing gives the same file
            "axes.facecolor": "none",
            "axes.edgecolor": names["muted"],
            "axes.labelcolor": names["ink"],
            "axes.titlecolor": names["ink"],
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.prop_cycle": mpl.cycler(color=chunks),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": names["line"],
            "grid.linewidth": 0.7,
            "text.color": names["ink"],
            "xtick.color": names["muted"],
            "ytick.color": names["muted"],
            "xtick.labelcolor": names["ink"],
            "ytick.labelcolor": names["ink"],
            "patch.edgecolor": names["paper"],
            "lines.linewidth": 2.0,
            "legend.frameon": False,
            "font.size": 10,
        }
    )
    try:
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    if get_ipython() is not None:
        set_matplotlib_formats("svg")
