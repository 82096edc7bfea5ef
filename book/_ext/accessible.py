"""Mends a role in Sphinx's HTML that screen readers stumble over."""

from __future__ import annotations

from sphinx.application import Sphinx


def mend_bibliography(app: Sphinx, pagename, templatename, context, doctree) -> None:
    # A list's children must be list items; Sphinx gives them a role that ARIA has since dropped.
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", mend_bibliography)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
