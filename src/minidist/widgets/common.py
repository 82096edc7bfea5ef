"""What all widgets share: the code and style they are made of, and how they name numbers."""

from __future__ import annotations

from pathlib import Path

from minidist import palette

HERE = Path(__file__).parent
DARK_PAGES = ('html[data-theme="dark"]', 'html[theme="dark"]', 'body[data-jp-theme-light="false"]')
NO_THEME = "html:not([data-theme], [theme]) body:not([data-jp-theme-light])"


def code(widget: str) -> str:
    """The module of a widget: common.js, then its own file."""
    return _text("common.js") + _text(f"{widget}.js")


def style(widget: str) -> str:
    """The palette as --w-paper, --w-chunk-0 ..., common.css, then the widget's own file.

    Colours come from the page's variables where it has them; JupyterLab and Colab have none.
    """
    light = f"{{ {_variables(dark=False)} color-scheme: light; }}\n"
    dark = f"{{ {_variables(dark=True)} color-scheme: dark; }}\n"
    return (
        f".minidist-widget {light}"
        f"{', '.join(f'{page} .minidist-widget' for page in DARK_PAGES)} {dark}"
        f"@media (prefers-color-scheme: dark) {{ {NO_THEME} .minidist-widget {dark} }}\n"
        + _text("common.css")
        + _text(f"{widget}.css")
    )


def _variables(dark: bool) -> str:
    named = palette.css_variables(dark).items()
    return "".join(f"--w-{name[2:]}: var({name}, {colour}); " for name, colour in named)


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def size_name(nbytes: float) -> str:
    """1234567 -> '1.2 MiB'."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return (
                f"{nbytes / unit:.2g} {name}"
                if nbytes < 10 * unit
                else f"{nbytes / unit:.0f} {name}"
            )
    return f"{nbytes:.0f} B"


def time_name(seconds: float) -> str:
    """1.234e-05 -> '12.3 µs'."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"
