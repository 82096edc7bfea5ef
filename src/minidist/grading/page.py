"""Reports as one HTML file that needs no network: --html FILE."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from minidist.grading.report import Report, as_html

# The player is an anywidget: a module whose default export draws a model into an element. This is
# all of a model that a page without a kernel needs.
_MOUNT = """
<script type="module">
const source = document.getElementById("player-source").textContent;
const url = URL.createObjectURL(new Blob([JSON.parse(source)], { type: "text/javascript" }));
const widget = (await import(url)).default;
for (const el of document.querySelectorAll(".player")) {
  const state = JSON.parse(el.querySelector("script").textContent);
  const listeners = {};
  const model = {
    get: (name) => state[name],
    set: (name, value) => {
      state[name] = value;
      for (const call of listeners[`change:${name}`] ?? []) call();
    },
    save_changes: () => {},
    on: (names, call) => { for (const n of names.split(" ")) (listeners[n] ??= []).push(call); },
    off: () => {},
  };
  await widget.initialize?.({ model });
  await widget.render({ model, el });
}
</script>
"""
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
"""


def page(reports: Sequence[Report]) -> str:
    """A page with all reports, and a player where a run differs from the course's own."""
    parts, css, source = [], "", ""
    for report in reports:
        parts.append(as_html(report))
        if (player := report.player()) is not None:
            css, source = str(player._css), str(player._esm)
            names = ("recordings", "world_size", "step", "name", "note")
            state = {name: getattr(player, name) for name in names}
            parts.append(
                f'<div class="player"><script type="application/json">{_in_script(state)}'
                "</script></div>"
            )
    title = "Graded: " + ", ".join(report.exercise for report in reports)
    mount = ""
    if source:
        mount = (
            f'<script id="player-source" type="application/json">{_in_script(source)}</script>'
            + _MOUNT
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}{css}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>{''.join(parts)}{mount}</body></html>\n"
    )


def _in_script(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value).replace("<", "\\u003c")
