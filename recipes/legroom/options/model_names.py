"""From a name that a person writes for a model to the option of the menu `model` that has its sizes.

A name is an option, a hub id, a link to the hub, or what people say ("Llama 3.1 8B"). Names are compared by their
words: `meta-llama/Llama-3.1-8B-Instruct` is read as llama, 3.1 and 8b. Words that only tell other weights of the same
sizes apart (instruct, bnb, 4bit) are left out; model_names.yaml lists them, and the models that share sizes under names
of their own.
"""

import difflib
import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path

from legroom import suggestions, yaml_table
from legroom.options import known_models, menus

_FACTS = yaml_table.beside(__file__)
SAME_SIZES = frozenset(_FACTS["same_sizes"])
BESIDE_A_SIZE = frozenset(_FACTS["beside_a_size"])
SAME_MODELS: dict[str, list[str]] = _FACTS["same_models"]
LINK = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/\s]+/[^/\s?#]+)")
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
SIZE = re.compile(r"\d+(?:\.\d+)?(?:x\d+(?:\.\d+)?)?[bm]")  # 8b, 0.6b, 8x7b
WORD = re.compile(
    r"""a?\d+(?:\.\d+)?(?:x\d+(?:\.\d+)?)?[bmk](?![a-z])  # a size, also of the active part (a3b), or a length (128k)
    |[48]bit|int[48]|bf16|fp16|fp8|nf4|w\d+a\d+|q[48]     # a type of storage
    |[a-z]+|\d+(?:\.\d+)?""",
    re.VERBOSE,
)
PARAMETERS = {"m": 1e6, "b": 1e9}
NEAR = 4  # options that are offered


def hub_id(text: str) -> str | None:
    """The hub id that a text is, or that it links to; None for anything else."""
    link = LINK.match(text.strip())
    name = link[1] if link else text.strip()
    return name if HUB_ID.fullmatch(name) else None


def option(text: str) -> str | None:
    """The option with the sizes of the model of that name; None where no option has them, or the name is not clear.

    A hub id must be that of a known model but for words that leave the sizes as they are. Words alone may leave out
    what no two known models differ in: "Llama 8B" is Llama 3's.
    """
    name = text.strip()
    as_option = re.sub(r"[\s-]+", "_", name.lower())
    if as_option in known_models.known():
        return as_option
    identifier = hub_id(name)
    words = _words((identifier or name).rpartition("/")[2])
    if not words:
        return None
    for read in (words, _without(words, SAME_SIZES)):
        options = _by_words().get(frozenset(read), set())
        if len(options) == 1:
            return next(iter(options))
    if identifier is not None or len(words) < 2:
        return None
    options = _having(_without(words, SAME_SIZES))
    return next(iter(options)) if len(options) == 1 else None


def near(text: str) -> list[str]:
    """Options for a name that is not clear, the likeliest first: those that the name fits, of its size, or spelt so."""
    name = (hub_id(text) or text.strip()).rpartition("/")[2]
    words = _spelt_right(_without(_words(name), SAME_SIZES))
    fitting = sorted(_having(words), key=lambda each: (_parameters(each), each)) if words else []
    fitting += [each for each in _named_in(words) if each not in fitting]
    if fitting:
        return fitting[:NEAR]
    size = next((word for word in words if SIZE.fullmatch(word) and "x" not in word), None)
    if size is not None and float(size[:-1]) > 0:
        parameters = float(size[:-1]) * PARAMETERS[size[-1]]
        return sorted(known_models.known(), key=lambda each: abs(math.log(_parameters(each) / parameters)))[:NEAR]
    spelt = {re.sub(r"[^a-z0-9]", "", each): each for each in known_models.known()}
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return [spelt[each] for each in difflib.get_close_matches(letters, spelt, NEAR, 0.4)]


def sizes_of(name: str) -> str:
    """What to say of an option: the model whose sizes it has, and their count as in '8.0 B parameters'."""
    about, source = known_models.known()[name]
    count = re.search(r"\(([\d.]+ [BM] parameters)\)", about)
    shown = source or about.partition(":")[0]
    return f"{shown}, {count[1]}" if count else shown


def offered(text: str) -> str:
    """' Did you mean ...?' with the options that are near to a name, or ''."""
    options = near(text)
    if not options:
        return ""
    return f" Did you mean {' or '.join(f'model={each}' for each in options)}?"


def in_overrides(argv: Sequence[str], folders: list[Path]) -> tuple[list[str], list[str]]:
    """(overrides with names of models as options or hub ids, a note for each that was read so).

    `model=Llama 3.1 8B` becomes `model=llama_8b`, and a hub id or a folder `model.pretrained=` it; what is not clear
    stays, and is refused with the near options. folders: of menus, whose own options of `model` stay, too.
    """
    options = menus.options("model", folders)
    replaced, notes = [], []
    for text in argv:
        key, _, value = text.partition("=")
        names = [name.strip(" '\"") for name in value.split(",")]
        if key != "model" or not all(names) or all(name in options for name in names):
            replaced.append(text)
            continue
        read = _read(names)
        if read is None:
            replaced.append(text)
            continue
        replaced.append(read)
        notes.append(_note(text, read))
    return replaced, notes


def _read(names: list[str]) -> str | None:
    """The override that names of models stand for; None where one of them is not clear, or they are of two kinds."""
    if all("/" in name for name in names):
        identifiers = [hub_id(name) for name in names]
        if None in identifiers:
            return None
        return f"model.pretrained={','.join(map(str, identifiers))}"
    if any("/" in name for name in names):
        return None
    options = [option(name) for name in names]
    if None in options:
        return None
    return f"model={','.join(map(str, options))}"


def _note(typed: str, read: str) -> str:
    key, _, value = read.partition("=")
    if key == "model":
        sizes = "; ".join(sizes_of(each) for each in value.split(","))
        return f"{suggestions.shown(typed)} is read as {read} ({sizes})."
    return f"{suggestions.shown(typed)} is read as {read}."


def _words(name: str) -> tuple[str, ...]:
    """The words of a name without its organisation, in lower case: 'Llama-3.1-8B' is llama, 3.1, 8b."""
    return tuple(
        word.removesuffix(".0") if word[:1].isdigit() and word.endswith(".0") else word for word in _split(name)
    )


def _split(name: str) -> list[str]:
    lowered = re.sub(r"(?<=\d)_(?=\d)", ".", name.lower())
    return WORD.findall(lowered)


def _without(words: tuple[str, ...], left_out: frozenset[str]) -> tuple[str, ...]:
    """The words that say which sizes a model has."""
    kept = tuple(word for word in words if word not in left_out)
    if any(SIZE.fullmatch(word) for word in kept):
        kept = tuple(word for word in kept if word not in BESIDE_A_SIZE)
    return kept


@functools.cache
def _by_words() -> dict[frozenset[str], set[str]]:
    """The words of each known model's name, as they stand and without those that leave the sizes, -> its options."""
    options: dict[frozenset[str], set[str]] = {}
    names = [(name, source) for name, (_, source) in known_models.known().items() if source]
    names += [(name, other) for name, others in SAME_MODELS.items() for other in others]
    for name, identifier in names:
        words = _words(identifier.rpartition("/")[2])
        for read in {frozenset(words), frozenset(_without(words, SAME_SIZES))}:
            options.setdefault(read, set()).add(name)
    return options


def _having(words: tuple[str, ...]) -> set[str]:
    """The options of which a name has all these words."""
    options: set[str] = set()
    for known, names in _by_words().items():
        if known.issuperset(words):
            options |= names
    return options


def _spelt_right(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words, with a known one in place of its misspelling: lama is llama."""
    known = {word for words in _by_words() for word in words}
    right = []
    for word in words:
        close = [word] if word in known or word[:1].isdigit() else difflib.get_close_matches(word, known, 1, 0.75)
        right += close or [word]
    return tuple(right)


def _named_in(words: tuple[str, ...]) -> list[str]:
    """The options whose name, of two words or more, stands within these words; the longest name first."""
    named = [
        (len(known), sorted(names)) for known, names in _by_words().items() if len(known) > 1 and known.issubset(words)
    ]
    ordered = []
    for _, names in sorted(named, reverse=True):
        ordered += [name for name in names if name not in ordered]
    return ordered


def _parameters(name: str) -> float:
    """The count that the first line of an option ends in, as (13.0 B parameters); 1 where it has none."""
    count = re.search(r"\(([\d.]+) ([BM]) parameters\)", known_models.known()[name][0])
    if count is None:
        return 1
    return float(count[1]) * PARAMETERS[count[2].lower()]
