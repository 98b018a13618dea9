"""The report's page in a real browser: it draws everything, says no error, asks nobody, and fits a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, needs_chromium
from support.synthetic_run import write_run

from sbpipe.show.report.build import build_report

pytestmark = [pytest.mark.browser, needs_chromium]
SHADE_OF_PAGE = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("runs") / "run", steps=120)
    return build_report([path], path / "report.html", figures=False)


def open_page(browser: Browser, page: Path, *, width: int = 1200, is_dark: bool = False) -> None:
    browser.open("about:blank")  # so that what an earlier page says is not heard after this one has opened
    browser.set_viewport(width, 844)
    browser.dark(is_dark)
    browser.open(page.as_uri())


def draw_all(browser: Browser) -> int:
    return int(browser.evaluate("sbpipeReport.drawAll()"))


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("is_dark", [False, True])
def test_every_chart_is_drawn_without_an_error(
    browser: Browser, page: Path, width: int, is_dark: bool
) -> None:
    open_page(browser, page, width=width, is_dark=is_dark)
    assert draw_all(browser) == browser.evaluate("sbpipeReport.count") >= 10
    assert browser.evaluate(
        "[...document.querySelectorAll('.chart')].every(box => box.querySelector('svg, canvas'))"
    )
    assert browser.evaluate("document.querySelectorAll('.failed').length") == 0
    assert browser.errors == []
    assert browser.warnings == []


def test_the_page_asks_nobody_for_anything(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    draw_all(browser)
    assert [address for address in browser.requests if not address.startswith("data:")] == [page.as_uri()]


def test_a_phone_does_not_scroll_sideways(browser: Browser, page: Path) -> None:
    open_page(browser, page, width=390)
    browser.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    draw_all(browser)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [1200, 390])
def test_no_legend_is_cut_off_below(browser: Browser, page: Path, width: int) -> None:
    open_page(browser, page, width=width)
    draw_all(browser)
    cut = """[...document.querySelectorAll('.chart')].filter(box => {
        const svg = box.querySelector('svg'), shape = svg && svg.getBBox();
        return svg && shape.y + shape.height > svg.clientHeight + 2;
    }).map(box => box.dataset.spec)"""
    assert browser.evaluate("document.querySelector('#timeline svg') !== null")
    assert browser.evaluate(cut) == []


def test_charts_far_below_wait_until_they_are_scrolled_to(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    assert browser.evaluate("sbpipeReport.drawn()") < browser.evaluate("sbpipeReport.count")
    browser.evaluate("document.getElementById('examples-never-kept').scrollIntoView({behavior: 'instant'})")
    browser.wait_until("document.querySelector('#examples-never-kept .drawn') !== null")


def test_the_shade_follows_the_reader_while_the_page_is_open(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    draw_all(browser)
    light = browser.evaluate(SHADE_OF_PAGE)
    ink = "document.querySelector('#loss .role-axis-title text').getAttribute('fill')"
    assert browser.evaluate(ink) == "#1f2933"
    browser.dark(True)
    browser.wait_until(f"({ink}) === '#e6e9ec'")
    assert browser.evaluate(SHADE_OF_PAGE) != light


def test_a_folded_run_is_drawn_when_it_is_opened(browser: Browser, tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name) for name in ("a", "b")]
    open_page(browser, build_report(paths, tmp_path / "report.html", figures=False))
    browser.evaluate("document.querySelector('details').open = true")
    browser.evaluate("document.querySelector('details figure').scrollIntoView({behavior: 'instant'})")
    browser.wait_until("document.querySelector('details .chart.drawn') !== null")
    assert browser.errors == []


def test_a_long_run_makes_a_page_hardly_bigger_than_a_short_one(browser: Browser, tmp_path: Path) -> None:
    short, long = (write_run(tmp_path / str(steps), steps=steps) for steps in (1_200, 12_000))
    sizes = [
        build_report([path], path / "report.html", figures=False).stat().st_size for path in (short, long)
    ]
    browser.open((long / "report.html").as_uri())
    assert browser.errors == []
    assert sizes[1] < 1.5 * sizes[0]
