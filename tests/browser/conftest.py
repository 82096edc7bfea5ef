"""A headless Chromium that cannot reach any network, and says what a page tried and threw."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from widget_page import page as write_page

LOCAL = ("file:", "data:", "blob:")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@dataclass
class Visit:
    page: Page
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("blocked: no Chromium on PATH (on Debian: sudo apt install chromium)")
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers lack; these pages are our own files.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser, site) -> Callable:
    """`with visit("intro") as seen:` opens a built page from file:// and watches it.

    `seen.complaints` lists every request that leaves this machine (it is refused), every local file
    that is missing, every error on the console and every uncaught exception.
    """

    @contextmanager
    def open_page(name: str, scheme: str = "light", phone: bool = False, **options):
        context = chromium.new_context(
            color_scheme=scheme, viewport=PHONE if phone else DESKTOP, **options
        )
        seen = Visit(context.new_page())
        context.set_default_timeout(20_000)

        def check(route):
            if route.request.url.startswith(LOCAL):
                route.continue_()
            else:
                seen.complaints.append(f"asked for {route.request.url}")
                route.abort()

        def console(message):
            if message.type == "error":
                seen.complaints.append(f"console: {message.text}")

        context.route("**/*", check)
        seen.page.on("console", console)
        seen.page.on("pageerror", lambda error: seen.complaints.append(f"uncaught: {error}"))
        scripts = options.get("java_script_enabled", True)
        if scripts:  # without them, each script that is not loaded counts as failed
            seen.page.on("requestfailed", lambda r: seen.complaints.append(f"failed: {r.url}"))
        seen.page.goto((site / f"{name}.html").as_uri())
        if scripts:
            wait_until_drawn(seen.page)
        yield seen
        context.close()

    return open_page


def wait_until_drawn(page: Page) -> None:
    """Until formulas are set and widgets mounted (or have said that they cannot)."""
    page.wait_for_function(
        """() => (!window.MathJax || window.MathJax.startup?.promise)
            && !document.querySelector('script[type="application/vnd.jupyter.widget-view+json"]')
            && [...document.querySelectorAll('.anywidget')].every((el) => el.childNodes.length)"""
    )
    page.evaluate("() => window.MathJax?.startup?.promise")


@pytest.fixture
def host(chromium: Browser, tmp_path) -> Iterator[Callable]:
    """`host([widget, ...])` opens a page with them; errors and requests end the test."""
    contexts = []
    trouble: list[str] = []

    def open_page(widgets, width=760, html="", body="", ground="#fcfbf8", **options):
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(10_000)
        tab = context.new_page()
        tab.on("console", lambda m: m.type == "error" and trouble.append(m.text))
        tab.on("pageerror", lambda e: trouble.append(str(e)))
        tab.on("request", lambda r: trouble.append(r.url) if r.url.startswith("http") else None)
        path = write_page(tmp_path / f"{len(contexts)}.html", widgets, html, body, ground)
        tab.goto(path.as_uri())
        tab.wait_for_selector("body[data-ready]")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []
