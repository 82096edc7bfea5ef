"""Every page of the built book in Chromium, from file:// and with no network at all."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup

pytestmark = pytest.mark.browser

GRAVE = ("serious", "critical")
WIDGET_VIEW = 'type="application/vnd.jupyter.widget-view+json"'


def test_page_is_whole_and_silent(visit, page, site):
    html = (site / f"{page}.html").read_text()
    with visit(page) as seen:
        formulas = seen.page.locator("mjx-container").count()
        assert formulas == len(BeautifulSoup(html, "html.parser").select(".math:not(.math .math)"))
        assert seen.page.locator("mjx-merror, [data-mjx-error]").count() == 0
        assert seen.page.locator(".anywidget[data-mounted]").count() == html.count(WIDGET_VIEW)
        assert seen.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_any_reader(visit, page, scheme):
    # Reduced motion: a colour that is still fading in is not the colour that is meant.
    with visit(page, scheme, reduced_motion="reduce") as seen:
        assert seen.page.locator("html").get_attribute("data-theme") == scheme
        for fold in seen.page.locator("article details").all():
            fold.evaluate("fold => { fold.open = true }")
        for toggle in seen.page.locator("article .toggle-button, article button.toggle").all():
            if toggle.is_visible():
                toggle.click()
        found = Axe().run(seen.page).response["violations"]
        grave = [
            f"{violation['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:300]}"
            for violation in found
            if violation["impact"] in GRAVE
            for node in violation["nodes"]
        ]
        assert not grave, "\n".join(grave)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_follow_the_theme(visit, page, scheme):
    with visit(page, scheme) as seen:
        for image in seen.page.locator("article img").all():
            classes = image.get_attribute("class") or ""
            other = "drawn-dark" if scheme == "light" else "drawn-light"
            assert image.is_visible() == (other not in classes), classes


def test_page_fits_a_phone(visit, page):
    with visit(page, phone=True) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        too_wide = seen.page.evaluate(
            """() => [...document.querySelectorAll('article *')].filter((el) => {
                const box = el.getBoundingClientRect();
                if (!box.width || box.right <= innerWidth + 1) return false;
                for (let up = el; up; up = up.parentElement) {
                  if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX))
                    return false;
                }
                return true;
            }).map((el) => el.outerHTML.slice(0, 120))"""
        )
        assert too_wide == []
        assert seen.complaints == []


def test_every_animation_plays_to_its_last_step(visit, page, site):
    if WIDGET_VIEW not in (site / f"{page}.html").read_text():
        pytest.skip("no animation on this page")
    with visit(page) as seen:
        widgets = seen.page.locator(".anywidget")
        players = widgets.filter(has=seen.page.locator(".minidist-player"))
        timelines = widgets.filter(has=seen.page.locator(".minidist-timeline"))
        explorers = widgets.filter(has=seen.page.locator(".minidist-explorer"))  # nothing to play
        known = players.count() + timelines.count() + explorers.count()
        assert widgets.count() == known > 0
        for widget in [*players.all(), *timelines.all()]:
            slider = widget.get_by_role("slider").first
            last = int(slider.get_attribute("max"))
            assert last > 0
            speed = widget.get_by_label("Speed")
            if speed.count():
                speed.select_option(index=speed.locator("option").count() - 1)
            slider.fill("0")
            said = widget.get_by_role("status").first.inner_text()
            widget.get_by_role("button", name="Play").click()
            slider.evaluate(
                """(slider) => new Promise((done, failed) => {
                    const began = Date.now();
                    const look = setInterval(() => {
                      if (slider.value === slider.max) { clearInterval(look); done(); }
                      if (Date.now() - began > 90000) { clearInterval(look); failed('stuck'); }
                    }, 50);
                })"""
            )
            assert widget.get_by_role("status").first.inner_text() != said
            widget.get_by_role("button", name=re.compile("back", re.I)).click()
            back = float(slider.input_value())  # a player is at a step, a timeline at an event
            assert back == last - 1 or (
                back < last and widget.locator(".minidist-timeline").count()
            )
        assert seen.complaints == []


def test_a_page_without_scripts_still_reads(visit, page):
    with visit(page, java_script_enabled=False) as seen:
        assert seen.page.locator("article h1").is_visible()
        for figure in seen.page.locator("img.drawn-dark").all():
            assert not figure.is_visible()  # its light twin stands beside it
        for option in seen.page.locator(".quiz-option").all():
            option.locator("summary").click()
            assert option.locator(".quiz-why").is_visible()
        assert seen.complaints == []


def test_search_finds_a_word(visit):
    with visit("search") as seen:
        seen.page.goto(seen.page.url.split("?")[0] + "?q=rank")
        seen.page.locator("#search-results li").first.wait_for()
        assert seen.page.locator("#search-results li").count() >= 1
        assert seen.complaints == []


def test_a_quiz_opens_by_keyboard(visit, site):
    name = next(f for f in site.rglob("*.html") if 'class="quiz"' in f.read_text())
    with visit(name.relative_to(site).with_suffix("").as_posix()) as seen:
        option = seen.page.locator(".quiz-option").first
        assert not option.locator(".quiz-why").is_visible()
        option.locator("summary").focus()
        seen.page.keyboard.press("Enter")
        assert option.locator(".quiz-why").is_visible()
        assert re.match("Right|Not quite", option.locator(".quiz-why").inner_text())


def test_a_stray_request_would_be_seen(visit):
    with visit("intro") as seen:
        seen.page.evaluate(
            """() => new Promise((done) => {
                const image = new Image();
                image.onerror = done;
                image.src = 'https://example.org/pixel.png';
                document.body.append(image);
            })"""
        )
        assert any("example.org" in complaint for complaint in seen.complaints)
