"""Texts from records and files of other people, made safe for a terminal and a table."""

import unicodedata

# Control and format characters (escape codes, text direction), surrogates, and the separators of lines and paragraphs.
UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str, keep: str = "") -> str:
    """The text with every character that would not be printed as itself written as an escape: `\\x1b`.

    keep: characters that stay as they are, for example line breaks.
    """
    if text.isprintable():
        return text
    shown = []
    for character in text:
        if character not in keep and unicodedata.category(character) in UNPRINTABLE:
            character = character.encode("unicode_escape", "backslashreplace").decode()
        shown.append(character)
    return "".join(shown)
