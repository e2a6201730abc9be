"""The doctor's page: lines of text with a style each."""

import textwrap

WIDTH, NAME_COLUMN = 80, 27  # a row: two spaces, the name up to NAME_COLUMN, the text wrapped behind it
NOT_AVAILABLE = "not available"


def cell(text: str, width: int) -> str:
    """A text in a column of so many characters. A longer one moves the rest to the right; two spaces follow anyway."""
    return f"{text:<{width - 2}}  "


class Page:
    """Lines of at most 80 columns with a style each; `rich` colours them on a terminal."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def head(self, text: str) -> None:
        """A section's title, or the page's."""
        self.lines += [("", ""), (text, "bold")] if self.lines else [(text, "bold")]

    def row(self, name: str, text: str, style: str = "") -> None:
        """A name and a text behind it."""
        self.wrapped("  " + cell(name, NAME_COLUMN - 2), text, style, " " * NAME_COLUMN)

    def wrapped(self, start: str, text: str, style: str = "", indent: str = "    ") -> None:
        """A first part and a text behind it; further lines are indented."""
        lines = textwrap.wrap(
            text, WIDTH, initial_indent=start, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        self.lines += [(line, style) for line in lines]
