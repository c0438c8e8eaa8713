"""Tables of results on the pages are what their commands print today."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "results/tables.py"))
PAGES = SCRIPT["PAGES"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_are_those_of_the_results(page):
    text = page.read_text()
    assert SCRIPT["TABLE"].search(text)
    assert SCRIPT["renewed"](text) == text, "run: make tables"


def test_a_number_changed_by_hand_is_detected_and_corrected():
    text = PAGES[0].read_text()
    changed = re.sub(r"\| aggmatch \| \d", "| aggmatch | 9", text)
    assert changed != text
    assert SCRIPT["renewed"](changed) == text


def test_all_pages_with_such_tables_are_rewritten():
    commented = [page for page in ROOT.glob("**/*.md") if SCRIPT["TABLE"].search(page.read_text())]
    assert set(commented) <= set(SCRIPT["PAGES"])
