"""Texts to token ids, and whether these are the ids that pretrained weights were trained on."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
from transformers import AutoTokenizer

from legroom import paths
from legroom.config import Config
from legroom.data import byte_tokenizer
from legroom.errors import NotHere, Refusal, first_line

MASK = "<|mask|>"  # of bytes
PIECE = 1_000_000  # characters that are given to a tokenizer at once; it needs about 100 times their size
NO_TOKENIZER = (  # what to do about a model without one
    "Save the tokenizer that the weights were trained with into the folder (tokenizer.save_pretrained), or name it "
    "with data.tokenizer=."
)
LARGEST_BYTE_VOCAB = 512  # a larger vocabulary is not one of bytes


class NoTokenizer(NotHere):
    """A tokenizer that is no folder of this machine, and that the hub did not return."""


class Tokens:
    """Converts texts to token ids.

    name: bytes, the folder of a tokenizer, or a hub id. key: what names it, for messages.
    Raises Refusal if the tokenizer cannot be loaded.
    end: id at the end of a text, or None. pad: id of padding. vocab: one more than the largest id. tokenizer: of
    transformers.
    in_bytes: whether the ids are bytes + 1, which are then found without the tokenizer.
    """

    def __init__(self, name: str, key: str = "data.tokenizer"):
        if name == "bytes":
            self.tokenizer: Any = byte_tokenizer.byte_tokenizer()
        else:
            self.tokenizer = _load(name, key)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)  # of a fast one
        self._truncation = getattr(backend, "truncation", None)
        self._padding = getattr(backend, "padding", None)
        self.in_bytes = byte_tokenizer.is_byte_tokenizer(self.tokenizer)
        self.end = self._special("eos", "sep", "pad")
        self.pad = self._special("pad", "eos", "sep") or 0
        self.vocab = max(self.tokenizer.get_vocab().values()) + 1

    def _special(self, *kinds: str) -> int | None:
        """The id of the first of these kinds of special token that the tokenizer has."""
        for kind in kinds:
            token_id = getattr(self.tokenizer, f"{kind}_token_id")
            if token_id is not None:
                return token_id
        return None

    def as_given(self) -> Any:
        """The tokenizer with the truncation and the padding that it was loaded with, to be saved.

        Encoding has changed both.
        """
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return self.tokenizer
        if self._truncation:
            backend.enable_truncation(**self._truncation)
        else:
            backend.no_truncation()
        if self._padding:
            backend.enable_padding(**self._padding)
        else:
            backend.no_padding()
        return self.tokenizer

    def ids(self, text: str, special: bool = True) -> Any:
        """The ids of a text, (T,). special: with the special tokens that the tokenizer adds."""
        if self.in_bytes:
            return byte_ids(text)
        if len(text) <= PIECE:
            return self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        before, after = self._around(special)
        parts = [before]
        for piece in _pieces(text):
            parts.append(self.ids(piece, special=False))
        parts.append(after)
        return numpy.concatenate([numpy.asarray(part, dtype=numpy.int64) for part in parts])

    def _around(self, special: bool) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before a text, and those that it puts behind one."""
        around = self.tokenizer("", add_special_tokens=special)["input_ids"]
        with_text = self.tokenizer("a", add_special_tokens=special)["input_ids"]
        before = list(itertools.takewhile(lambda token_id: token_id in around, with_text))
        return before, around[len(before) :]

    def need_mask(self, name: str) -> None:
        """Adds a token for the mask to bytes. Raises Refusal for a tokenizer without one. name: the tokenizer's."""
        if self.tokenizer.mask_token_id is None and not self.in_bytes:
            raise Refusal(
                f"data.tokenizer={name} has no token for the mask, which data.task=masked_lm needs. Take the tokenizer "
                "of an encoder such as BERT, or data.tokenizer=bytes."
            )
        if self.in_bytes:
            self.tokenizer.add_special_tokens({"mask_token": MASK})
            self.tokenizer.split_special_tokens = False  # who uses the saved model writes the mask
            self.vocab = len(self.tokenizer)

    def row(self, text: str, longest: int) -> tuple[dict[str, Any], bool]:
        """A text as one row of at most `longest` tokens, and whether it was cut.

        Returns input_ids, and token_type_ids if the tokenizer has them.
        """
        if self.in_bytes:
            ids = byte_ids(text)
            return {"input_ids": ids[:longest]}, len(ids) > longest
        return self._encoded(longest, text)

    def pair(self, first: str, second: str, longest: int) -> tuple[dict[str, Any], bool]:
        """Two texts as one row, like `row`; the longer text is cut first."""
        if not self.in_bytes:
            return self._encoded(longest, first, second)
        first_ids = byte_ids(first)
        second_ids = byte_ids(second)
        room = longest - 1  # without the end id between the two
        is_cut = len(first_ids) + len(second_ids) > room
        first_ids = first_ids[: max(room - len(second_ids), (room + 1) // 2)]
        second_ids = second_ids[: room - len(first_ids)]
        return {"input_ids": numpy.concatenate([first_ids, [self.end or 0], second_ids])}, is_cut

    def _encoded(self, longest: int, *texts: str) -> tuple[dict[str, Any], bool]:
        encoded = self.tokenizer(*texts, truncation=True, max_length=longest, verbose=False)
        row = {key: encoded[key] for key in ("input_ids", "token_type_ids") if key in encoded}
        is_cut = False
        if len(row["input_ids"]) >= longest:
            is_cut = len(self.tokenizer(*texts, verbose=False)["input_ids"]) > longest
        return row, is_cut


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces of at most PIECE characters, cut behind line breaks."""
    first = 0
    while first < len(text):
        last = first + PIECE
        if last < len(text):
            line_break = text.rfind("\n", first, last)
            if line_break >= 0:
                last = line_break + 1
        yield text[first:last]
        first = last


def byte_ids(text: str) -> numpy.ndarray:
    """The ids of a text in bytes: byte b is token b + 1."""
    return numpy.frombuffer(text.encode(), dtype=numpy.uint8).astype(numpy.int64) + 1


def _load(name: str, key: str) -> Any:
    folder = paths.expanded(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder) if folder.exists() else name, trust_remote_code=False)
    except Exception as error:
        advice = paths.not_pulled(folder)
        if not advice and key == "data.tokenizer":
            advice = "Give a tokenizer's folder, data.tokenizer=bytes, or a hub id where there is a network."
        elif not advice:
            advice = NO_TOKENIZER
        kind = Refusal if folder.exists() else NoTokenizer
        raise kind(f"{key}={name} cannot be loaded: {first_line(error)} {advice}") from error
    ordinary_tokens = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    if len(ordinary_tokens) < 2:  # transformers has made it without any file
        raise Refusal(f"{key}={name} brings no tokenizer: no file with a vocabulary is there. {NO_TOKENIZER}")
    return tokenizer


def for_data(cfg: Config, vocab: int, warn: Callable[[str], object]) -> Tokens:
    """The tokens of `data.tokenizer`, or bytes for data without this key.

    vocab: of the model. warn: is given what is assumed of the weights. Raises Refusal if pretrained weights were
    trained on other ids than bytes, and bytes are what the data is in.
    """
    name = cfg.data.tokenizer or "bytes"
    pretrained = cfg.model.pretrained
    typed = f"data.tokenizer={name}" if cfg.data.tokenizer else f"data={cfg.data.name} (bytes)"
    if not pretrained or (cfg.model.at_random and name != pretrained):  # random weights take any ids
        return Tokens(name)
    if name == pretrained:
        return Tokens(name, "model.pretrained")
    tokens = Tokens(name)
    try:
        own = _load(pretrained, "model.pretrained")
    except Refusal:
        if not tokens.in_bytes or vocab <= LARGEST_BYTE_VOCAB:
            warn(
                f"model.pretrained={pretrained} brings no tokenizer: its weights are assumed to have been trained on "
                f"the ids of {typed}."
            )
            return tokens
        raise Refusal(
            f"{typed}: the vocabulary of model.pretrained={pretrained} has {vocab:,} tokens, so it is not one of "
            f"bytes, and no tokenizer lies beside the weights. {NO_TOKENIZER}"
        ) from None
    if own.get_vocab() == tokens.tokenizer.get_vocab():
        return tokens
    if tokens.in_bytes:
        if cfg.data.tokenizer:
            instead = "Leave data.tokenizer out."
        else:
            instead = "Choose data=text with data.path=, which takes the model's tokenizer."
        raise Refusal(
            f"{typed}: the weights of model.pretrained={pretrained} were trained on the {len(own):,} tokens of its own "
            f"tokenizer, not on bytes. {instead}"
        )
    warn(f"{typed} is not the tokenizer of model.pretrained={pretrained}: the weights were trained on other ids.")
    return tokens
