"""The report in a real Chromium: opened, clicked, read by axe-core, looked at.

Debian's package `chromium` is driven by Playwright; without it, or without Playwright, every test
here is skipped by name.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reported

pytest.importorskip("matplotlib", reason="the report's pictures need matplotlib")
api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

from kernelwright.report.page import report_html  # noqa: E402

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here (on Debian: apt-get install chromium)"
)
GOLDEN = Path(__file__).parents[1] / "golden" / "report"
REPORTS = (*reported.FOUNDING, reported.GPT)
OPENS_MS, LARGEST = 1000, 2_000_000
ALIKE = 10  # of 255, the mean by which two screenshots may differ: fonts differ between machines
WAIT = 300_000  # ms; this machine may be stopped for minutes while others measure


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=WAIT
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for name in REPORTS:
        found[name] = folder / f"{name}.html"
        found[name].write_text(report_html(reported.whole(name, failed=name == reported.GPT)))
    return found


@pytest.fixture
def opened(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    """`opened(name, **context)` is the page of a report; anything on its console fails the test."""
    contexts, told = [], []

    def open_one(name: str, **options: Any) -> Any:
        options = {"viewport": {"width": 1280, "height": 900}, **options}
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda r: r.url.startswith("file:") or told.append(f"asks {r.url}"))
        page.goto(files[name].as_uri())
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert told == []


@pytest.mark.parametrize("name", REPORTS)
def test_it_opens_in_a_second_and_is_small(opened: Any, files: dict[str, Path], name: str) -> None:
    """The quickest of some loads: others use this machine."""
    assert files[name].stat().st_size < LARGEST
    page = opened(name)
    taken = []
    for _ in range(5):
        (timing,) = page.evaluate("performance.getEntriesByType('navigation').map(e => e.toJSON())")
        taken.append(timing["loadEventEnd"])
        if taken[-1] < OPENS_MS:
            break
        page.reload()
    assert 0 < min(taken) < OPENS_MS


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in reported.FOUNDING),
        (reported.GPT, {"color_scheme": "dark"}),
        (reported.FOUNDING[0], {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}}),
    ],
)
def test_axe_finds_no_violation(opened: Any, name: str, options: dict[str, Any]) -> None:
    page = opened(name, **options)
    page.evaluate(
        "[...document.querySelectorAll('details')].slice(0, 4).forEach(d => d.open = true)"
    )
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    said = [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in found]
    assert said == []


def test_a_chip_leads_to_its_step_and_back(opened: Any) -> None:
    page = opened(reported.FOUNDING[0])
    chip = page.locator("#source a.chip", has_text="bias_group_norm_min").first
    chip.click()
    assert page.url.endswith("#step-bias_group_norm_min")
    card = page.locator("#step-bias_group_norm_min")
    assert card.evaluate("e => e.open") is True
    back = card.locator("dd a[href^='#L']").first
    place = back.get_attribute("href")
    back.click()
    assert page.url.endswith(str(place))
    assert page.locator(str(place)).get_attribute("data-steps")


def test_what_belongs_together_lights_up(opened: Any) -> None:
    page = opened(reported.FOUNDING[0])
    page.locator("#graphs svg .mark[data-steps~='add']").first.hover()
    lit = page.evaluate("[...document.querySelectorAll('.lit')].map(e => e.dataset.steps)")
    assert lit and all("add" in steps.split() for steps in lit)
    assert page.locator("#source tr.lit").count() == 1
    assert page.locator(".card.lit").count() == 1
    page.locator("h1").hover()
    assert page.locator(".lit").count() == 0


def test_a_box_of_the_graph_leads_to_its_step(opened: Any) -> None:
    page = opened(reported.GPT)
    box = page.locator("#graphs svg a.mark[data-steps]").first
    step = box.get_attribute("href")
    box.focus()
    assert page.locator(".card.lit").count() == 1, "the keyboard lights up as the pointer does"
    page.keyboard.press("Enter")
    assert page.url.endswith(str(step))


def test_tables_are_narrowed(opened: Any) -> None:
    page = opened(reported.GPT)
    rows = page.locator("#ledger-table tbody tr")
    every = rows.count()
    page.get_by_label("Only rows with").fill("softmax")
    shown = page.locator("#ledger-table tbody tr:visible")
    assert 0 < shown.count() < every
    assert all("softmax" in text.lower() for text in shown.all_inner_texts())
    assert page.locator(".count").inner_text() == f"{shown.count()} of {every} rows"
    page.get_by_role("button", name="Failed").click()
    checks = page.locator(".checks tbody tr:visible")
    assert checks.count() == 1 and "gradients: twice" in checks.first.inner_text()


def test_the_keyboard_reaches_the_report(opened: Any) -> None:
    page = opened(reported.FOUNDING[0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details.card").first.evaluate("e => e.open") is True


def test_it_is_read_without_javascript(opened: Any) -> None:
    page = opened(reported.FOUNDING[0], java_script_enabled=False)
    text = page.locator("body").inner_text()
    for said in ("Certified", "2.00x", "self.group_norm(x)", "gradients: twice", "fused"):
        assert said in text
    assert page.locator(".tools:visible").count() == 0, "no control that does nothing"
    page.locator("summary").first.click()
    assert page.locator("details.card[open]").count() == 1
    assert page.locator("svg.figure").count() >= 4


def test_nothing_is_wider_than_the_window(opened: Any) -> None:
    for width in (1280, 390):
        page = opened(reported.GPT, viewport={"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_looks_as_it_did(opened: Any, request: pytest.FixtureRequest, scheme: str) -> None:
    """The top of the page, made small: tolerant of fonts, but not of a layout that fell apart."""
    from PIL import Image, ImageChops, ImageStat

    page = opened(reported.FOUNDING[0], color_scheme=scheme)
    page.add_style_tag(content="* { animation: none !important; transition: none !important; }")
    whole = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    found = whole.resize((160, 112), Image.Resampling.BOX)
    path = GOLDEN / f"top-{scheme}.png"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path, optimize=True)
    assert path.is_file(), f"{path} does not exist; run pytest --update-golden and look at it"
    difference = ImageChops.difference(found, Image.open(path).convert("RGB"))
    assert max(ImageStat.Stat(difference).mean) < ALIKE
    blank = Image.new("RGB", found.size, found.getpixel((0, 0)))
    assert max(ImageStat.Stat(ImageChops.difference(found, blank)).mean) > 3
    light = sum(ImageStat.Stat(found).mean) / 3
    assert light > 200 if scheme == "light" else light < 60


def test_pictures_keep_their_colours_in_the_dark(opened: Any) -> None:
    """No stroke is left in a colour of the drawing, and the schemes differ."""
    seen = {}
    for scheme in ("light", "dark"):
        page = opened(reported.FOUNDING[0], color_scheme=scheme)
        strokes = "[...document.querySelectorAll('svg path')].map(e => getComputedStyle(e).stroke)"
        seen[scheme] = set(page.evaluate(strokes))
        assert not any(re.search(r"rgb\(1, [123], ", stroke) for stroke in seen[scheme])
    assert seen["light"] != seen["dark"]
