"""docs/keys.md and docs/record.md are what tests/tools/reference_pages.py writes."""

import re

import reference_pages

from legroom.config import GROUPS


def test_the_pages_are_written_anew():
    for file, content in reference_pages.pages().items():
        assert file.read_text() == content, "run: python tests/tools/reference_pages.py"


def test_no_line_of_the_help_is_lost():
    """Each menu has its section, and each option and key of the help text a row."""
    text = reference_pages.help_text.describe(reference_pages.ROOT / "conf")
    page = reference_pages.keys_page(text)
    assert {*re.findall(r"^## (\w+)$", page, re.MULTILINE)} == set(GROUPS)
    listed = [line for line in text.partition("their options:\n")[2].splitlines() if line.startswith("  ")]
    assert len(listed) == len(re.findall(r"^\| `", page, re.MULTILINE))
