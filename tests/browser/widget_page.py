"""A bare page that shows widgets without a kernel, as a host of anywidgets would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from anywidget import AnyWidget

PAGE = """<!doctype html>
<html lang="en" {html}><head><meta charset="utf-8"><title>widgets</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
{css}
body {{ margin: 8px; background: {ground}; }}
h1 {{ margin: 0; color: #777; font-size: 24px; }}
</style></head>
<body {body}><main><h1>Widgets</h1><div id="hosts"></div></main>
<script type="module">
function model(state) {{
  const calls = new Map();
  return {{
    state, saved: 0,
    get: (k) => state[k],
    set(k, v) {{
      if (state[k] === v) return;
      state[k] = v;
      (calls.get("change:" + k) || []).forEach((f) => f());
    }},
    save_changes() {{ this.saved++; }},
    on: (e, f) => calls.set(e, [...(calls.get(e) || []), f]),
    off: (e, f) => calls.set(e, (calls.get(e) || []).filter((g) => f && g !== f)),
  }};
}}
const url = URL.createObjectURL(new Blob([{esm}], {{ type: "text/javascript" }}));
const widget = (await import(url)).default;
window.models = {states}.map(model);
window.cleanups = [];
for (const m of window.models) {{
  const el = document.createElement("div");
  document.getElementById("hosts").append(el);
  window.cleanups.push(await widget.render({{ model: m, el }}));
}}
document.body.dataset.ready = "yes";
</script></body></html>"""


def page(
    path: Path,
    widgets: Sequence[AnyWidget],
    html: str = "",
    body: str = "",
    ground: str = "#fcfbf8",
) -> Path:
    """Write a page with widgets of one class to `path`; `html` and `body` are attributes."""
    common = {"_anywidget_id", "_esm", "_css", *AnyWidget.class_trait_names(sync=True)}
    traits = set(widgets[0].trait_names(sync=True)) - common
    text = PAGE.format(
        html=html,
        body=body,
        ground=ground,
        css=widgets[0]._css,
        esm=json.dumps(widgets[0]._esm).replace("</", "<\\/"),
        states=json.dumps([{name: getattr(w, name) for name in traits} for w in widgets]),
    )
    path.write_text(text, encoding="utf-8")
    return path
