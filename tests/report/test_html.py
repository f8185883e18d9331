from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from tests.report import made
from tracekit.report import html
from tracekit.report.figures import escape
from tracekit.report.section import Section

ELEMENTS = {
    "html", "head", "meta", "link", "title", "style", "body", "a", "nav", "ul", "li", "section",
    "header", "h1", "h2", "h3", "p", "main", "article", "div", "span", "figure", "figcaption",
    "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "bdi", "dl", "dt", "dd",
    "pre", "button", "script", "noscript", "template", "form", "label", "input", "select",
    "option", "datalist", "dialog", "kbd",
}  # fmt: skip


class Document(HTMLParser):
    """What a browser would make of it: scripts, style, attributes, text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._in = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._in = tag
            if tag == "script":
                self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self._in == "style":
            self.styles.append(data)
        else:
            self.text.append(data)

    def policy(self) -> str:
        return next(
            str(attrs["content"])
            for tag, attrs in self.tags
            if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
        )


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.fixture(scope="module", params=["plain", "slow", "hostile", "large", "unavailable"])
def section(request: pytest.FixtureRequest) -> Section:
    sections = {
        "plain": made.section,
        "slow": made.slow,
        "hostile": made.hostile,
        "large": made.large,
        "unavailable": made.unavailable,
    }
    return sections[request.param]()


@pytest.fixture(scope="module")
def document(section: Section) -> Document:
    return Document(html.render([section]))


def test_the_same_sections_give_the_same_bytes(section: Section) -> None:
    assert html.render([section]).encode() == html.render([section]).encode()


def test_the_policy_allows_exactly_what_the_file_holds(document: Document) -> None:
    policy = document.policy()
    code = [text for attrs, text in document.scripts if "type" not in attrs]
    packed = next(text for attrs, text in document.scripts if attrs.get("id") == "plotly")
    plotly = gzip.decompress(base64.b64decode(packed)).decode()
    scripts = re.search(r"script-src ([^;]*)", policy)
    styles = re.search(r"style-src ([^;]*)", policy)
    assert scripts is not None
    assert styles is not None
    assert len(code) == 1
    assert set(scripts[1].split()) == {digest(code[0]), digest(plotly)}
    assert set(styles[1].split()) == {digest(document.styles[0]), digest("")}
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy


def test_nothing_is_loaded_from_anywhere(document: Document) -> None:
    for tag, attrs in document.tags:
        assert not any(name.startswith("on") or name == "style" for name in attrs), (tag, attrs)
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            target = attrs.get(name)
            assert target is None or target.startswith(("#", "data:,")), (tag, target)
    assert not re.search(r"url\(|@import", document.styles[0])


def test_only_known_elements_appear(document: Document) -> None:
    assert {tag for tag, _ in document.tags} <= ELEMENTS


def test_charts_are_json_with_what_they_need(document: Document) -> None:
    kinds = ("chart", "timeline")
    charts = {attrs["id"] for tag, attrs in document.tags if attrs.get("class") in kinds}
    figures = {
        attrs["data-chart"]: text for attrs, text in document.scripts if "data-chart" in attrs
    }
    assert charts == set(figures)
    for text in figures.values():
        figure = json.loads(text)
        assert figure["height"] > 0
        assert {"data", "layout"} <= set(figure) or {"views", "roles", "names"} <= set(figure)


def test_hostile_names_are_text() -> None:
    source = html.render([made.hostile()])
    document = Document(source)
    assert made.EVIL not in source
    assert any(made.EVIL in text for text in document.text)
    assert "\u202e" not in source
    assert any("K" * 10_000 in text for text in document.text), "the full name is reachable"
    assert any("{{ 7 * 7 }}" in text for text in document.text)
    source.encode()


def test_script_json_cannot_leave_its_element() -> None:
    text = html.script_json(["</script>", "<!--", "&", "\u2028\u2029"])
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == ["</script>", "<!--", "&", "\u2028\u2029"]


def test_plotly_reads_no_tag_in_a_name() -> None:
    assert escape('<b>&amp;<a href="x">') == '&lt;b&gt;&amp;amp;&lt;a href="x"&gt;'


def test_several_runs_have_pages_of_their_own() -> None:
    document = Document(html.render([made.section(), made.section(made.run(name="other"))]))
    ids = [attrs["id"] for tag, attrs in document.tags if tag == "article"]
    assert ids[0] == "runs"
    assert "run1-overlap" in ids
    assert "run2-overlap" in ids
    every = [attrs["id"] for _, attrs in document.tags if "id" in attrs]
    assert len(every) == len(set(every))
    links = {attrs["href"] for tag, attrs in document.tags if tag == "a"}
    assert {str(link).partition("?")[0] for link in links} <= {f"#{name}" for name in every}


def test_runs_of_the_same_name_are_told_apart() -> None:
    text = Document(html.render([made.section(), made.section()])).text
    assert "tp 2 (1)" in text
    assert "tp 2 (2)" in text


def test_diagnostics_are_counted_on_every_page() -> None:
    section = made.section(made.run(diagnostics=[made.WARNING] * 2))
    assert "2 diagnostics</a>" in html.render([section])


def test_many_ranks_are_condensed_and_said_to_be() -> None:
    text = " ".join(Document(html.render([made.large()])).text)
    assert "100 ranks: the culprit and the 7 that lose most, by name" in text
    assert "200 of 300 rows: those with the highest" in text


def test_prose_shows_no_escaped_line_break() -> None:
    assert "\\x0a" not in html.render([made.section()])
