"""Opens text files: compressed ones, in any encoding; and what to say of one whose encoding is not the expected one."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes.options import data_sources

SAMPLE_BYTES = 200_000  # of a file, to guess its encoding
FEW_HIGH_BYTES = 0.3  # a Latin script has fewer bytes above 127 than this; Cyrillic, Chinese and others have more
MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16"}
MARKS |= {codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8"}  # byte order marks; the longer ones first


def _zstandard(path: Path) -> Any:
    import zstandard  # pyright: ignore[reportMissingImports]  # `options.data` has refused a .zst file without the package

    return zstandard.open(path, "rb")


OPENERS: dict[str, Callable[[Path], Any]] = {
    "": lambda path: open(path, "rb"),  # noqa: SIM115 (the caller closes it)
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstandard,
}


def open_binary(path: Path) -> Any:
    """A file's bytes, decompressed if its suffix says that it is compressed."""
    return OPENERS[data_sources.compression(path)](path)


def open_text(path: Path, encoding: str, newline: str | None = None) -> io.TextIOWrapper:
    """A file's text. encoding: in UTF-8 a byte order mark at the beginning is left out. newline: as for `open`."""
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"
    return io.TextIOWrapper(open_binary(path), encoding=encoding, newline=newline)


def seeming_encoding(path: Path) -> str:
    """The encoding that a file seems to have."""
    with open_binary(path) as file:
        sample = file.read(SAMPLE_BYTES)
    for mark, name in MARKS.items():
        if sample.startswith(mark):
            return name
    high = [byte for byte in sample if byte > 127]
    if b"\0" not in sample and len(high) < FEW_HIGH_BYTES * len(sample):
        return "cp1252" if any(byte < 0xA0 for byte in high) else "latin-1"
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    return "latin-1" if best is None else best.encoding.replace("_", "-")


def is_utf8_read_as(path: Path, encoding: str) -> bool:
    """Whether a file is in UTF-8, with characters that another encoding would show as other ones without an error."""
    if codecs.lookup(encoding).name == "utf-8":
        return False
    with open_binary(path) as file:
        sample = file.read(SAMPLE_BYTES)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # a character may be cut at the end
    except UnicodeDecodeError:
        return False
    return not sample.isascii()


def wrong_encoding(path: Path, encoding: str) -> str:
    """What is wrong with a file that is not in `encoding`, and what to do."""
    seems = seeming_encoding(path)
    advice = (
        f"Type data.encoding={seems}, or convert it: iconv -f {seems} -t utf-8 {path.name} > new{path.suffix}"
        if seems != encoding
        else "It may be damaged, or no text."
    )
    return f"it is not in {encoding}, and seems to be in {seems}. {advice}"
