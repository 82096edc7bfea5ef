"""The player in Chromium, without a kernel: played, stepped, scrubbed, resized, read aloud."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import minidist
from minidist.widgets import player, watch

pytestmark = pytest.mark.browser


def deadlock(mesh, tensor):
    came = mesh.recv((mesh.rank - 1) % mesh.world_size)
    mesh.send((mesh.rank + 1) % mesh.world_size, tensor)
    return came


@pytest.fixture(scope="module")
def ring():
    return player(minidist.ring_allreduce)


def at(root, step):
    expect(root).to_have_attribute("data-step", str(step))


def numbers(root):
    return root.locator(".mp-value").all_text_contents()


def test_it_plays_to_the_end_and_back(host, ring):
    root = host([ring]).locator(".minidist-player")
    at(root, 0)
    expect(root).to_have_attribute("data-steps", "6")
    expect(root.get_by_role("button", name="Step back")).to_be_disabled()
    start = numbers(root)
    root.get_by_label("Speed").select_option("fast")
    root.get_by_role("button", name="Play").click()
    expect(root.get_by_role("button", name="Pause")).to_be_visible()
    expect(root.locator(".mp-token")).to_have_count(4)
    at(root, 6)
    expect(root.get_by_role("button", name="Play")).to_be_visible()
    frames = ring.recordings[2]["frames"]
    cells = ring.recordings[2]["cells"]
    expect(root.get_by_role("status")).to_have_text(
        re.compile(frames[6]["text"].replace(" ", r"\s").replace(".", r"\."))
    )
    expect(root.locator(".mp-token")).to_have_count(0)
    assert numbers(root) == [str(cells[n]["value"]) for b in frames[6]["buffers"] for n in b]
    expect(root.locator(".mp-done")).to_have_count(16)
    expect(root.get_by_role("button", name="Step forward")).to_be_disabled()
    for step in range(5, -1, -1):
        root.get_by_role("button", name="Step back").click()
        at(root, step)
        drawn = [str(cells[n]["value"]) for b in frames[step]["buffers"] for n in b]
        assert numbers(root) == drawn
    assert numbers(root) == start
    root.get_by_role("button", name="Play").click()
    root.get_by_role("button", name="Pause").click()
    at(root, 1)


def test_a_message_flies_from_its_sender_to_its_receiver(host, ring):
    tab = host([ring])
    root = tab.locator(".minidist-player")
    root.get_by_label("Speed").select_option("slow")
    before = numbers(root)
    root.get_by_role("button", name="Step forward").click()
    where = (
        "() => [...document.querySelectorAll('.mp-token')].map(t => t.getAttribute('transform'))"
    )
    first = tab.evaluate(where)
    cards = tab.evaluate(where.replace(".mp-token", ":has(> .mp-card)"))
    tab.wait_for_timeout(700)
    later = tab.evaluate(where)
    assert len(first) == 4 and first != later
    assert not set(later) & set(cards)  # under way
    assert numbers(root)[:16] == before  # nothing has arrived
    expect(root.locator(".mp-landed")).to_have_count(4)


def test_keyboard(host, ring):
    tab = host([ring])
    root = tab.locator(".minidist-player")
    root.focus()
    for key, step in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", 6),
        ("Home", 0),
        ("ArrowLeft", 0),
    ]:
        tab.keyboard.press(key)
        at(root, step)
    tab.keyboard.press("Space")
    expect(root.get_by_role("button", name="Pause")).to_be_visible()
    tab.keyboard.press("Space")
    expect(root.get_by_role("button", name="Play")).to_be_visible()
    tab.keyboard.press("Home")
    slider = root.get_by_role("slider", name="Step")
    slider.focus()
    tab.keyboard.press("ArrowRight")
    at(root, 1)
    expect(slider).to_have_attribute("aria-valuetext", "1 of 6 steps done")
    tab.keyboard.press("End")
    at(root, 6)


def test_jupyterlab_leaves_the_keyboard_to_the_player(host, ring):
    """Its shortcuts are looked up from the focused element upwards, before the player hears a key.

    An element with this attribute ends the search, so each one that can have the focus needs it.
    """
    root = host([ring]).locator(".minidist-player")
    unguarded = root.evaluate(
        "root => [root, ...root.querySelectorAll('button, input, select, [tabindex]')]"
        ".filter(e => !e.hasAttribute('data-lm-suppress-shortcuts')).map(e => e.outerHTML)"
    )
    assert unguarded == []


def test_scrubbing_and_world_sizes(host, ring):
    tab = host([ring])
    root = tab.locator(".minidist-player")
    root.get_by_role("slider", name="Step").fill("4")
    at(root, 4)
    sizes = root.get_by_label("World size")
    assert sizes.locator("option").all_text_contents() == [str(n) for n in range(2, 9)]
    for size in (8, 2, 5):
        sizes.select_option(str(size))
        at(root, 0)
        expect(root).to_have_attribute("data-steps", str(2 * (size - 1)))
        expect(root.locator(".mp-card")).to_have_count(size)
        assert tab.evaluate("models[0].get('world_size')") == size
    root.get_by_role("slider", name="Step").fill("3")
    assert tab.evaluate("models[0].get('step')") == 3
    tab.evaluate("models[0].set('step', 7)")  # from the kernel
    at(root, 7)
    tab.evaluate("models[0].set('world_size', 3)")
    expect(root.locator(".mp-card")).to_have_count(3)


def test_two_players_and_two_views_of_a_page_go_their_own_ways(host, ring):
    tab = host([ring, player(minidist.broadcast, op="broadcast", world_sizes=[4])])
    first, second = tab.locator(".minidist-player").all()
    first.get_by_role("button", name="Step forward").click()
    at(first, 1)
    at(second, 0)
    second.focus()
    tab.keyboard.press("End")
    at(second, 2)
    at(first, 1)
    expect(second.get_by_label("World size")).to_be_hidden()
    assert tab.evaluate("[...document.querySelectorAll('main [id]')].map(e => e.id)") == ["hosts"]


def test_bytes(host, ring):
    root = host([ring]).locator(".minidist-player")
    root.focus()
    expect(root.locator(".mp-bytes-text")).to_contain_text("Each rank has sent 0 bytes")
    root.press("End")
    expect(root.locator(".mp-bytes-text")).to_have_text(
        "Each rank has sent 48 bytes; an allreduce needs at least 48 per rank on average."
    )
    assert root.locator(".mp-bar-number").all_text_contents() == ["48"] * 4


def test_reduced_motion(host, ring):
    tab = host([ring], reduced_motion="reduce")
    root = tab.locator(".minidist-player")
    tab.evaluate(
        """() => { window.flew = 0; new MutationObserver((records) => {
          for (const r of records) for (const n of r.addedNodes)
            if (n.classList?.contains("mp-token")) window.flew++;
        }).observe(document.body, { childList: true, subtree: true }); }"""
    )
    root.get_by_role("button", name="Step forward").click()
    at(root, 1)
    expect(root.locator(".mp-landed")).to_have_count(4)
    root.get_by_label("Speed").select_option("fast")
    root.get_by_role("button", name="Play").click()
    at(root, 6)
    expect(root.get_by_role("button", name="Play")).to_be_visible()
    assert tab.evaluate("window.flew") == 0


def test_a_failed_run_says_why(host):
    root = host([watch(deadlock)]).locator(".minidist-player")
    expect(root.locator(".mp-error")).to_contain_text(
        "They wait in a circle: 0 -> 3 -> 2 -> 1 -> 0"
    )
    expect(root.locator(".mp-wrong")).to_have_count(0)


def test_wrong_results_are_marked_at_the_end(host):
    def forgets_the_second_pass(mesh, tensor):
        return tensor.clone()

    root = host([watch(forgets_the_second_pass, world_size=2)]).locator(".minidist-player")
    expect(root.locator(".mp-wrong")).to_have_count(2)


THEMES = {
    "book": {"html": 'data-theme="dark"'},
    "jupyterlab": {"body": 'data-jp-theme-light="false"'},
    "system": {"color_scheme": "dark"},
}


@pytest.mark.parametrize("theme", THEMES)
def test_dark(host, ring, theme):
    tab = host([ring], ground="#15181d", **THEMES[theme])
    colour = "getComputedStyle(document.querySelector('.minidist-player')).backgroundColor"
    assert tab.evaluate(colour) == "rgb(21, 24, 29)"


@pytest.mark.parametrize(
    "options", [{"html": 'data-theme="light"'}, {"body": 'data-jp-theme-light="true"'}]
)
def test_light_pages_stay_light_on_dark_systems(host, ring, options):
    tab = host([ring], color_scheme="dark", **options)
    colour = "getComputedStyle(document.querySelector('.minidist-player')).backgroundColor"
    assert tab.evaluate(colour) == "rgb(252, 251, 248)"


@pytest.fixture(scope="module")
def pictures(ring):
    others = [("naive_allreduce", "allreduce"), ("broadcast", "broadcast"), ("allgather",) * 2]
    return [ring, *(player(getattr(minidist, name), op=op) for name, op in others)]


OVERLAPS = """(root) => {
  const boxes = [...root.querySelectorAll('.mp-card')].map(c => c.getBoundingClientRect());
  const stage = root.querySelector('.w-stage').getBoundingClientRect();
  const bad = [];
  boxes.forEach((a, i) => {
    if (a.left < stage.left || a.right > stage.right || a.top < stage.top
      || a.bottom > stage.bottom) bad.push(`${i} outside`);
    boxes.forEach((b, j) => {
      if (i < j && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        bad.push(`${i} on ${j}`);
    });
  });
  return bad;
}"""


@pytest.mark.parametrize("width", [360, 390, 600, 760, 1000])
def test_nothing_overlaps_or_sticks_out(host, pictures, width):
    tab = host(pictures, width=width)
    for root in tab.locator(".minidist-player").all():
        sizes = root.get_by_label("World size")
        for size in range(2, 9):
            sizes.select_option(str(size))
            expect(root.locator(".mp-card")).to_have_count(size)
            what = f"{size} ranks, {root.get_attribute('aria-label')}"
            assert root.evaluate(OVERLAPS) == [], what
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, what


def test_it_follows_the_width_of_the_page(host, ring):
    tab = host([ring], width=1000)
    stage = tab.locator(".w-stage")
    wide = stage.bounding_box()["width"]
    tab.set_viewport_size({"width": 390, "height": 900})
    expect(stage).not_to_have_attribute("width", str(int(wide)))
    assert stage.bounding_box()["width"] < 390 < wide
    assert tab.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessible(host, ring, theme):
    tab = host(
        [ring, watch(deadlock)],
        html=f'data-theme="{theme}"',
        ground="#15181d" if theme == "dark" else "#fcfbf8",
    )
    for step in (0, 2, 6):
        tab.evaluate(f"models[0].set('step', {step})")
        tab.wait_for_timeout(600)  # until what has landed is opaque again
        report = Axe().run(tab)
        assert report.violations_count == 0, report.generate_report()
    picture = tab.get_by_role("img").first
    expect(picture).to_have_accessible_name("4 ranks and their buffers after 6 of 6 steps")
    expect(picture.locator("desc")).to_have_text(
        re.compile(r"^Rank 0: chunk 0: 22 from ranks 0, 1")
    )


def test_a_view_that_is_closed_leaves_nothing_running(host, ring):
    # Without motion there are only the pauses between steps, in which nothing else would stop it.
    tab = host([ring], reduced_motion="reduce")
    tab.get_by_label("Speed").select_option("fast")
    tab.get_by_role("button", name="Play").click()
    tab.evaluate("cleanups[0](); document.querySelector('.minidist-player').remove()")
    tab.evaluate("models[0].set('step', 5)")
    tab.wait_for_timeout(1200)
    assert tab.evaluate("models[0].get('step')") == 5
