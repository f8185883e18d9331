"""Every analyzer has a page, every page an analyzer; each page answers before it shows."""

from __future__ import annotations

import pytest

from tests.report import made
from tracekit.analysis._contract import analyzers
from tracekit.report.blocks import Answer, Block, Folded, Text
from tracekit.report.page import AnyPage, Page, pages

ABOUT_THE_RUN = {"overview", "timeline", "topology", "conditions"}


def test_every_analyzer_has_a_page_and_every_page_an_analyzer() -> None:
    shown = {page.slug for page in pages()} - ABOUT_THE_RUN
    known = set(analyzers())
    missing = [f"dashboards/{name}.py with a PAGE for its analyzer" for name in known - shown]
    extra = [f"tracekit/analysis/{name}.py for its page" for name in shown - known]
    assert not missing + extra, "write " + ", ".join(sorted(missing + extra))


def test_a_page_lives_in_the_module_named_like_its_analyzer() -> None:
    for page in pages():
        if isinstance(page, Page):
            assert page.build.__module__ == f"tracekit.dashboards.{page.analyzer.name}"
            assert analyzers()[page.analyzer.name] is page.analyzer


def test_titles_and_places_are_unique() -> None:
    found = pages()
    assert len({page.title for page in found}) == len(found)
    assert len({page.order for page in found}) == len(found)
    assert found[0].slug == "overview"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.slug)
def test_a_page_answers_before_it_shows(page: AnyPage) -> None:
    for section in (made.section(), made.large(), made.hostile(), made.unavailable()):
        blocks = page.blocks(section)
        assert blocks is not None
        assert isinstance(blocks[0], Answer)
        assert blocks[0].sentence.endswith(".") or not page.available(section)
        if isinstance(page, Page):
            assert _method(blocks[-1])


def _method(block: Block) -> bool:
    return isinstance(block, Folded) and block.title == "Method and limits"


def test_the_method_is_told_in_the_words_of_the_analyzer() -> None:
    page = next(page for page in pages() if page.slug == "overlap")
    blocks = page.blocks(made.section())
    assert blocks is not None
    fold = blocks[-1]
    assert isinstance(fold, Folded)
    text = fold.blocks[0]
    assert isinstance(text, Text)
    assert [part.split()[0] for part in text.text.split("\n\n")] == [
        "Communication", "Definition:", "Limits:"
    ]  # fmt: skip
    assert "`" not in text.text
