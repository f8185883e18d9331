"""The report in a real browser: it draws, it keeps to itself, and names stay text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report import made
from tracekit.report import html
from tracekit.report.page import pages

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.common.exceptions import NoAlertPresentException  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = pytest.mark.browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAGES = [page.slug for page in pages()]
UNDRAWN = """
return [...document.querySelectorAll(".chart")].filter(
  (item) => item.getClientRects().length && !item.querySelector(".main-svg")).length
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file per kind of report."""
    path = tmp_path_factory.mktemp("reports")
    sections = {
        "plain": [made.slow()],
        "hostile": [made.hostile()],
        "large": [made.large()],
        "several": [made.section(), made.hostile(), made.unavailable()],
    }
    for name, section in sections.items():
        (path / f"{name}.html").write_text(html.render(section), encoding="utf-8", newline="\n")
    return path


def open_page(browser: Any, path: Path, page: str) -> None:
    """Open a page afresh and wait until its charts are drawn."""
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(f"{path.as_uri()}#{page}")
    wait_drawn(browser)


def wait_drawn(browser: Any) -> None:
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(UNDRAWN) == 0)


def requests(browser: Any) -> list[str]:
    """Addresses asked for since the page was opened."""
    events = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", ["plain", "hostile", "large"])
def test_a_page_draws_in_peace(browser: Any, folder: Path, name: str, page: str) -> None:
    open_page(browser, folder / f"{name}.html", page)
    shown = [a.get_attribute("id") for a in browser.find_elements("css selector", "article.page")
             if a.is_displayed()]  # fmt: skip
    assert shown == [page], "the address opens its page and no other"
    assert browser.get_log("browser") == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests(browser))
    assert browser.execute_script("return document.querySelectorAll('.failed').length") == 0


@pytest.mark.parametrize("name", ["plain", "large"])
def test_figures_are_valid_for_plotly(browser: Any, folder: Path, name: str) -> None:
    open_page(browser, folder / f"{name}.html", "overview")
    problems = browser.execute_script(
        """
        return [...document.querySelectorAll("script[data-chart]")].flatMap((script) => {
          const text = script.textContent;
          const figure = JSON.parse(text.replaceAll(/var\\(--[a-z]+\\)( \\d+%)?/g, "#123456"));
          if (!figure.data) return []; // a timeline, which Plotly does not draw
          const found = Plotly.validate(figure.data, figure.layout) ?? [];
          return found.filter((item) => item.code !== "unused").map((item) => item.msg);
        });
        """
    )
    assert problems == []


def test_hostile_names_stay_text(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "hostile.html", "overlap")
    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert.text
    assert made.EVIL in browser.find_element("id", "overlap").text
    chart = "#overlap .chart svg"
    assert browser.find_elements("css selector", f"{chart} a, {chart} image[href^='x']") == []
    labels = [item.text for item in browser.find_elements("css selector", "#overlap .ytick text")]
    assert any("<b>bold" in label for label in labels), labels


def test_navigation_by_keyboard(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "plain.html", "overview")
    link = browser.find_element("link text", "Overlap")
    link.send_keys(Keys.ENTER)
    WebDriverWait(browser, 5).until(lambda b: b.find_element("id", "overlap").is_displayed())
    wait_drawn(browser)
    assert browser.current_url.endswith("#overlap")
    assert link.get_attribute("aria-current") == "page"
    assert browser.switch_to.active_element.get_attribute("id") == "overlap"
    browser.back()
    WebDriverWait(browser, 5).until(lambda b: b.find_element("id", "overview").is_displayed())


def test_the_culprit_is_outlined(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "plain.html", "overview")
    assert len(browser.find_elements("css selector", "#overview .shapelayer path")) == 1


def test_several_runs_open_side_by_side(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "several.html", "")
    assert browser.find_element("id", "runs").is_displayed()
    assert browser.get_log("browser") == []


def test_runs_switch_and_keep_the_page(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "several.html", "overlap")
    assert browser.find_element("id", "run1-overlap").is_displayed()
    browser.find_element("css selector", "nav.runs a[data-run=run2]").click()
    WebDriverWait(browser, 5).until(lambda b: b.find_element("id", "run2-overlap").is_displayed())
    wait_drawn(browser)
    assert not browser.find_element("id", "run1-overlap").is_displayed()
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [400, 720, 1280])
@pytest.mark.parametrize("name", ["plain", "hostile", "large"])
def test_nothing_spills_sideways(browser: Any, folder: Path, name: str, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for page in PAGES:
            open_page(browser, folder / f"{name}.html", page)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width, page
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_colours_follow_the_theme(browser: Any, folder: Path) -> None:
    fill = "return document.querySelector('#overview .chart .point path').style.fill"
    open_page(browser, folder / "plain.html", "overview")
    light = browser.execute_script(fill)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        WebDriverWait(browser, 5).until(lambda b: b.execute_script(fill) != light)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert light == "rgb(59, 111, 182)"
