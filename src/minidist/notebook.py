"""What the chapters use to show things: source code as it is installed, and small tables."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from IPython.display import Markdown


def show(*functions: Callable[..., Any] | type, docstring: bool = True) -> Markdown:
    """The source of functions or classes, as installed, with package, version and line."""
    return Markdown("\n\n".join(_source(f, docstring) for f in functions))


def _source(function: Callable[..., Any] | type, docstring: bool) -> str:
    lines, first = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines)).rstrip()
    if not docstring and function.__doc__:
        source = _without_docstring(source)
    package = function.__module__.split(".")[0]
    place = function.__module__
    if package in sys.modules and package != "__main__":
        version = metadata.version(package)
        place = f"{function.__module__}, line {first} ({package} {version})"
    return f"```python\n{source}\n```\n<small>{place}</small>"


def _without_docstring(source: str) -> str:
    head, rest = source.split('"""', 1)
    body = rest.split('"""', 1)[1]
    return head.rstrip() + body


def table(rows: Sequence[Mapping[str, Any]]) -> Markdown:
    """Rows with the same keys as a Markdown table; numbers stand to the right."""
    keys = list(rows[0])
    marks = ["--:" if _is_number(rows[0][key]) else ":--" for key in keys]
    lines = [keys, marks, *([_cell(row[key]) for key in keys] for row in rows)]
    return Markdown("\n".join("| " + " | ".join(line) + " |" for line in lines))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|")
