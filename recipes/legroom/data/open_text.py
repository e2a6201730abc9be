"""Opens text files: compressed ones, in any encoding; and what to say of one whose encoding is not the expected one."""

import bz2
import codecs
import gzip
import io
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legroom.options import data_sources
from legroom.records.printable import printable

SAMPLE_BYTES = 200_000  # of a file, to guess its encoding
LARGEST_WINDOW = 2**31  # bytes, of zstd
LONG_RUN = 3  # bytes above 127 in a row: rare in a Latin script, where most letters are below
LONG_RUNS = 0.5  # the share of the bytes above 127 that stand in such runs where the script is another one
SHOWN = 20  # characters on each side of the first one that is read differently
BYTE_ORDER_MARKS = {  # the longer ones first, since two of them begin with others
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
# A stray control character may be in a text, and tabs, line breaks and escapes are in many.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0e-\x19\x1c-\x1f]")
MOST_CONTROL_CHARACTERS = 0.01  # of the bytes of a text


def _zstandard(path: Path) -> Any:
    import zstandard  # pyright: ignore[reportMissingImports]  # `options.data` has refused a .zst file without the package

    # Of any window (zstd --long=31), and of files that are several frames, as those that were appended to.
    unpacker = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    return unpacker.stream_reader(open(path, "rb"), read_across_frames=True, closefd=True)


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
    """A file's text, without a byte order mark at its beginning. newline: as for `open`."""
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"
    elif "16" in encoding and _sample(path)[:2] in BYTE_ORDER_MARKS:
        encoding = "utf-16"  # which leaves out the mark that utf-16-le takes for text
    return io.TextIOWrapper(open_binary(path), encoding=encoding, newline=newline)


def _sample(path: Path) -> bytes:
    with open_binary(path) as file:
        return file.read(SAMPLE_BYTES)


def _encoding_of(sample: bytes) -> str:
    """The encoding that the beginning of a file seems to have."""
    for mark, name in BYTE_ORDER_MARKS.items():
        if sample.startswith(mark):
            return name
    runs = re.findall(rb"[\x80-\xff]+", sample)  # of bytes above 127
    above_127 = b"".join(runs)
    in_long_runs = sum(len(run) for run in runs if len(run) >= LONG_RUN)
    is_latin_script = in_long_runs < LONG_RUNS * len(above_127)
    if is_latin_script and b"\0" not in sample:
        return "cp1252" if any(byte < 0xA0 for byte in above_127) else "latin-1"

    from charset_normalizer import from_bytes

    # Words in English, and what JSON and CSV put around texts, tell nothing.
    words = b" ".join(re.findall(rb"[A-Za-z]*[\x80-\xff][A-Za-z\x80-\xff]*", sample))
    best = from_bytes(words).best() or from_bytes(sample).best()
    if best is None:
        return "latin-1"
    return best.encoding.replace("_", "-")


def _reads_as(sample: bytes, encoding: str) -> str:
    """The text around the first character beyond ASCII, as an encoding has it: a person sees whether it is right."""
    text = sample.decode(encoding, "replace")
    first = 0
    for place, character in enumerate(text):
        if not character.isascii():
            first = place
            break
    return printable(text[max(0, first - SHOWN) : first + SHOWN].strip())


def is_utf8_read_as(path: Path, encoding: str) -> bool:
    """Whether a file is in UTF-8, with characters that another encoding would show as other ones without an error."""
    if codecs.lookup(encoding).name == "utf-8":
        return False
    sample = _sample(path)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # a character may be cut at the end
    except UnicodeDecodeError:
        return False
    return not sample.isascii()


def wrong_encoding(path: Path, encoding: str) -> str:
    """The message about a file that is not in `encoding`, with what to do."""
    sample = _sample(path)
    seems = _encoding_of(sample)
    control_characters = CONTROL_CHARACTERS.findall(sample.decode(seems, "replace"))
    if len(control_characters) > MOST_CONTROL_CHARACTERS * len(sample):
        return f"it is not in {encoding}, and has control characters as no text has: name another file."
    line = f"it is not in {encoding}, and seems to be in {seems}"
    if seems == encoding:
        return f"{line}. It may be damaged, or no text."
    return (
        f"{line}, as which it reads '...{_reads_as(sample, seems)}...'. Type data.encoding={seems}, or convert it: "
        f"iconv -f {seems} -t utf-8 {path.name} > new{path.suffix}"
    )
