"""The explorer in Chromium, without a kernel: moved, chosen from, resized, read aloud."""

from __future__ import annotations

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from minidist import cost
from minidist.widgets import explorer
from minidist.widgets.explorer import CURVES, WORLD_SIZES, regions

pytestmark = pytest.mark.browser

POINTS = [
    {"algorithm": name, "world_size": n, "nbytes": 1 << k, "seconds": 1e-5, "transport": "tcp"}
    for name in ("ring", "tree", "halving_doubling")
    for n in (2, 4)
    for k in (10, 20)
]


def drawn_regions(tab):
    return json.loads(tab.locator(".minidist-explorer").get_attribute("data-regions"))


@pytest.mark.parametrize("shown", [list(CURVES), ["ring", "tree"], ["naive", "tree"], []])
def test_page_and_package_agree_on_who_wins(host, shown):
    tab = host([explorer(shown=shown)])
    for alpha, bandwidth in ((5e-6, 12.5e9), (1e-3, 1e8), (1e-7, 1e12)):
        for n in (2, 3, 6, 8, 64, 1024):
            tab.evaluate(
                "([a, b, n]) => { models[0].set('alpha', a); models[0].set('bandwidth', b);"
                " models[0].set('world_size', n); }",
                [alpha, bandwidth, n],
            )
            ours = regions(n, alpha, bandwidth, [name for name in CURVES if name in shown])
            theirs = drawn_regions(tab)
            assert [tuple(names) for _, _, *names in theirs] == [r.names for r in ours]
            ends = [end for low, high, *_ in theirs for end in (low, high)]
            assert ends == pytest.approx([end for r in ours for end in (r.low, r.high)])


def test_the_times_are_those_of_cost(host):
    tab = host([explorer(alpha=5e-6, bandwidth=1e9, world_size=6, nbytes=1 << 20)])
    words = tab.locator(".mx-times").text_content().replace("\u00a0", " ")
    ring, tree, naive = (
        cost.ALLREDUCE_COSTS[n](6, 1 << 20).time(5e-6, 1e-9) * 1e3
        for n in ("ring", "tree", "naive")
    )
    assert words == f"At 1 MiB: ring {ring:.3g} ms, tree {tree:.3g} ms, naive {naive:.3g} ms."


def test_the_winners_in_words(host):
    tab = host([explorer(alpha=10e-6, bandwidth=25e9, world_size=8, shown=["ring", "tree"])])
    said = tab.get_by_role("status")
    expect(said).to_have_text("Fastest with 8\u00a0ranks: tree up to 460\u00a0KiB, ring above.")
    expect(tab.locator(".mx-cross-name")).to_have_text("460\u00a0KiB")
    assert tab.locator(".mx-band-name").all_text_contents() == ["tree", "ring"]
    tab.get_by_label("halving-doubling").check()
    expect(said).to_have_text("Fastest with 8\u00a0ranks, at every size: halving-doubling.")
    assert tab.evaluate("models[0].get('shown')") == ["ring", "tree", "halving_doubling"]
    for label in ("ring", "halving-doubling"):
        tab.get_by_label(label, exact=True).uncheck()
    tab.get_by_label("naive").check()
    tab.evaluate("models[0].set('world_size', 2)")
    expect(said).to_have_text("Fastest with 2\u00a0ranks, at every size: naive and tree (equal).")
    expect(tab.locator(".mx-band-name")).to_have_text("naive = tree")
    for label in ("naive", "tree"):
        tab.get_by_label(label, exact=True).uncheck()
    expect(said).to_have_text("Choose at least one algorithm.")
    expect(tab.locator(".w-stage .mx-curve")).to_have_count(0)


SLIDERS = [
    ("alpha, a message", "alpha", "ArrowRight", 1.12e-5, "11.2\u00a0µs"),
    ("1/beta, bandwidth", "bandwidth", "ArrowLeft", 8.91e9, "8.91\u00a0GB/s"),
    ("N, ranks", "world_size", "ArrowRight", 9, "9 ranks"),
    ("T, bytes per rank", "nbytes", "ArrowLeft", 1 << 19, "512\u00a0KiB"),
]


@pytest.mark.parametrize(("label", "trait", "key", "value", "words"), SLIDERS)
def test_sliders_by_keyboard(host, label, trait, key, value, words):
    tab = host([explorer(alpha=1e-5, bandwidth=1e10)])
    tab.evaluate("window.heard = 0; document.addEventListener('keydown', () => heard++)")
    before = tab.locator(".w-stage").inner_html()
    slider = tab.get_by_role("slider", name=label)
    slider.press(key)
    assert tab.evaluate(f"models[0].get('{trait}')") == pytest.approx(value)
    expect(slider).to_have_attribute("aria-valuetext", words)
    assert tab.evaluate("models[0].saved") == 1
    assert tab.locator(".w-stage").inner_html() != before
    assert tab.evaluate("window.heard") == 0  # a notebook would move to another cell
    slider.press("End")
    slider.press("Home")
    expect(slider).to_be_focused()


def test_the_kernel_moves_it_too(host):
    tab = host([explorer(shown=["ring"])])
    for trait, value, what in (("nbytes", 1 << 12, "T, bytes per rank"), ("alpha", 2e-4, "alpha")):
        tab.evaluate(f"models[0].set('{trait}', {value})")
        shown = tab.get_by_role("slider", name=what).get_attribute("aria-valuetext")
        assert shown in ("4\u00a0KiB", "200\u00a0µs")
    tab.evaluate("models[0].set('shown', ['tree'])")
    expect(tab.get_by_label("tree", exact=True)).to_be_checked()
    expect(tab.get_by_label("ring", exact=True)).not_to_be_checked()


def test_a_click_on_the_picture_chooses_the_size(host):
    tab = host([explorer(nbytes=64)])
    stage = tab.locator(".w-stage").bounding_box()
    tab.mouse.click(stage["x"] + stage["width"] - 16, stage["y"] + 100)
    assert tab.evaluate("models[0].get('nbytes')") == 1 << 30
    tab.mouse.click(stage["x"] + 5, stage["y"] + 100)
    assert tab.evaluate("models[0].get('nbytes')") == 64


def test_measured_points(host):
    tab = host([explorer(POINTS, world_size=4, shown=["ring", "tree"])])
    said = tab.locator(".mx-measured")
    expect(tab.locator(".mx-point")).to_have_count(4)
    expect(said).to_have_text("Marks: 4 measured times on tcp.")
    tab.get_by_label("tree", exact=True).uncheck()
    expect(tab.locator(".mx-point")).to_have_count(2)
    tab.evaluate("models[0].set('world_size', 8)")
    expect(tab.locator(".mx-point")).to_have_count(0)
    expect(said).to_have_text("Measured with 2 and 4 ranks, not with 8.")
    tab.evaluate("models[0].set('points', [])")
    expect(said).to_be_hidden()


@pytest.mark.parametrize("width", [360, 390, 600, 1000])
def test_nothing_sticks_out(host, width):
    tab = host([explorer(POINTS, world_size=4, shown=list(CURVES))], width=width)
    inside = """() => {
      const stage = document.querySelector('.w-stage').getBoundingClientRect();
      return [...document.querySelectorAll('.w-stage text')].filter((t) => {
        const b = t.getBoundingClientRect();
        return b.left < stage.left - 1 || b.right > stage.right + 1 || b.bottom > stage.bottom + 1;
      }).map((t) => t.textContent);
    }"""
    for n in (2, 3, 6, 11, 1024):
        for alpha in (1e-8, 5e-6, 1e-1):
            tab.evaluate(f"models[0].set('world_size', {n}); models[0].set('alpha', {alpha})")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate(inside) == [], (n, alpha)


def test_it_follows_the_width_of_the_page(host):
    tab = host([explorer()], width=1000)
    wide = tab.locator(".w-stage").bounding_box()["width"]
    tab.set_viewport_size({"width": 390, "height": 900})
    expect(tab.locator(".w-stage")).not_to_have_attribute("width", str(int(wide)))
    assert tab.evaluate("document.documentElement.scrollWidth") == 390


THEMES = {
    "book": ({"html": 'data-theme="dark"'}, "rgb(21, 24, 29)"),
    "jupyterlab": ({"body": 'data-jp-theme-light="false"'}, "rgb(21, 24, 29)"),
    "system": ({"color_scheme": "dark"}, "rgb(21, 24, 29)"),
    "light book": ({"html": 'data-theme="light"', "color_scheme": "dark"}, "rgb(252, 251, 248)"),
    "light jupyterlab": (
        {"body": 'data-jp-theme-light="true"', "color_scheme": "dark"},
        "rgb(252, 251, 248)",
    ),
}


@pytest.mark.parametrize("theme", THEMES)
def test_themes(host, theme):
    options, paper = THEMES[theme]
    tab = host([explorer()], **options)
    colour = "getComputedStyle(document.querySelector('.minidist-explorer')).backgroundColor"
    assert tab.evaluate(colour) == paper


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessible(host, theme):
    ground = "#15181d" if theme == "dark" else "#fcfbf8"
    views = [explorer(POINTS, world_size=4, shown=list(CURVES)), explorer()]
    tab = host(views, html=f'data-theme="{theme}"', ground=ground)
    report = Axe().run(tab)
    assert report.violations_count == 0, report.generate_report()
    picture = tab.get_by_role("img").last
    expect(picture).to_have_accessible_name("Time against size for naive, ring and tree on 8 ranks")
    expect(picture.locator("desc")).to_have_text(re.compile(r"^1\sKiB: naive .*, ring .*, tree"))


def test_a_view_that_is_closed_is_not_drawn_again(host):
    tab = host([explorer()])
    tab.evaluate("window.root = document.querySelector('.minidist-explorer'); cleanups[0]()")
    before = tab.evaluate("root.innerHTML")
    tab.evaluate("models[0].set('world_size', 64)")
    assert tab.evaluate("root.innerHTML") == before


def test_every_world_size_can_be_reached(host):
    tab = host([explorer(world_size=WORLD_SIZES[0])])
    slider = tab.get_by_role("slider", name="N, ranks")
    for n in WORLD_SIZES[1:]:
        slider.press("ArrowRight")
        assert tab.evaluate("models[0].get('world_size')") == n
