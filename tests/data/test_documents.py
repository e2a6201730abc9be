"""Plain text: what a document of it is, its order, and the blocks that are held out."""

from __future__ import annotations

import time

import datasets
import pytest
from conftest import compose, small
from test_data import built, decoded, ids_of, refusal

from legroom.data import documents, text_data, text_files, tokens

TEXT = "".join(f"{n:03d} one line\n\n" if n % 4 == 3 else f"{n:03d} one line\n" for n in range(40))
LINES = [line for line in TEXT.splitlines() if line]


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "corpus.txt").write_text(TEXT)
    return tmp_path / "corpus.txt"


def told(path, *more: str) -> list[str]:
    return ["model=gpt2_tiny", "data=text", f"data.path={path}", "data.samples=null", "data.seq_len=16", *more]


def stream(part) -> list[str]:
    """The documents of rows that are cut from one stream: what stands between the ends."""
    ids = [each for row in ids_of(part) for each in row]
    texts, first = [], 0
    for place, each in enumerate(ids):
        if each == 0:
            texts.append(decoded(ids[first:place]))
            first = place + 1
    return texts


def test_a_txt_file_is_one_document_and_its_end_is_held_out(corpus):
    """It was split at every line break, and the lines were shuffled."""
    data = built(*told(corpus, "data.eval_fraction=0.25"))
    (train,), (held_out,) = stream(data.train), stream(data.eval)
    assert train + held_out == TEXT.removesuffix("\n") and train.endswith("\n")
    assert 0.15 < len(held_out) / len(TEXT) <= 0.25
    (line,) = (line for line in data.warnings if "document" in line)
    assert "corpus.txt" in line and "25%" in line and "data.documents=line" in line


@pytest.mark.parametrize(
    "chosen,texts", [("blank_line", TEXT.removesuffix("\n\n").split("\n\n")), ("line", LINES), ("file", [TEXT[:-1]])]
)
def test_what_a_document_is_can_be_said(corpus, chosen, texts):
    data = built(*told(corpus, f"data.documents={chosen}", "data.eval_fraction=0"))
    assert stream(data.train) == texts
    assert sum("is a document" in line for line in data.warnings) == 1


def test_documents_are_held_out_in_blocks(corpus):
    data = built(*told(corpus, "data.documents=line", "data.eval_fraction=0.25"))
    train, held_out = stream(data.train), stream(data.eval)
    assert train == sorted(train) and held_out == sorted(held_out) and sorted(train + held_out) == LINES
    blocks = sum(int(b[:3]) - int(a[:3]) != 1 for a, b in zip(held_out, held_out[1:])) + 1
    assert (len(held_out), blocks) == (10, 10)


def test_whole_files_are_held_out_where_there_are_many(tmp_path):
    for n in range(20):
        (tmp_path / f"{n:02d}.txt").write_text(f"file {n:02d}\n")
    data = built(*told(tmp_path, "data.eval_fraction=0.1"))
    assert stream(data.eval) == ["file 09", "file 19"] and len(stream(data.train)) == 18


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("chosen", ["file", "line"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_no_document_is_lost_and_some_are_left_to_train_on(count, chosen, fraction):
    texts = [f"{n} " + "word " * 40 for n in range(count)]
    train, held_out, _ = documents.held_out(datasets.Dataset.from_dict({"text": texts}), chosen, fraction, shortest=1)
    parts = [train["text"][:], held_out["text"][:] if held_out is not None else []]
    assert parts[0] and (parts[1] or chosen == "line")
    assert len("".join(parts[0] + parts[1])) == len("".join(texts))


def test_too_little_text_has_no_evaluation(tmp_path):
    (tmp_path / "t.txt").write_text("short\n")
    data = built(*told(tmp_path / "t.txt", "data.eval_fraction=0.5"))
    assert data.eval is None and any("data.eval_path" in line for line in data.warnings)


def test_a_folder_of_the_hub_is_read_alike(corpus):
    for more in ([], ["data.documents=line"], ["data.documents=blank_line"]):
        texts = built(*told(corpus, *more))
        hub = built(*told(corpus.parent, "data=hub", *more))
        assert ids_of(hub.train) == ids_of(texts.train) and ids_of(hub.eval) == ids_of(texts.eval)


def test_saved_rows_are_documents_as_they_are(tmp_path):
    """datasets still says that they were made from text."""
    (tmp_path / "t.txt").write_text("".join(LINES))
    datasets.load_dataset("text", data_files=str(tmp_path / "t.txt"), split="train").save_to_disk(tmp_path / "saved")
    words = told(tmp_path / "saved", "data=hub", "data.eval_fraction=0")
    assert not any("is a document" in line for line in built(*words).warnings)
    assert "data.documents=line" in refusal(*words, "data.documents=line")


def test_a_long_paragraph_is_read_in_linear_time(tmp_path):
    """60,000 lines took 6 seconds, and twice as many 24."""
    (tmp_path / "t.txt").write_text("a line\n" * 60_000)
    form, begin = text_files.Format(documents="blank_line"), time.process_time()
    assert len(list(text_files.rows(tmp_path / "t.txt", ["text"], form, "", print))) == 1
    assert time.process_time() - begin < 2


def test_a_text_may_be_longer_than_2_gib(tmp_path):
    """Arrow's own strings are not: a file is one document, and some are larger."""
    texts = text_data.dataset({"text": ["x" * 100, "y"]})
    assert texts.features["text"].dtype == "large_string"
    parts = documents.held_out(texts, "file", 0.1, shortest=1)[:2]
    assert all(part.features["text"].dtype == "large_string" for part in parts)


def test_a_row_is_a_document_in_other_files(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "one"}\n')
    (problem,) = compose(*small(*told(tmp_path / "t.jsonl", "data.documents=line"))).problems
    assert "data.documents=line" in problem and "t.jsonl" in problem


def test_a_long_text_has_the_tokens_of_its_pieces(monkeypatch, tmp_path):
    """A tokenizer needs a hundred times the size of what it is given at once."""
    from chat import save_tokenizer
    from tokenizers import processors
    from transformers import AutoTokenizer

    folder = save_tokenizer(tmp_path, None)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin, end = (tokenizer.convert_tokens_to_ids(word) for word in ("<|begin|>", "<|eot|>"))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A <|eot|>", special_tokens=[("<|begin|>", begin), ("<|eot|>", end)]
    )
    tokenizer.save_pretrained(folder)
    encoder = tokens.Tokens(str(folder))
    encoder.in_bytes = False
    whole, bare = list(encoder.ids(TEXT)), list(encoder.ids(TEXT, special=False))
    assert whole == [begin, *bare, end]
    monkeypatch.setattr(tokens, "PIECE", 37)
    assert list(encoder.ids(TEXT)) == whole and list(encoder.ids(TEXT, special=False)) == bare
    assert list(encoder.ids("x" * 100)) == [begin, *encoder.ids("x" * 100, special=False), end]


@pytest.mark.parametrize("packing", ["false", "true"])
def test_no_end_is_added_without_a_token_for_it(tmp_path, packing):
    """Token 0, a letter like any other, stood there."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate("abc")}, unk_token="a"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "t.txt").write_text("bcb\nccb\n")
    words = ["data.documents=line", "data.eval_fraction=0", f"data.tokenizer={tmp_path / 'tokenizer'}"]
    data = built(*told(tmp_path / "t.txt", *words, f"data.packing={packing}"))
    assert sorted(number for row in ids_of(data.train) for number in row) == [1, 1, 1, 2, 2, 2]
    (line,) = (line for line in data.warnings if "eos_token" in line)
    assert str(tmp_path / "tokenizer") in line and "token 0" in line
    assert not any("eos_token" in line for line in built(*told(tmp_path / "t.txt")).warnings)
