"""The timeline in Chromium, without a kernel: played, scrubbed, pointed at, chosen from, read."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from minidist import overlap
from minidist.overlap import Layer
from minidist.widgets import Explorer, Player, timeline

pytestmark = pytest.mark.browser

MIB = 1 << 20


@pytest.fixture(scope="module")
def view(ddp_traces):
    """A function: other tests have moved the widget that they got."""
    return lambda **options: timeline(ddp_traces, **options)


def root_of(tab):
    return tab.locator(".minidist-timeline")


def told(tab, name):
    return float(root_of(tab).get_attribute(f"data-{name}"))


def set_to(tab, **values):
    for name, value in values.items():
        tab.evaluate("([k, v]) => models[0].set(k, v)", [name, value])


def get(tab, name):
    return tab.evaluate(f"models[0].get('{name}')")


# The model


LAYERS = [
    [["c", 1e-3, 10 * 1024], ["b", 2e-3, MIB], ["a", 5e-4, 3 * MIB]],
    [[str(i), 1e-4 * (1 + i % 5), (1 + 7 * i % 11) * 50_000] for i in range(24)],
    [["only", 1e-3, 4 * MIB]],
]


@pytest.mark.parametrize("layers", LAYERS, ids=len)
def test_the_model_of_the_page_is_that_of_the_package(host, view, layers):
    tab = host([view(mode="model")])
    mean = sum(seconds for _, seconds, _ in layers) / len(layers)
    set_to(tab, layers=layers, forward=3e-3, layer_seconds=mean)
    sizes = [nbytes for *_, nbytes in layers]
    for alpha, bandwidth, scale in itertools.product((1e-6, 1e-3), (1e8, 2e10), (1, 0.3)):
        set_to(tab, alpha=alpha, bandwidth=bandwidth, layer_seconds=mean * scale)
        model = [Layer(name, seconds * scale, nbytes) for name, seconds, nbytes in layers]
        wire = (2, alpha, 1 / bandwidth)
        assert told(tab, "best") == overlap.best_cap(model, *wire)
        for cap in (1, min(sizes), max(sizes), sum(sizes) // 3, sum(sizes), 10 * sum(sizes)):
            set_to(tab, cap=cap)
            step = overlap.predict(model, *wire, cap, forward=3e-3)
            assert told(tab, "seconds") == pytest.approx(step.seconds, rel=1e-9)
            assert told(tab, "hidden") == pytest.approx(step.hidden_fraction, abs=1e-9)
            buckets = tab.locator(".mt-lanes desc").text_content().count("on its way from")
            assert buckets == len(step.buckets)


def test_a_world_of_one_has_nothing_to_send(host, view):
    tab = host([view(mode="model")])
    set_to(tab, form=[0, 1])
    assert told(tab, "hidden") == 0
    set_to(tab, cap=10**9)
    expect(tab.locator(".mt-headline")).to_contain_text("1 bucket,")


def test_the_curve_and_its_two_minima(host, view):
    widget = view(mode="model", alpha=1e-4, bandwidth=1e9)
    tab = host([widget])
    recorded = min(widget.runs, key=lambda run: run["seconds"])
    assert told(tab, "fastest") == pytest.approx(recorded["cap"])
    expect(tab.locator(".mt-verdict")).to_have_text(
        re.compile(rf"Fastest recorded: {recorded['label'].replace(' ', '.')}, .*best by the model")
    )
    expect(tab.locator(".mt-point")).to_have_count(3)
    expect(tab.locator(".mt-first")).to_have_count(1)
    said = tab.locator(".mt-chart desc").text_content()
    layers = [Layer(*layer) for layer in widget.layers]
    for run in widget.runs:
        assert run["label"].replace(" ", "\u00a0") in said.replace(" ", "\u00a0")
    whole = overlap.predict(layers, 2, 1e-4, 1e-9, sum(x.nbytes for x in layers))
    best = overlap.best_cap(layers, 2, 1e-4, 1e-9)
    assert (
        overlap.predict(layers, 2, 1e-4, 1e-9, best).seconds <= whole.seconds
    )  # what the dot marks
    heights = tab.evaluate(
        """() => { const d = document.querySelector('.mt-curve').getAttribute('d');
        const ys = [...d.matchAll(/[V ](\\d+\\.?\\d*)/g)].map((m) => Number(m[1]));
        return [Math.max(...ys), Number(document.querySelector('.mt-dot').getAttribute('cy'))]; }"""
    )
    assert heights[1] == pytest.approx(heights[0], abs=0.1)  # the dot lies at the lowest place


SLIDERS = [
    ("bucket cap", "cap", "ArrowRight"),
    ("time per layer", "layer_seconds", "ArrowLeft"),
    ("alpha, a message", "alpha", "ArrowRight"),
    ("1/beta, bandwidth", "bandwidth", "ArrowLeft"),
]


@pytest.mark.parametrize(("label", "trait", "key"), SLIDERS)
def test_sliders_by_keyboard(host, view, label, trait, key):
    tab = host([view(mode="model", alpha=1e-4, bandwidth=1e9)])
    tab.evaluate("window.heard = 0; document.addEventListener('keydown', () => heard++)")
    before, curve = get(tab, trait), tab.locator(".mt-chart").inner_html()
    slider = tab.get_by_role("slider", name=label)
    said = slider.get_attribute("aria-valuetext")
    slider.press(key)
    slider.press(key)
    assert (get(tab, trait) > before) == (key == "ArrowRight") and get(tab, trait) != before
    assert slider.get_attribute("aria-valuetext") != said
    assert tab.locator(".mt-chart").inner_html() != curve
    assert tab.evaluate("heard") == 0
    expect(slider).to_be_focused()


# What was recorded


def test_the_lanes_show_what_was_recorded(host, view):
    widget = view(start=0.04)
    tab = host([widget])
    for index, shown in enumerate(widget.runs[1]["steps"]):
        set_to(tab, step=index)
        ranks = shown["ranks"]
        ready = sum(len(rank["ready"]) for rank in ranks)
        expect(tab.locator(".mt-layer")).to_have_count(ready)
        flights = tab.locator(".mt-flight")
        expect(flights).to_have_count(sum(len(rank["buckets"]) for rank in ranks))
        colours = [int(c) for c in re.findall(r"chunk-(\d)", _styles(flights))]
        assert colours == [bucket[0] % 8 for rank in ranks for bucket in rank["buckets"]]
        end = max(rank["finalize"] for rank in ranks)
        for (_, _, launch, done), box in zip(
            (bucket for rank in ranks for bucket in rank["buckets"]), flights.all(), strict=True
        ):
            x, wide = (float(box.get_attribute(name)) for name in ("x", "width"))
            line = tab.evaluate(
                "() => [...document.querySelectorAll('.mt-base')].map("
                "(p) => p.getAttribute('d').match(/^M(\\S+) .*H(.*)$/).slice(1).map(Number))[0]"
            )
            scale = (line[1] - line[0]) / end
            assert x == pytest.approx(line[0] + scale * launch, abs=0.01)
            assert wide == pytest.approx(max(2, scale * (done - launch)), abs=0.01)


def _styles(locator):
    return " ".join(locator.evaluate_all("all => all.map(e => e.getAttribute('style'))"))


def test_hidden_communication_is_counted_as_the_package_does(host, ddp_traces, view):
    tab = host([view(start=0.01)])
    trace = ddp_traces[0.01]
    number = json.loads(
        tab.evaluate("JSON.stringify(models[0].get('runs')[0].steps.at(-1).number)")
    )
    set_to(tab, step=len(view().runs[0]["steps"]) - 1)
    both = [overlap.steps(trace, rank)[number] for rank in range(2)]
    share = sum(step.hidden for step in both) / sum(step.communication for step in both)
    assert told(tab, "hidden") == pytest.approx(share, abs=0.01)
    assert told(tab, "seconds") == pytest.approx(max(step.seconds for step in both), abs=1e-6)


def test_the_cap_is_chosen_from_recorded_runs(host, view):
    tab = host([view(start=1)])
    group = tab.get_by_role("radiogroup", name="Bucket cap")
    assert group.locator("label").all_text_contents() == ["10 KiB", "41 KiB", "1 MiB"]
    group.get_by_label("10 KiB").check()
    expect(tab.locator(".mt-headline")).to_contain_text("a cap of 10 KiB: 4 buckets")
    assert (get(tab, "run"), get(tab, "at")) == (0, -1)
    assert get(tab, "step") == tab.evaluate("models[0].get('runs')[0].typical")
    group.get_by_label("10 KiB").press("ArrowRight")
    assert get(tab, "run") == 1
    expect(tab.locator(".mt-headline")).to_contain_text("a cap of 41 KiB: 2 buckets")
    tab.get_by_role("combobox", name="Step", exact=True).select_option("0")
    expect(tab.locator(".mt-headline")).to_contain_text("1 bucket,")  # before the rebuild
    chart = tab.locator(".mt-chart")
    for index, point in enumerate(tab.locator(".mt-point").all()):
        box, outer = point.bounding_box(), chart.bounding_box()
        x = box["x"] + box["width"] / 2 - outer["x"]
        chart.click(position={"x": x, "y": box["y"] + box["height"] / 2 - outer["y"]})
        assert get(tab, "run") == index


def test_from_recorded_to_model_and_back(host, view):
    tab = host([view(start=0.01)])
    expect(tab.get_by_role("slider", name="alpha")).to_be_hidden()
    tab.get_by_label("Model").check()
    assert get(tab, "mode") == "model"
    expect(tab.get_by_role("slider", name="alpha")).to_be_visible()
    expect(tab.get_by_role("radiogroup", name="Bucket cap")).to_be_hidden()
    expect(tab.locator(".mt-headline")).to_contain_text("Expected with a cap of")
    assert tab.locator(".mt-lanes .mt-rank").all_text_contents() == ["any rank"]
    tab.get_by_label("Recorded runs").check()
    expect(tab.locator(".mt-headline")).to_contain_text("Recorded with a cap of 10 KiB")
    assert tab.locator(".mt-lanes .mt-rank").all_text_contents() == ["rank 0", "rank 1"]


def test_one_run_has_no_cap_to_choose(host, ddp_traces):
    tab = host([timeline(ddp_traces[1])])
    expect(tab.get_by_role("radiogroup", name="Bucket cap")).to_be_hidden()
    expect(tab.locator(".mt-headline")).to_contain_text("Recorded with the default caps: 1 bucket")
    expect(tab.locator(".mt-point")).to_have_count(0)
    expect(tab.locator(".mt-verdict")).to_contain_text("Best by the model:")


# Moving in time


def test_from_event_to_event_by_keyboard(host, view):
    widget = view(start=0.04)
    tab = host([widget])
    root, said = root_of(tab), tab.get_by_role("status")
    shown = widget.runs[1]["steps"][widget.step]["ranks"]
    names = [name for name, _ in widget.runs[1]["parameters"]]
    tab.evaluate("window.heard = 0; document.addEventListener('keydown', () => heard++)")
    root.focus()
    tab.keyboard.press("Home")
    expect(said).to_contain_text("the forward begins")
    expect(root.get_by_role("button", name="Event back")).to_be_disabled()
    seen = set()
    total = int(told(tab, "events"))
    for _ in range(total):
        tab.keyboard.press("ArrowRight")
        text = said.text_content().replace("\u00a0", " ")
        for rank, i in itertools.product(range(2), range(len(names))):
            at = next(r[2] for r in shown[rank]["ready"] if r[0] == i)
            if f"{names[i]} is ready on rank {rank}" in text:
                size = widget.runs[1]["parameters"][i][1]
                kib = f"{size / 1024:.3g} KiB" if size >= 1024 else f"{size} B"
                assert f": {kib} into bucket " in text
                assert get(tab, "at") == pytest.approx(at)
                seen.add((rank, i))
        expect(tab.locator(".mt-glow")).to_have_count(1)
        if get(tab, "at") < 0:
            break
    # Two events within the same tenth of a microsecond are one step; the later one is named.
    assert len(seen) >= 2 * len(names) - 2
    expect(said).to_contain_text("all gradients are averaged and in place")
    expect(root.get_by_role("button", name="Event forward")).to_be_disabled()
    tab.keyboard.press("ArrowLeft")
    assert 0 < get(tab, "at") < max(rank["finalize"] for rank in shown)
    slider = root.get_by_role("slider", name="Time")
    slider.press("Home")
    slider.press("ArrowRight")
    assert told(tab, "event") >= 1
    assert re.match(
        r"\S+ (n|µ|m)?s of ", slider.get_attribute("aria-valuetext").replace("\u00a0", " ")
    )
    assert tab.evaluate("heard") == 0  # a notebook would move to another cell


def test_scrubbing_fills_the_buckets(host, view):
    widget = view(start=0.04)
    tab = host([widget])
    view_of_rank = widget.runs[1]["steps"][widget.step]["ranks"][0]
    sizes = dict(enumerate(size for _, size in widget.runs[1]["parameters"]))
    states = set()
    moments = sorted(
        at + 1e-7
        for at in [
            0,
            *(r[2] for r in view_of_rank["ready"]),
            *(b[3] for b in view_of_rank["buckets"]),
        ]
    )
    for at in moments:
        set_to(tab, at=at)
        words = tab.locator(".mt-tubs desc").text_content().split("Rank 1")[0]
        for k, nbytes, launch, done in view_of_rank["buckets"]:
            filled = sum(sizes[i] for i, b, t in view_of_rank["ready"] if b == k and t <= at)
            state = (
                "averaged" if done <= at else "on its way" if launch <= at
                else "full, waits for its turn" if filled == nbytes
                else f"{round(100 * filled / nbytes)} percent full"
            )  # fmt: skip
            assert f"bucket {k} {state}" in words, at
            states.add(state)
    assert {"averaged", "0 percent full"} < states
    share = tab.locator(".mt-later").get_attribute("width")
    tab.get_by_role("slider", name="Time").fill("250")
    assert get(tab, "at") == pytest.approx(
        max(r["finalize"] for r in widget.runs[1]["steps"][widget.step]["ranks"]) / 4
    )
    assert float(tab.locator(".mt-later").get_attribute("width")) > float(share)


def test_it_plays_to_the_end(host, view):
    tab = host([view(start=0.04)])
    root = root_of(tab)
    root.get_by_label("Speed").select_option("fast")
    saved = tab.evaluate("models[0].saved")
    root.get_by_role("button", name="Play").click()
    expect(root.get_by_role("button", name="Pause")).to_be_visible()
    expect(tab.get_by_role("status")).to_have_attribute("aria-live", "off")  # it would not end
    expect(root.get_by_role("button", name="Play")).to_be_visible()
    assert get(tab, "at") == -1
    assert tab.evaluate("models[0].saved") - saved <= 2  # a kernel hears of begin and end only
    expect(tab.get_by_role("status")).to_have_attribute("aria-live", "polite")
    root.focus()
    tab.keyboard.press("Space")
    expect(root.get_by_role("button", name="Pause")).to_be_visible()
    tab.keyboard.press("Space")
    expect(root.get_by_role("button", name="Play")).to_be_visible()
    assert get(tab, "at") >= 0


def test_reduced_motion_goes_from_event_to_event(host, view):
    tab = host([view(start=1)], reduced_motion="reduce")
    tab.evaluate(
        """() => { window.places = new Set();
        const slider = document.querySelector('.w-controls input');
        const seen = new MutationObserver(() => places.add(slider.value));
        seen.observe(document.querySelector('.mt-cursor'), { attributes: true }); }"""
    )
    root = root_of(tab)
    root.get_by_label("Speed").select_option("fast")
    root.get_by_role("button", name="Play").click()
    expect(root.get_by_role("button", name="Play")).to_be_visible(timeout=20_000)
    assert get(tab, "at") == -1
    assert tab.evaluate("places.size") <= told(tab, "events") + 1


def test_pointing_names_things(host, view):
    widget = view(start=0.04)
    tab = host([widget])
    tip = tab.locator(".mt-tip")
    expect(tip).to_be_hidden()
    run = widget.runs[1]
    ready = run["steps"][widget.step]["ranks"][0]["ready"]
    for box, (i, bucket, _) in list(zip(tab.locator(".mt-layer").all(), ready, strict=False))[:8]:
        at = box.bounding_box()
        if at["width"] < 4:
            continue
        tab.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
        expect(tip.locator("b")).to_have_text(run["parameters"][i][0])
        expect(tip).to_contain_text(f"bucket\u00a0{bucket}")
        expect(tip).to_contain_text("its gradient is computed")
    flight = tab.locator(".mt-flight").first.bounding_box()
    tab.mouse.move(flight["x"] + flight["width"] / 2, flight["y"] + flight["height"] / 2)
    expect(tip.locator("b")).to_have_text("all-reduce of bucket\u00a00")
    expect(tip).to_contain_text(" gradient")
    root_of(tab).press("Escape")
    expect(tip).to_be_hidden()


def test_a_drag_moves_the_time(host, view):
    tab = host([view(start=0.04)])
    box = tab.locator(".mt-lanes").bounding_box()
    y = box["y"] + 70
    tab.mouse.move(box["x"] + box["width"] * 0.4, y)
    tab.mouse.down()
    first = get(tab, "at")
    tab.mouse.move(box["x"] + box["width"] * 0.7, y)
    second = get(tab, "at")
    tab.mouse.up()
    tab.mouse.move(box["x"] + box["width"] * 0.9, y)
    assert 0 < first < second == get(tab, "at")


def test_the_kernel_moves_it_too(host, view):
    tab = host([view(start=0.01)])
    set_to(tab, run=2)
    expect(tab.locator(".mt-headline")).to_contain_text("a cap of 1 MiB")
    expect(tab.get_by_label("1 MiB")).to_be_checked()
    set_to(tab, at=0.0)
    expect(tab.get_by_role("slider", name="Time")).to_have_value("0")
    set_to(tab, mode="model")
    expect(tab.get_by_label("Model")).to_be_checked()


def test_two_timelines_go_their_own_ways(host, view):
    tab = host([view(start=0.01), view(start=0.04)])
    first, second = root_of(tab).all()
    first.get_by_label("1 MiB").check()
    expect(second.get_by_label("41 KiB")).to_be_checked()
    first.focus()
    tab.keyboard.press("Home")
    assert tab.evaluate("models.map((m) => m.get('at'))") == [0, -1]
    assert tab.evaluate("[...document.querySelectorAll('main [id]')].map(e => e.id)") == ["hosts"]


def test_jupyterlab_leaves_the_keyboard_to_it(host, view):
    unguarded = root_of(host([view()])).evaluate(
        "root => [root, ...root.querySelectorAll('button, input, select, [tabindex]')]"
        ".filter(e => !e.hasAttribute('data-lm-suppress-shortcuts')).map(e => e.outerHTML)"
    )
    assert unguarded == []


def test_a_view_that_is_closed_leaves_nothing_running(host, view):
    for motion in ("reduce", "no-preference"):
        tab = host([view(start=1)], reduced_motion=motion)
        tab.get_by_role("button", name="Play").click()
        tab.evaluate("window.root = document.querySelector('.minidist-timeline'); cleanups[0]()")
        before = tab.evaluate("root.innerHTML")
        set_to(tab, at=0.0)
        set_to(tab, run=0)
        tab.set_viewport_size({"width": 500, "height": 900})
        tab.wait_for_timeout(700)
        assert tab.evaluate("root.innerHTML") == before


# Everywhere and for everyone


INSIDE = """() => [...document.querySelectorAll('.w-stage')].flatMap((stage) => {
  const s = stage.getBoundingClientRect();
  return [...stage.querySelectorAll('text')].filter((t) => {
    const b = t.getBoundingClientRect();
    return b.width && (b.left < s.left - 1 || b.right > s.right + 1 || b.bottom > s.bottom + 1);
  }).map((t) => t.textContent);
})"""
MANY = [[f"encoder.layers.{i}.attention.output.weight", 1e-3, MIB] for i in range(30)]


@pytest.mark.parametrize("width", [360, 390, 600, 1000])
def test_nothing_sticks_out(host, view, width):
    tab = host([view(start=0.01)], width=width)
    for values in (
        {"run": 0}, {"run": 1, "at": 1e-3}, {"run": 2, "step": 0}, {"mode": "model"}, {"cap": 1.0},
        {"layers": MANY}, {"at": 1e-2}, {"cap": 1e9}, {"alpha": 1e-7}, {"layer_seconds": 0.5},
    ):  # fmt: skip
        set_to(tab, **values)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, values
        assert tab.evaluate(INSIDE) == [], values
        tab.mouse.move(width - 40, tab.locator(".mt-lanes").bounding_box()["y"] + 30)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, values


def test_it_follows_the_width_of_the_page(host, view):
    tab = host([view()], width=1000)
    wide = tab.locator(".mt-lanes").bounding_box()["width"]
    tab.set_viewport_size({"width": 390, "height": 900})
    expect(tab.locator(".mt-lanes")).not_to_have_attribute("width", str(int(wide)))
    assert tab.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("mode", ["recorded", "model"])
def test_accessible(host, view, theme, mode):
    tab = host(
        [view(start=0.01, mode=mode)],
        html=f'data-theme="{theme}"',
        ground="#15181d" if theme == "dark" else "#fcfbf8",
    )
    end = told(tab, "seconds")
    for at in (-1, end / 2):
        set_to(tab, at=at)
        report = Axe().run(tab)
        assert report.violations_count == 0, report.generate_report()
    lanes, tubs, chart = tab.get_by_role("img").all()
    who = "Any rank" if mode == "model" else "Rank 0"
    expect(lanes.locator("desc")).to_have_text(re.compile(rf"^{who}: forward until .*bucket 0"))
    expect(tubs.locator("desc")).to_have_text(re.compile(rf"^{who}: bucket 0 "))
    expect(chart).to_have_accessible_name("Step time over bucket cap")


@pytest.mark.parametrize(
    ("options", "paper"),
    [
        ({"html": 'data-theme="dark"'}, "rgb(21, 24, 29)"),
        ({"body": 'data-jp-theme-light="false"'}, "rgb(21, 24, 29)"),
        ({"color_scheme": "dark"}, "rgb(21, 24, 29)"),
        ({"html": 'data-theme="light"', "color_scheme": "dark"}, "rgb(252, 251, 248)"),
    ],
)
def test_themes(host, view, options, paper):
    tab = host([view()], **options)
    colour = "getComputedStyle(document.querySelector('.minidist-timeline')).backgroundColor"
    assert tab.evaluate(colour) == paper


@pytest.mark.parametrize("other", [Player, Explorer])
def test_another_widget_on_the_page_changes_nothing(host, view, other):
    looks = """() => [...document.querySelectorAll('.minidist-widget, .minidist-widget *')].map(
      (e) => { const s = getComputedStyle(e); return [...s].map((p) => s[p]).join('|'); })"""
    tab = host([view(start=0.01)])
    before = tab.evaluate(looks)
    tab.add_style_tag(content=other._css)
    assert tab.evaluate(looks) == before
    tab.add_style_tag(content=".minidist-widget .mt-rank { font-size: 20px }")
    assert tab.evaluate(looks) == before  # a rule like those of the common style is weaker
    tab.add_style_tag(content=".minidist-widget .w-count { font-size: 20px }")
    assert tab.evaluate(looks) != before


def test_forced_colours(host, view):
    """Ink and paper are the system's then, in the pictures too; what is chosen stays visible."""
    tab = host([view(start=0.01)], forced_colors="active", color_scheme="dark")
    text, paper, chosen, other = tab.evaluate(
        """() => { const look = (s, what) => getComputedStyle(document.querySelector(s))[what];
        return [look('.mt-rank', 'fill'), look('.minidist-timeline', 'backgroundColor'),
          look('.mt-radios label:has(:checked)', 'backgroundColor'),
          look('.mt-radios label:not(:has(:checked))', 'backgroundColor')]; }"""
    )
    assert (text, paper) == ("rgb(255, 255, 255)", "rgb(0, 0, 0)")
    assert chosen != other
