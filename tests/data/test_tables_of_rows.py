"""Rows, batches, masks and answers of small inputs, whole: kept beside this file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy
import pytest
import torch
from support.changed_config import changed
from support.known_values import known
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from legroom.data import (
    answer_ends,
    byte_tokenizer,
    collate,
    data_loader,
    dataset,
    masking,
    packing,
    preview,
    questions,
    rows,
    text_rows,
    tokens,
)
from legroom.data.data_loader import DistributedBatchSampler
from legroom.data.masking import Masking
from legroom.data.tokens import Tokens
from legroom.errors import Refusal


def plain(value: Any) -> Any:
    """Lists in place of tensors, arrays and rows."""
    if isinstance(value, datasets.Dataset):
        return [plain(row) for row in value]
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def kept(value: Any) -> Any:
    """The values of rows as text, a row a line: a file that a person reads."""
    value = plain(value)
    if isinstance(value, dict):
        return {key: kept(each) for key, each in value.items()}
    if isinstance(value, list) and any(isinstance(each, (list, dict)) for each in value):
        return [str(each) for each in value]
    return known(str(value) if isinstance(value, list) else value)


SPECIAL = [("[CLS]", 2), ("[SEP]", 3)]
PAIR, PAIR_OF_ROBERTA = "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"


def word_tokenizer(*words: str, pair: str = PAIR) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words: [CLS] first [SEP] second [SEP], or as `pair` says."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=SPECIAL)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special)


def as_tokens(tokenizer: Any, folder: Path) -> Tokens:
    tokenizer.save_pretrained(folder)
    return Tokens(str(folder))


# --- rows, batches, packing ------------------------------------------------------------------------


def test_windows_over_a_text(data_regression):
    cases = [
        (1, 4, 4, {}),
        (2, 4, 4, {}),
        (8, 4, 4, {}),
        (9, 4, 4, {}),
        (10, 4, 4, {}),
        (10, 4, 2, {}),
        (9, 4, 3, {}),
        (4, 4, 1, {}),
        (5, 4, 1, {}),
        (12, 4, 2, {"spans": [(0, 4), (6, 10)]}),
        (12, 4, 4, {"spans": [(1, 5), (11, 12)]}),
        (12, 2, 2, {"most": 2, "seed": 5}),
        (12, 2, 2, {"most": 6, "seed": 5}),
        (12, 2, 2, {"most": 5, "seed": 6}),
    ]
    found = {}
    for count, window, stride, more in cases:
        made, available = rows.windows(numpy.arange(10, 10 + count), window, stride, **more)
        found[f"{count} tokens, {window} by {stride} {more}"] = [available, *kept(made)]
    data_regression.check(found)


def test_rows_of_any_lengths_and_what_is_counted_of_them(data_regression):
    made = rows.ragged(
        {"input_ids": ids, "labels": label, "scores": [0.5] * len(ids), "position_ids": positions}
        for ids, label, positions in [
            ([1, 2, 3], 7, [0, 1, 0]),
            (numpy.array([4]), 8, [0]),
            ([5, 6, 7, 8], 9, [0, 0, 1, 0]),
        ]
    )
    found: dict[str, Any] = {"rows": kept(made), "lengths": kept(rows.lengths(made))}
    found["samples"] = kept(rows.samples_in(made))
    found["alone"] = kept(rows.samples_in(made.remove_columns("position_ids")))
    found["flat"] = [kept(each) for each in rows.flat(made, "input_ids")]
    found["later"] = [kept(each) for each in rows.flat(made.select([2, 0]), "input_ids")]
    found["chosen"] = {f"{most} of 5": str(rows.chosen(5, most, 3)) for most in (None, 2, 4, 5, 6)}
    found["digests"] = len({rows.digest(part) for part in (made, made.select([1, 0, 2]), made.select([0, 1]))})
    one = [
        rows.dataset([[1, 2], [3]], [0, 1]),
        rows.dataset([[1], [2, 3]], [0, 1]),
        rows.dataset([[1, 2], [3]], [0, 2]),
    ]
    found["other digests"] = len({rows.digest(part) for part in one})
    assert rows.digest(one[0]) == rows.digest(rows.dataset([[1, 2], [3]], [0, 1]))
    data_regression.check(found)


def test_batches_are_padded(data_regression):
    found: dict[str, Any] = {}
    for multiple, longest in ((1, 9), (4, 9), (4, 7), (4, 4), (8, 32)):
        made = collate.Padding(multiple, longest, 0, with_mask=True)
        found[f"lengths {multiple} {longest}"] = str({length: made.length(length) for length in (1, 4, 5, 8, 9)})
    batch = [
        {"input_ids": [5, 6, 7], "labels": [5, 6, 7], "token_type_ids": [1, 1, 1], "position_ids": [0, 1, 2]},
        {"input_ids": [8], "labels": [8], "token_type_ids": [1], "position_ids": [3]},
    ]
    tensors = [{key: torch.tensor(value) for key, value in row.items()} for row in batch]
    for side in ("right", "left"):
        for with_mask in (True, False):
            made = collate.Padding(4, 32, 9, with_mask, side)
            found[f"{side}, mask: {with_mask}"] = kept(made(tensors))
    labelled = [{"input_ids": row["input_ids"], "labels": torch.tensor(7)} for row in tensors]
    found["one label"] = kept(collate.Padding(1, 32, 9, False)(labelled))
    several = [{"input_ids": row["input_ids"], "labels": torch.tensor([1.0, 0.0])} for row in tensors]
    found["labels of a row"] = kept(collate.Padding(1, 32, 9, False, row_labels=True)(several))
    found["stacked"] = kept(collate.stack([tensors[0], tensors[0]]))
    data_regression.check(found)


def test_samples_are_packed(data_regression):
    cases = ([3, 3, 3], [4, 4, 1], [1, 2, 3, 4], [2, 2, 2, 2, 2], [4], [], [1, 1, 1, 1, 1], [3, 1, 2, 2, 1, 3])
    found = {str(lengths): str(packing.bins(lengths, 4)) for lengths in cases}
    samples = rows.ragged(
        {"input_ids": list(range(first, first + length)), "labels": list(range(first, first + length))}
        for first, length in ((10, 2), (20, 3), (30, 1), (40, 4))
    )
    data_regression.check(found | {"rows": kept(packing.packed(samples, 4))})


# --- the loader ------------------------------------------------------------------------------------


def test_which_rows_a_rank_has_in_each_batch(data_regression):
    found = {}
    for count, per_rank, ranks in ((8, 2, 2), (9, 2, 2), (5, 2, 2), (1, 2, 2), (6, 2, 1), (7, 1, 3)):
        for seed in (None, 3):
            parts = [DistributedBatchSampler(count, per_rank, seed, rank, ranks) for rank in range(ranks)]
            sizes = [[part.sizes(index) for index in range(len(part))] for part in parts]
            found[f"{count} rows, {per_rank} on each of {ranks}, seed {seed}"] = [
                f"{list(part)} of {each}" for part, each in zip(parts, sizes)
            ]
    part = DistributedBatchSampler(6, 2, 3)
    orders = {}
    for epoch in (0, 1):
        part.epoch = epoch
        orders[epoch] = str(part.order())
    part.first = 2
    orders["skipped"] = str(list(part))
    part.group_by_length([1, 5, 2, 4, 3, 6], 2)
    orders["grouped"] = str(part.order())
    found["orders"] = orders
    data_regression.check(found)


def arguments(**more: Any) -> Any:
    values = {"data_seed": 3, "seed": 4, "device": torch.device("cpu"), "dataloader_num_workers": 0}
    values |= {"dataloader_persistent_workers": False, "dataloader_pin_memory": False, "train_batch_size": 2}
    return SimpleNamespace(**values | {"gradient_accumulation_steps": 2} | more)


def made_data(part: datasets.Dataset, **more: Any) -> dataset.Data:
    padding = collate.Padding(1, 8, 0, with_mask=False)
    return dataset.Data("language_modelling", part, None, **{"collate": padding, "vocab": 9} | more)


def test_the_batches_of_a_loader(data_regression):
    packed = rows.ragged(
        {"input_ids": [9] * length, "labels": [9] * length, "position_ids": positions}
        for length, positions in ((3, [0, 1, 0]), (1, [0]), (4, [0, 0, 0, 1]), (2, [0, 1]), (2, [0, 0]))
    )
    even = rows.dataset([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6]])
    found: dict[str, Any] = {}
    cases = {
        "packed": (made_data(packed), packed, False),
        "packed, second of two ranks": (made_data(packed, rank=1, ranks=2), packed, False),
        "packed, shuffled": (made_data(packed), packed, True),
        "grouped": (made_data(packed, group_by_length=True), packed, True),
        "grouped, in order": (made_data(packed, group_by_length=True), packed, False),
        "even": (made_data(even, collate=collate.stack), even, False),
        "even, grouped": (made_data(even, collate=collate.stack, group_by_length=True), even, True),
        "masked": (made_data(even, collate=collate.stack, masking=Masking(0, 9, (), 0.5, 1)), even, False),
    }
    for name, (data, part, shuffle) in cases.items():
        loader = data_loader.batch_loader(data, part, arguments(), 2, shuffle)
        found[name] = [
            f"{each.indices} {each['input_ids'].tolist()} rows {each.rows} of {each.rows_everywhere}, "
            f"ranks {each.ranks}, even {each.even}, "
            f"samples {each.samples_everywhere}, tokens {each.unpadded_everywhere}"
            for each in loader
        ]
        loader.skip(1)
        found[name].append(f"{len(loader)} batches; after 1 skipped {[each.indices for each in loader]}")
        loader.set_epoch(1)
        found[name].append(f"in the next epoch {[each.indices for each in loader]}")
    found["largest"] = [each.indices for each in data_loader.largest_step(made_data(packed), arguments())]
    found["largest of even rows"] = [
        each["input_ids"].tolist()
        for each in data_loader.largest_step(made_data(even, collate=collate.stack), arguments())
    ]
    for count in (1, 3, 9):
        found[f"longest {count}"] = kept(data_loader.longest(made_data(packed), packed, count))
    data_regression.check(known(found))
    seen = []
    for shuffle in (True, False):
        args = arguments(dataloader_num_workers=1, dataloader_persistent_workers=True)
        seen.append(data_loader.batch_loader(made_data(packed), packed, args, 2, shuffle)._loader.persistent_workers)
    assert seen == [True, False], "workers are kept for training alone"


# --- masks -----------------------------------------------------------------------------------------


def test_what_is_masked(data_regression):
    found: dict[str, Any] = {}
    continues = numpy.array([False] * 20 + [True] * 20)
    breaks = numpy.array([False] * 19 + [True] + [False] * 20)
    masks = {
        "half": Masking(99, 90, (), 0.5, 1),
        "a little": Masking(99, 90, (), 0.01, 1),
        "without two": Masking(99, 90, (5, 6), 0.5, 1),
        "of all special": Masking(99, 90, tuple(range(40)), 0.5, 1),
        "words": Masking(99, 90, (), 0.3, 2, continues),
        "words and breaks": Masking(99, 90, (), 0.3, 2, continues, breaks),
    }
    ids = [1, 5, 6, 25, 26, 7, 19, 27, 8, 9]
    for name, mask in masks.items():
        for epoch, row in ((0, 0), (0, 1), (1, 0)):
            batch = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([[*ids[:8], -100, -100]])}
            mask(batch, epoch, [row])
            found[f"{name}, epoch {epoch}, row {row}"] = [str(batch[key][0].tolist()) for key in batch]
    for name in ("half", "words", "words and breaks"):
        found[f"the words of {name}"] = {
            longest: str(masks[name]._words(numpy.array([*ids, *[30] * 8]), longest).tolist()) for longest in (2, 3, 16)
        }
    two = {"input_ids": torch.tensor([[1, 5]]), "labels": torch.tensor([[1, 5]])}
    masks["of all special"](two, 0, [0])
    found["two"] = str(two["labels"].tolist())
    many = {"input_ids": torch.full((1, 4000), 7), "labels": torch.full((1, 4000), 7)}
    Masking(99, 90, (), 0.5, 1)(many, 0, [0])
    chosen = many["input_ids"][many["labels"] != -100]
    found["of many"] = [len(chosen), int((chosen == 99).sum()), int((chosen == 7).sum()), int(chosen.min())]
    data_regression.check(found)


class Written:
    """A tokenizer, as far as `continuing` asks it."""

    def __init__(self, *written: str):
        self.written, self.all_special_ids = written, [0]

    def __len__(self) -> int:
        return len(self.written)

    def convert_ids_to_tokens(self, ids: Any) -> list[str]:
        return [self.written[number] for number in ids]


def test_which_tokens_go_on_with_a_word(data_regression):
    written = {
        "pieces": ("##special", "a", "##b", "c", "\n"),
        "bytes": ("<s>", "Ġa", "b", "Ċ", "cĊ", "č", "ĉd", "▁e"),
        "sentences": ("<s>", "▁a", "b", "<0x0A>", "č", "\n", "c\n", "\td"),
    }
    found = {}
    for name, each in written.items():
        found[name] = [str(part.tolist()) for part in masking.continuing(Written(*each), len(each) + 2)]
    data_regression.check(found)


# --- tokens ----------------------------------------------------------------------------------------


def test_the_vocabulary_of_bytes(data_regression):
    tokenizer = byte_tokenizer.byte_tokenizer()
    found: dict[str, Any] = {"vocabulary": "".join(byte_tokenizer.VOCABULARY)}
    found["ids"] = {text: str(tokenizer(text)["input_ids"]) for text in ("a b", "ü\n", " a", "<|end|>", "", "a  b ,c")}
    found["pair"] = str(tokenizer("a", "b")["input_ids"])
    found["decoded"] = tokenizer.decode(list(range(1, 257))[31:128])
    found["names"] = tokenizer.model_input_names
    found["special"] = [tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id, len(tokenizer)]
    found["spaces"] = tokenizer.decode(tokenizer("a , b")["input_ids"])
    assert byte_tokenizer.is_byte_tokenizer(tokenizer) and not byte_tokenizer.is_byte_tokenizer(word_tokenizer("a"))
    data_regression.check(known(found))


def test_texts_and_pairs_as_rows(data_regression, monkeypatch, tmp_path):
    of_bytes, of_words = Tokens("bytes"), as_tokens(word_tokenizer(*"abcdefgh"), tmp_path)
    found: dict[str, Any] = {}
    for name, each in (("bytes", of_bytes), ("words", of_words)):
        found[f"{name}: figures"] = str([each.end, each.pad, each.vocab, each.in_bytes])
        for longest in (3, 4, 5, 6, 7):
            row, cut = each.row("a b c", longest)
            found[f"{name}: a row of {longest}"] = f"{plain(row)} cut {cut}"
            row, cut = each.pair("a b", "c d e", longest)
            found[f"{name}: a pair of {longest}"] = f"{plain(row)} cut {cut}"
        found[f"{name}: without"] = [str(list(map(int, each.ids("a b", special)))) for special in (True, False)]
    found["pairs of bytes"] = {
        f"{first} {second} {longest}": str(plain(of_bytes.pair(first, second, longest)))
        for first, second in (("aaaa", "b"), ("a", "bbbb"), ("aaa", "bbb"), ("aaa", "bb"))
        for longest in (4, 5, 6, 7)
    }
    monkeypatch.setattr(tokens, "PIECE", 4)
    found["pieces"] = {
        text: str(list(tokens._pieces(text))) for text in ("", "abcd", "abcde", "ab\ncd\nef", "\nabcde", "a\n\nbc\nd")
    }
    found["of pieces"] = [str(list(map(int, of_words.ids(text)))) for text in ("a b", "a b c d", "a\nb\nc\nd e")]
    of_words.tokenizer("a b c", truncation=True, max_length=3)
    assert of_words.as_given().backend_tokenizer.truncation is None
    of_bytes.need_mask("bytes")
    found["with a mask"] = [of_bytes.vocab, of_bytes.tokenizer.mask_token_id, of_bytes.tokenizer.split_special_tokens]
    with pytest.raises(Refusal, match="has no token for the mask"):
        of_words.need_mask("words")
    data_regression.check(known(found))


def test_a_tokenizer_cuts_and_pads_as_it_was_given(tmp_path):
    tokenizer = word_tokenizer(*"abc")
    tokenizer.backend_tokenizer.enable_truncation(max_length=5)
    tokenizer.backend_tokenizer.enable_padding(length=6)
    tokenizer.save_pretrained(tmp_path)
    made = Tokens(str(tmp_path))
    made.row("a b c a b c", 4)
    made.tokenizer(["a", "b c"], padding=True)
    given = made.as_given().backend_tokenizer
    assert given.truncation["max_length"] == 5 and given.padding["length"] == 6


def test_the_ids_of_pretrained_weights(data_regression, monkeypatch):
    words, others = word_tokenizer("a"), word_tokenizer("b")
    known_names = {
        "own": words,
        "same": word_tokenizer("a"),
        "other": others,
        "of bytes": byte_tokenizer.byte_tokenizer(),
    }

    def load(name: str, key: str) -> Any:
        if name not in known_names:
            raise Refusal(f"{key}={name} cannot be loaded")
        return known_names[name]

    monkeypatch.setattr(tokens, "_load", load)
    found: dict[str, Any] = {}
    for pretrained in (None, "own", "absent", "of bytes"):
        for name in (None, "bytes", "own", "same", "other"):
            for vocab in (512, 513):
                cfg, _ = changed("data.name=source")
                cfg.data.tokenizer, cfg.model.pretrained, warnings = name, pretrained, list[str]()
                try:
                    said = (
                        f"{tokens.for_data(cfg, vocab, warnings.append).vocab} ids {[each[:60] for each in warnings]}"
                    )
                except Refusal as refusal:
                    said = f"refused: {str(refusal)[:70]} ... {str(refusal)[-40:]}"
                found[f"weights {pretrained}, tokenizer {name}, {vocab}"] = said
    data_regression.check(known(found))


def test_the_tokens_that_end_an_answer_in_a_template(data_regression):
    tokenizer = byte_tokenizer.byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    templates = {
        "none": None,
        "chatml": "{% for m in messages %}{{ m['content'] }}<|im_end|>\n{% endfor %}",
        "bytes": "{% for m in messages %}{{ m['content'] }}###{% endfor %}",
        "nothing": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
        "broken": "{{ raise_exception('no') }}",
    }
    found: dict[str, Any] = {}
    for name, template in templates.items():
        for own in (None, 7, [7, 0], [8, 257]):
            tokenizer.chat_template, warnings = template, list[str]()
            ends = answer_ends.end_tokens(tokenizer, own, warnings.append)
            found[f"{name} {own}"] = f"{ends} {[each[:50] for each in warnings]}"
    data_regression.check(known(found))


# --- questions -------------------------------------------------------------------------------------


def asked(**more: Any) -> dict[str, Any]:
    return {"question": "a b", "context": "c d e", "answers": {"text": ["d"], "answer_start": [2]}} | more


def test_which_rows_are_questions(data_regression):
    def answered(texts: Any, starts: Any) -> dict[str, Any]:
        return asked(answers={"text": texts, "answer_start": starts})

    cases = {
        "one": [asked()],
        "none": [],
        "no answers": [asked(answers=None), asked()],
        "empty lists": [answered([], [])],
        "two": [answered(["c", "d e"], [0, 2])],
        "more columns": [asked(id="x", title="y"), asked(id="z")],
        "an empty question": [asked(question=" ")],
        "an empty context": [asked(context="")],
        "a number": [asked(question=3)],
        "a context of none": [asked(context=None)],
        "a text": [asked(answers="d")],
        "a list": [asked(answers=["d"])],
        "not as long": [answered(["d"], [])],
        "no starts": [answered(["d"], None)],
        "no texts": [answered("d", [2])],
        "elsewhere": [answered(["d"], [3])],
        "below 0": [answered(["e"], [-1])],
        "at 0": [answered(["c"], [0])],
        "a start of text": [answered(["d"], ["2"])],
        "true": [answered([" "], [True])],
        "an empty answer": [answered([""], [2])],
        "an answer of none": [answered([None], [2])],
        "no column": [{"question": "a", "text": "b"}],
        "half a pair": [asked(question="\ud83d")],
    }
    found = {}
    for name, each in cases.items():
        warnings: list[str] = []
        try:
            made = questions.collect(
                ((f"line {n}", row) for n, row in enumerate(each, 1)), "data.path=x", warnings.append
            )
            found[name] = [*[str(row) for row in made], *warnings]
        except Refusal as refusal:
            found[name] = f"refused: {str(refusal)[:110]}"
    data_regression.check(known(found))


def test_questions_become_windows(data_regression, tmp_path):
    of_bert = as_tokens(word_tokenizer(*"abcdefghijklmnop"), tmp_path / "bert")
    of_roberta = as_tokens(word_tokenizer(*"abcdefghijklmnop", pair=PAIR_OF_ROBERTA), tmp_path / "roberta")
    context = "c d e f g h i j k l m n"

    def part(*answers: tuple[str, ...], question: str = "a b", context: str = context) -> datasets.Dataset:
        starts = [[context.index(text) for text in texts] for texts in answers]
        each = [
            asked(question=question, context=context, answers={"text": list(texts), "answer_start": first})
            for texts, first in zip(answers, starts)
        ]
        return questions.collect(((f"line {n}", row) for n, row in enumerate(each, 1)), "data.path=x", lambda _: None)

    cases = {
        "one window": (part(("d e",)), 20),
        "windows": (part(("j k",), ()), 12),
        "a small room": (part(("d",)), 7),
        "room for 1": (part(("d",), context="c d e"), 6),
        "no room": (part(("d",), context="c d e"), 5),
        "room for 2": (part(("d", "e")), 8),
        "an answer too long": (part(("d e f g h i j k",), ("c",)), 9),
        "two answers": (part(("d", "e"), ("d", "d")), 20),
        "with spaces": (part((" d e ",)), 20),
    }
    found: dict[str, Any] = {}
    for name, (train, length) in cases.items():
        for like, encoder in (("bert", of_bert), ("roberta", of_roberta)):
            if like == "roberta" and "room" not in name:
                continue
            cfg, _ = changed(f"data.seq_len={length} data.samples=null", "model=bert_tiny")
            warnings: list[str] = []
            try:
                made, evaluated, _, _, answers = questions.build(cfg, train, train, encoder, warnings.append)
            except Refusal as refusal:
                found[f"{name}, {like}"] = f"refused: {refusal}"
                continue
            assert answers is not None
            found[f"{name}, {like}"] = [
                *kept(made),
                f"evaluated: {len(evaluated[0])} of {evaluated[1]}, questions {answers.question_of}",
                *[str(spans[:, 0].tolist()) for spans in answers.spans],
                *warnings,
            ]
    some, _ = cases["windows"]
    for line in ("model.family=bert", "model.family=gpt2", "model.family=gpt2 model.pretrained=a/b"):
        cfg, _ = changed(f"data.seq_len=20 data.samples=1 {line}", "model=bert_tiny")
        found[f"types of {line}"] = kept(questions.build(cfg, some, None, of_bert, lambda _: None)[0])
    cfg, _ = changed("data.seq_len=20 data.samples=1 eval.max_samples=1", "model=bert_tiny")
    for value in (None, 2):
        cfg.data.eval_samples = value
        for enabled in (True, False):
            cfg.eval.enabled, warnings = enabled, []
            made, evaluated, *_ = questions.build(cfg, some, some, of_bert, warnings.append)
            found[f"{value} to evaluate on, {enabled}"] = [len(made), len(evaluated[0]), *warnings]
    assert questions.build(cfg, some, None, of_bert, lambda _: None)[1] is None
    data_regression.check(known(found))


def test_the_best_answer_of_windows(data_regression):
    spans = numpy.array([[-1, -1], [0, 1], [2, 3], [4, 5], [-1, -1]])
    answers = questions.Answers(["a b c", "d e f"], [["b"], []], [0, 0, 1], [spans, spans, spans])

    def scores(start: list[float], end: list[float], row: int = 0) -> tuple[int, float, str, float]:
        return answers.best(row, torch.tensor(start), torch.tensor(end))

    rated = {
        "in order": scores([9, 1, 5, 0, 9], [9, 1, 0, 4, 9]),
        "not backwards": scores([0, 0, 0, 5, 0], [0, 5, 0, 1, 0]),
        "padded": scores([0, 1, 5, 0, 0, 99], [0, 1, 2, 0, 0, 99], 2),
    }
    found: dict[str, Any] = {name: str(each) for name, each in rated.items()}
    found["pairs"] = [str(each) for each in answers.pairs(list(rated.values()))]
    found["the better window"] = [
        str(each)
        for each in answers.pairs([(0, 2.0, "b", 1.0), (0, 3.0, "a", 9.0), (1, 0.0, "x", 0.5), (1, -1.0, "y", 0.0)])
    ]
    found["as good as none"] = [str(each) for each in answers.pairs([(1, 0.5, "x", 0.5), (0, 0.5, "y", 0.6)])]
    always = questions.Answers(["a"], [["a"]], [0], [spans])
    found["there is one"] = [str(each) for each in always.pairs([(0, -5.0, "a", 5.0)])]
    wide = numpy.stack([numpy.arange(40), numpy.arange(40) + 1], axis=1)
    long = questions.Answers(["x" * 40], [["x"]], [0], [wide])
    start, end = torch.zeros(40), torch.zeros(40)
    start[0], end[30] = 9, 9
    first = long.best(0, start, end)
    start[0], start[1] = 0, 9
    found["30 tokens at most"] = [first[1], len(first[2]), len(long.best(0, start, end)[2])]
    data_regression.check(known(found))


# --- what a person reads, and what a model asks for ------------------------------------------------


def test_a_preview_of_samples(file_regression):
    tokenizer = byte_tokenizer.byte_tokenizer()

    def ids(text: str) -> list[int]:
        return tokens.byte_ids(text).tolist()

    talks = rows.ragged(
        [
            {"input_ids": ids("ab cd"), "labels": [-100, -100, -100, *ids("cd")]},
            {"input_ids": ids("xyz"), "labels": ids("xyz")},
        ]
    )
    packed = rows.ragged([{"input_ids": ids("abcd"), "labels": [-100, 99, -100, 99], "position_ids": [0, 1, 0, 1]}])
    labelled = rows.dataset([ids("ab"), ids("c")], [1, 0])
    numbers = rows.dataset([ids("ab")], [0.5])
    several = rows.dataset([ids("ab"), ids("c")], [[1.0, 1.0], [0.0, 0.0]])
    spans = rows.ragged([{"input_ids": ids("q? an answer"), "start_positions": 6, "end_positions": 11}])
    shown = {
        "all": (made_data(talks, tokenizer=tokenizer), 9),
        "one": (made_data(talks, tokenizer=tokenizer), 1),
        "packed": (made_data(packed, tokenizer=tokenizer), 2),
        "labels": (made_data(labelled, tokenizer=tokenizer, names=["no", "yes"]), 2),
        "numbers of classes": (made_data(labelled, tokenizer=tokenizer, names=["no"]), 2),
        "numbers": (made_data(numbers, tokenizer=tokenizer), 1),
        "several": (made_data(several, tokenizer=tokenizer, names=["left", "right"]), 2),
        "answers": (made_data(spans, tokenizer=tokenizer), 1),
        "masked": (made_data(talks.select([1]), tokenizer=tokenizer, masking=Masking(1, 9, (), 0.5, 1)), 1),
    }
    tasks = {"labels": "classification", "numbers of classes": "classification", "numbers": "regression"}
    tasks |= {"several": "multi_label"}
    text = ""
    for name, (data, count) in shown.items():
        data.task = tasks.get(name, data.task)
        text += f"== {name}\n{preview.samples(data, count)}\n"
    file_regression.check(text.replace("\0", "<0>"), extension=".txt")


def test_rows_without_their_end_token_are_refused(data_regression):
    cfg, _ = changed("data.name=text model.pretrained=a/b")
    found = {}
    for name, each in {
        "one each": [[1, 9], [2, 9]],
        "two each": [[9, 9], [9, 9]],
        "one without": [[1, 9], [2, 3]],
        "one twice": [[1, 9], [9, 9]],
        "the first without": [[1, 1], [2, 9], [9]],
    }.items():
        part = rows.dataset(each, [0] * len(each))
        try:
            text_rows.check_ends(cfg, [part, part.select([0])], 9)
            found[name] = "taken"
        except Refusal as refusal:
            found[name] = str(refusal)[:150]
    data_regression.check(known(found))


def test_made_rows_of_each_task(data_regression):
    found: dict[str, Any] = {}
    for task in (
        "classification",
        "multi_label",
        "regression",
        "question_answering",
        "language_modelling",
        "masked_lm",
    ):
        for vocab, last in ((200, None), (201, 7), (40_000, None)):
            line = "data.samples=40 data.seq_len=50 data.eval_samples=3 train.seed=5 batch.per_device=2"
            cfg, _ = changed(line, "model=bert_tiny", "data=dummy")
            made = dataset.build_data(cfg, task, vocab, last_id=last)
            ids = made.train[:]["input_ids"]
            labels = made.train[:].get("labels", made.train[:].get("start_positions")).float()
            figures = [*ids.shape, int(ids[:, :-1].min()), int(ids[:, :-1].max()), len(ids[:, -1].unique())]
            figures += [*labels.shape, float(labels.min()), round(float(labels.max()), 3), len(made.eval or ())]
            masks = [made.masking.mask_id, made.masking.vocab, made.masking.share] if made.masking else []
            found[f"{task} {vocab}"] = f"{figures} {made.vocab} {made.classes} {masks}"
    cfg, _ = changed("data.samples=40 data.eval_samples=null batch.per_device=2", "model=bert_tiny", "data=dummy")
    assert dataset.build_data(cfg, "classification", 300).eval is None
    data_regression.check(known(found))


def test_a_step_that_is_larger_than_the_data(data_regression):
    found = {}
    for line in (
        "batch.per_device=8 accumulation.steps=1",
        "batch.per_device=9 accumulation.steps=1",
        "batch.per_device=4 accumulation.steps=2",
        "batch.per_device=3 accumulation.steps=3",
        "batch.per_device=9 recipe.name=estimate",
        "batch.per_device=4 parallelism.replicas=2",
        "batch.per_device=4 parallelism.replicas=3",
        "batch.per_device=2 parallelism.replicas=2 accumulation.steps=3",
    ):
        for name in ("alone", "packed"):
            part = rows.dataset([[1, 2]] * 8, [[1, 2]] * 8)
            part = part.add_column("position_ids", [[0, 1]] * 8) if name == "packed" else part  # pyright: ignore
            try:
                found[f"{line} {name}"] = dataset._check_batch(changed(line)[0], made_data(part))
            except Refusal as refusal:
                found[f"{line} {name}"] = f"refused: {str(refusal)[:110]}"
    data_regression.check(known(found))
