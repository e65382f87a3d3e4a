"""The report page: everything from run folders, one safe file, the same each time; and in a real browser."""

import re
from pathlib import Path

import pytest

from qdq.report.methods import Evidence, gather
from qdq.report.page import build, write_report
from qdq.report.runs import find_runs
from tests.browser import Browser
from tests.report.conftest import HOSTILE


@pytest.fixture(scope="session")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_report(gather(find_runs([runs])), out)
    return out


def test_the_page_is_one_safe_file(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert HOSTILE not in page
    assert "&lt;script&gt;alert" in page
    assert "alert('x')</script>" not in page
    scripts = re.findall(r"<script[^>]*>", page)
    assert scripts.count("<script>") == 1  # ours
    assert set(scripts) == {"<script>", '<script type="application/json" class="hover">'}
    assert "default-src 'none'" in page
    for outside in (' src="', "<link", "@import", "url(http", "<iframe"):
        assert outside not in page


def test_every_figure_is_also_a_file(report: Path) -> None:
    page = (report / "index.html").read_text()
    links = re.findall(r'href="(figures/[^"]+)"', page)
    assert len(links) == 3 * page.count('<figure class="live">')
    assert len(set(links)) == len(links)
    for link in links:
        assert (report / link).stat().st_size > 0
    assert sorted(str(path.relative_to(report)) for path in (report / "figures").iterdir()) == sorted(links)


def test_the_page_tells_everything(report: Path, evidence: Evidence) -> None:
    page = (report / "index.html").read_text()
    for section in (
        "Results",
        "Learning curves",
        "Comparison",
        "Q distribution",
        "Uncertainty",
        "Time",
        "Settings",
        "Data",
        "Reproduce",
    ):
        assert f"<h2>{section}</h2>" in page
    row = evidence.row("hopper-medium", "QDQ")
    assert row is not None
    assert row.summary is not None
    assert f'<td class="number" data-value="{row.summary["mean"]}">' in page
    assert '99 ± 0.3<span class="below">on D4RL v2</span>' in page
    assert "unfinished: 1 of 2 seeds finished, one at step 200" in page
    assert "no environment, so no score" in page
    assert "qdq train hopper-medium --algorithm qdq --preset fast" in page
    assert "2,400" in page  # the data card


def test_the_page_is_the_same_each_time(runs: Path) -> None:
    one, two = (build(gather(find_runs([runs / "bc"])))[1] for _ in range(2))
    assert one == two


def test_a_tie_is_told_as_one(runs: Path) -> None:
    _, page = build(gather(find_runs([runs / "qdq", runs / "qdq-alpha"])))  # the same scores under two settings
    assert "hopper-medium: highest mean, QDQ and QDQ (alpha=0.9) (2 seeds)" in page
    _, page = build(gather(find_runs([runs / "qdq", runs / "bc"])))
    assert len(re.findall("hopper-medium: highest mean, (QDQ|BC) ", page)) == 1


@pytest.mark.parametrize("folder", ["hostile", "bc", "nested"])
def test_pages_of_little_still_stand(folder: str, runs: Path) -> None:
    page, text = build(gather(find_runs([runs / folder])))
    assert len(page.sections) == 11
    assert 'class="none"' in text


CELLS = "[...document.querySelectorAll('#results tbody tr')].map(row => row.cells[{}].dataset.value)"


def test_in_chromium(report: Path, browser: Browser) -> None:
    browser.open((report / "index.html").as_uri())
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [(report / "index.html").as_uri()]
    assert browser.evaluate("document.title").startswith("4 methods on 2 datasets")
    assert browser.evaluate("document.querySelectorAll('figure svg').length") >= 20
    assert browser.evaluate(
        "[...document.querySelectorAll('figure')].every(f => f.offsetWidth > 200 || !f.offsetParent)"
    )

    # Sorting: descending first for numbers, missing ones always last, then the other way round.
    before = browser.evaluate(CELLS.format(2))
    browser.click("#results th:nth-child(3) button")
    down = [float(value) for value in browser.evaluate(CELLS.format(2)) if value]
    assert down == sorted(down, reverse=True)
    assert len(down) == 4
    assert browser.evaluate(CELLS.format(2))[-1] == ""
    browser.click("#results th:nth-child(3) button")
    up = browser.evaluate(CELLS.format(2))
    assert [float(value) for value in up if value] == down[::-1]
    assert up[-1] == ""
    assert sorted(up) == sorted(before)
    assert browser.evaluate("document.querySelector('#results th:nth-child(3)').ariaSort") == "ascending"
    browser.click("#results th:nth-child(2) button")
    names = browser.evaluate(CELLS.format(1))
    assert names == sorted(names)

    # Filtering.
    browser.click(".tools input")
    browser.type("qdq alpha")
    assert (
        browser.evaluate("[...document.querySelectorAll('#results tbody tr')].filter(row => !row.hidden).length") == 1
    )

    # Values under the pointer.
    browser.move("#learning-curves .plot", 0.5, 0.5)
    assert browser.evaluate("document.querySelector('#learning-curves .tip').hidden") is False
    tip = browser.evaluate("document.querySelector('#learning-curves .tip').innerText")
    assert "gradient steps: 200" in tip
    assert "QDQ" in tip
    assert browser.complaints() == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_every_window_and_scheme(width: int, dark: bool, report: Path, browser: Browser) -> None:
    browser.open((report / "index.html").as_uri(), width, 844, dark)
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width  # nothing sticks out
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", paper)[:3])) > 3 * 128
    assert light != dark
    browser.click("button.theme")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != paper
