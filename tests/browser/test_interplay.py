"""One selection for all charts and tables, in a real browser; tables, timeline, saving, print."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_report import browser, open_page, wait_drawn  # noqa: F401
from tests.report import made
from tracekit.report import html
from tracekit.report.section import Section

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = pytest.mark.browser

BARS = """
const chart = document.querySelectorAll("#overview .chart")[arguments[0]];
return chart.data.map((trace) => trace.orientation === "h" ? trace.x : trace.y);
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interplay") / "slow.html"
    path.write_text(html.render([made.slow()]), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:  # noqa: F811
    open_page(browser, report, "overview")
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def choose(browser: Any, name: str, text: str) -> None:  # noqa: F811
    field = browser.find_element(By.CSS_SELECTOR, f"form.choose [name={name}]")
    field.clear()
    field.send_keys(text, Keys.TAB)
    WebDriverWait(browser, 5).until(lambda b: f"{name}=" in b.current_url)


def rows(browser: Any, page: str, table: int = 0) -> list[list[str]]:  # noqa: F811
    return browser.execute_script(  # type: ignore[no-any-return]
        """
        const table = document.querySelectorAll(`#${arguments[0]} table`)[arguments[1]];
        return [...table.tBodies[0].rows].filter((row) => !row.hidden)
          .map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
        """,
        page,
        table,
    )


def test_a_choice_of_ranks_reaches_charts_and_tables_of_every_page(page: Any) -> None:
    whole = page.execute_script(BARS, 1)
    choose(page, "ranks", "1-2")
    wait_drawn(page)
    chosen = page.execute_script(BARS, 1)
    assert [len(series) for series in chosen] == [2] * len(whole)
    for before, after in zip(whole, chosen, strict=True):
        assert after == pytest.approx(before[1:3], rel=1e-3)
    page.find_element(By.LINK_TEXT, "Breakdown").click()
    WebDriverWait(page, 5).until(lambda b: b.find_element(By.ID, "breakdown").is_displayed())
    assert page.current_url.endswith("#breakdown?ranks=1,2")
    assert [row[0] for row in rows(page, "breakdown")] == ["rank 1", "rank 2"]
    page.find_element(By.CSS_SELECTOR, "form.choose .clear").click()
    WebDriverWait(page, 5).until(lambda _: len(rows(page, "breakdown")) == 4)


def test_means_of_a_selection_are_those_of_python(page: Any) -> None:
    section = made.slow()
    result = next(o.result for o in section.outcomes if o.analyzer.name == "breakdown")
    frame = result.per_step
    mean = frame[(frame["rank"] == 2) & (frame["step"] == 12)].iloc[0]
    choose(page, "ranks", "2")
    choose(page, "steps", "12")
    wait_drawn(page)
    bars = [series[0] for series in page.execute_script(BARS, 0)]
    assert sum(bars) * made.MS == pytest.approx(mean["step_ns"], rel=1e-3)
    words = [item.text for item in page.find_elements(By.CSS_SELECTOR, "#overview .legend .value")]
    expected = (mean["compute_ns"] - mean["hidden_comm_ns"]) / made.MS
    assert words[0].startswith(f"{expected:.2f} ms"), words
    assert page.execute_script(BARS, 2)[0] == [pytest.approx(10.0)]


def test_a_deep_link_opens_page_and_selection(browser: Any, report: Path) -> None:  # noqa: F811
    open_page(browser, report, "breakdown?ranks=0,3&steps=11-12")
    assert [row[0] for row in rows(browser, "breakdown")] == ["rank 0", "rank 3"]
    field = browser.find_element(By.CSS_SELECTOR, "form.choose [name=ranks]")
    assert field.get_attribute("value") == "0,3"
    steps = rows(browser, "breakdown", 1)
    assert {(row[0], row[1]) for row in steps} == {(r, s) for r in "03" for s in ("11", "12")}


def test_nonsense_in_the_address_chooses_nothing(browser: Any, report: Path) -> None:  # noqa: F811
    open_page(browser, report, "breakdown?ranks=99&steps=x&axis=<script>&y")
    assert len(rows(browser, "breakdown")) == 4
    open_page(browser, report, "%E0%A4%A")
    assert browser.find_element(By.ID, "overview").is_displayed()


def test_a_click_on_a_bar_chooses_its_rank(page: Any) -> None:
    page.execute_script(
        """
        const chart = document.querySelectorAll("#overview .chart")[1];
        chart.emit("plotly_click", {points: [{x: 2, y: 1}]});
        """
    )
    WebDriverWait(page, 5).until(lambda b: b.current_url.endswith("?ranks=2"))
    page.back()
    WebDriverWait(page, 5).until(lambda b: "ranks" not in b.current_url)


def test_the_finding_links_to_its_ranks(page: Any) -> None:
    links = page.find_elements(By.CSS_SELECTOR, "#overview .findings a")
    assert any("?ranks=" in link.get_attribute("href") for link in links)


def test_tables_sort_filter_and_copy(browser: Any, report: Path) -> None:  # noqa: F811
    open_page(browser, report, "breakdown")
    head = browser.find_elements(By.CSS_SELECTOR, "#breakdown th .sort")[2]  # compute
    head.click()
    assert rows(browser, "breakdown")[0][0] == "rank 2"
    head.click()
    assert rows(browser, "breakdown")[-1][0] == "rank 2"
    head.click()
    assert [row[0] for row in rows(browser, "breakdown")] == [f"rank {n}" for n in range(4)]
    browser.execute_script("document.querySelector('#breakdown details').open = true")
    field = browser.find_element(By.CSS_SELECTOR, "#breakdown details input[type=search]")
    field.send_keys("12")
    shown = rows(browser, "breakdown", 1)
    assert 0 < len(shown) < 20
    assert all(any("12" in cell for cell in row) for row in shown)
    text = browser.execute_script(
        """
        let copied = null;
        Object.defineProperty(navigator, "clipboard",
          {value: {writeText: async (text) => { copied = text; }}, configurable: true});
        document.querySelector("#breakdown button.csv").click();
        return copied;
        """
    )
    read = list(csv.reader(io.StringIO(text)))
    assert read[0][:2] == ["rank", "step (ms)"]
    assert [row[0] for row in read[1:]] == [f"rank {n}" for n in range(4)]


def test_keys_turn_pages_and_reach_the_choices(page: Any) -> None:
    body = page.find_element(By.TAG_NAME, "body")
    body.send_keys("]")
    WebDriverWait(page, 5).until(lambda b: b.find_element(By.ID, "breakdown").is_displayed())
    body.send_keys("[")
    WebDriverWait(page, 5).until(lambda b: b.find_element(By.ID, "overview").is_displayed())
    body.send_keys("r")
    assert page.switch_to.active_element.get_attribute("name") == "ranks"
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    body.send_keys("?")
    assert page.find_element(By.ID, "help").is_displayed()


def saved(browser: Any, selector: str, kind: str) -> str:  # noqa: F811
    """Press a chart's button; what it would download, as a data URL."""
    return browser.execute_async_script(  # type: ignore[no-any-return]
        """
        const [selector, kind, done] = arguments;
        const chart = document.querySelector(selector);
        HTMLAnchorElement.prototype.click = function () { done(this.href); };
        const figure = chart.closest("figure");
        [...figure.querySelectorAll("button.save")]
          .find((button) => button.textContent === kind).click();
        """,
        selector,
        kind,
    )


@pytest.mark.parametrize("place", ["#overview .chart", "#timeline .timeline"])
def test_a_chart_saves_as_png_and_svg(browser: Any, report: Path, place: str) -> None:  # noqa: F811
    open_page(browser, report, place.split()[0].strip("#"))
    png = saved(browser, place, "PNG")
    assert base64.b64decode(png.partition(",")[2]).startswith(b"\x89PNG")
    svg = saved(browser, place, "SVG")
    assert svg.startswith("data:image/svg+xml")
    assert "script-src" not in " ".join(entry["message"] for entry in browser.get_log("browser"))


# -- timeline ------------------------------------------------------------------------

PIXEL = """
const canvas = document.querySelector("#timeline canvas");
const [x, y] = [arguments[0] * canvas.width, arguments[1] * canvas.height];
return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
"""


def test_the_timeline_draws_hovers_and_zooms(browser: Any, report: Path) -> None:  # noqa: F811
    open_page(browser, report, "timeline")
    colours = {tuple(browser.execute_script(PIXEL, x / 50, 0.3)) for x in range(8, 48)}
    assert (0x3B, 0x6F, 0xB6, 255) in colours, "compute"
    canvas = browser.find_element(By.CSS_SELECTOR, "#timeline canvas")
    hover = """
    const [canvas, share] = arguments;
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new MouseEvent("mousemove",
      {clientX: box.left + share * box.width, clientY: box.top + 40, bubbles: true}));
    const tip = document.querySelector("#timeline .tip");
    return tip.hidden ? "" : tip.innerText;
    """
    words = browser.execute_script(hover, canvas, 0.3)
    assert "gemm" in words
    assert "ns)" in words
    assert "rank 0" in words
    element = browser.find_element(By.CSS_SELECTOR, "#timeline .timeline")
    before = browser.execute_script("return arguments[0].toDataURL()", canvas)
    element.send_keys("+")
    zoomed = browser.execute_script("return arguments[0].toDataURL()", canvas)
    assert zoomed != before
    element.send_keys("0")
    assert browser.execute_script("return arguments[0].toDataURL()", canvas) == before
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


def test_the_timeline_follows_ranks_and_steps(browser: Any, report: Path) -> None:  # noqa: F811
    open_page(browser, report, "timeline")
    height = "return document.querySelector('#timeline canvas').height"
    whole = browser.execute_script(height)
    open_page(browser, report, "timeline?ranks=1&steps=13")
    assert browser.execute_script(height) < whole
    picker = browser.find_element(By.CSS_SELECTOR, "#timeline .picker select")
    assert "step 13" in picker.text.splitlines()[int(picker.get_attribute("value"))]


def test_hostile_names_stay_text_in_the_timeline(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "hostile.html"
    path.write_text(html.render([made.hostile()]), encoding="utf-8")
    open_page(browser, path, "timeline")
    assert browser.find_elements(By.CSS_SELECTOR, "#timeline img, #timeline b:not(.tip b)") == []


# -- print ---------------------------------------------------------------------------


def test_the_whole_report_prints(browser: Any, report: Path) -> None:  # noqa: F811
    open_page(browser, report, "overview")
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    data = base64.b64decode(pdf)
    assert data.startswith(b"%PDF")
    pages = data.count(b"/Type /Page") - data.count(b"/Type /Pages")
    assert pages >= 6, "every page of the report is printed"
    undrawn = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].filter("
        "(e) => !e.closest('details') && !e.querySelector('.main-svg')).map((e) => e.id)"
    )
    assert undrawn == []


# -- several runs --------------------------------------------------------------------


def twins() -> list[Section]:
    runs = (
        made.run(*(made.longer(made.trace(r, 9), by, (0.0, 0.1)) for r in range(2)), name=name)
        for name, by in (("base", 0.0), ("new", 2.0))
    )
    return [made.section(run) for run in runs]


def test_two_runs_of_a_job_are_compared(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "twins.html"
    path.write_text(html.render(twins()), encoding="utf-8")
    open_page(browser, path, "compare")
    text = browser.find_element(By.ID, "compare").text
    assert "new is slower than base" in text
    assert "regression" in text
    assert browser.find_elements(By.CSS_SELECTOR, "#compare .chart .main-svg")
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


@pytest.mark.parametrize("kind", ["directory", "cdn"])
def test_plotly_from_elsewhere(browser: Any, tmp_path: Path, kind: str) -> None:  # noqa: F811
    path = tmp_path / "report.html"
    path.write_text(html.render([made.slow()], plotlyjs=html.PlotlyJs(kind)), encoding="utf-8")
    assert path.stat().st_size < 1_000_000
    if kind == "directory":
        (tmp_path / html.PLOTLY_FILE).write_text(html.plotly_source(), encoding="utf-8")
        open_page(browser, path, "overview")
        assert browser.get_log("browser") == []
        return
    browser.execute_cdp_cmd("Network.enable", {})
    browser.get_log("performance")
    browser.get(path.as_uri())
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if url.startswith("http")} <= {html.CDN}
