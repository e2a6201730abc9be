"""Files as people have them: any encoding, compression and separator; what is left out is said, with file and line."""

from __future__ import annotations

import gzip
import json
import random
import time

import pandas
import pytest
from conftest import compose, small
from test_data import CLASSES, LM, built, decoded, ids_of, refusal

from legroom.machine import host

TEXTS = ["one text", "two words", "three é words", "four of them"]


def told(path, *more):
    return ["model=bert_tiny", "data=text", f"data.path='{path}'", "data.eval_fraction=0", "data.samples=null", *more]


def content(kind: str, texts=TEXTS, separator=",") -> str:
    """The texts with the labels 0, 1, 0, 1 in a file of a kind."""
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(texts)]
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if kind == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False)
    if kind == "txt":
        return "".join(text + "\n" for text in texts)
    return f"text{separator}label\n" + "".join(f"{row['text']}{separator}{row['label']}\n" for row in rows)


def classes(path, *more, **also):
    return built(*told(path, *more), task=CLASSES, **also)


def texts_of(data) -> list[str]:
    return [decoded(ids) for ids in ids_of(data.train)]


# --- kinds, suffixes, compression, separators -------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["t.json", "T.JSONL", "t.Csv", "t.tsv", "t.jsonl.gz", "t.CSV.GZ", "t.json.xz", "t.tsv.bz2"]
)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name):
    path = tmp_path / name
    kind = next(part for part in name.lower().split(".") if part in ("json", "jsonl", "csv", "tsv"))
    with _writer(path) as file:
        file.write(content(kind, separator="\t" if kind == "tsv" else ",").encode())
    data = classes(path)
    assert texts_of(data) == TEXTS and [int(row["labels"]) for row in data.train] == [0, 1, 0, 1]
    assert data.warnings == []


def test_an_unreadable_parquet_compression_is_refused(tmp_path):
    for name in ("a.parquet", "b.parquet.gz"):
        (tmp_path / name).write_bytes(b"PAR1")
    (problem,) = compose(*small(*told(tmp_path))).problems
    assert "a .parquet file is compressed inside; unpack it first" in problem


def _writer(path):
    import bz2
    import lzma

    openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    return openers.get(path.suffix.lower(), open)(path, "wb")


def test_a_file_of_a_name_in_upper_case_is_found_in_a_folder(tmp_path):
    (tmp_path / "A.TXT").write_text(content("txt"))
    (tmp_path / "._A.TXT").write_bytes(b"\0\5\x16\7")  # what macOS leaves on other file systems
    assert decoded(ids_of(built(*told(tmp_path, "model=gpt2_tiny"), task=LM).train)[0]).startswith("one text")


def test_zst_is_read_with_the_package_and_refused_without(tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl.zst"
    if host.has("zstandard"):
        import zstandard

        path.write_bytes(zstandard.compress(content("jsonl").encode()))
        assert texts_of(classes(path)) == TEXTS
    path.write_bytes(b"cut")
    monkeypatch.setattr(host, "has", lambda module: module != "zstandard")
    (problem,) = compose(*small(*told(path))).problems
    assert "t.jsonl.zst" in problem and "pip install zstandard" in problem


@pytest.mark.parametrize("separator,name", [(";", "semicolon"), ("\t", "tab"), ("|", "bar")])
def test_another_separator_is_found_and_said_or_typed(tmp_path, separator, name):
    path = tmp_path / "t.csv"
    path.write_text(content("csv", separator=separator))
    found = classes(path)
    assert texts_of(found) == TEXTS
    assert [line for line in found.warnings if "t.csv" in line and name in line]
    typed = classes(path, f"data.separator={name}")
    assert texts_of(typed) == TEXTS and typed.warnings == []
    assert "no column text" in refusal(*told(path, "data.separator=comma"), task=CLASSES)


def test_a_json_file_may_have_an_object_per_line(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(content("jsonl"))
    assert texts_of(classes(path)) == TEXTS


# --- encodings --------------------------------------------------------------------------------------

PROSE = "Die Straße ist schön, übrigens.\n" * 3
RUSSIAN = "Это русский текст для проверки\n" * 5


@pytest.mark.parametrize(
    "encoding,text,seems",
    [
        ("latin-1", PROSE, "latin-1"),
        ("cp1252", PROSE + "“schön” – groß\n", "cp1252"),
        ("utf-16", PROSE, "utf-16"),
        ("koi8-r", RUSSIAN, "koi8-r"),
        ("shift_jis", "これは日本語の文章です。とても良い。\n" * 5, "cp932"),
        ("cp1251", "a line in English, and another one, and so on: " * 9 + "хороший фильм\n" * 5, "cp1251"),
    ],
)
def test_another_encoding_is_named_and_can_be_typed(tmp_path, encoding, text, seems):
    path = tmp_path / "t.txt"
    path.write_bytes(text.encode(encoding))
    words = told(path, "model=gpt2_tiny", "data.seq_len=64")
    line = refusal(*words)
    assert "t.txt" in line and f"data.encoding={seems}" in line and f"iconv -f {seems}" in line
    word = next(word for word in text.split() if not word.isascii())
    assert word[:5] in line, "a person sees whether it is right"
    data = built(*words, f"data.encoding={seems}")
    flat = [token for row in ids_of(data.train) for token in row]
    assert bytes(token - 1 if token else 10 for token in flat).decode() == text


def test_utf_8_that_is_read_as_something_else_is_said(tmp_path):
    """Any bytes are latin-1, so nothing else would show it."""
    (tmp_path / "t.txt").write_text(PROSE)
    data = built(*told(tmp_path / "t.txt", "model=gpt2_tiny", "data.encoding=latin-1", "data.seq_len=64"))
    assert any("t.txt seems to be in utf-8" in line for line in data.warnings)


@pytest.mark.parametrize("kind", ["txt", "csv", "jsonl", "json"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    path.write_text(content(kind), encoding="utf-8-sig")
    data = built(*told(path, "model=gpt2_tiny", "data.task=language_modelling"), task=LM)
    assert decoded(ids_of(data.train)[0]).startswith("one text")
    for typed, name in (("utf-16-le", "utf-16-le"), ("utf-16be", "utf-16-be")):
        path.write_bytes(("\ufeff" + content(kind)).encode(typed))
        words = told(path, "model=gpt2_tiny", "data.task=language_modelling", f"data.encoding={name}")
        assert decoded(ids_of(built(*words).train)[0]).startswith("one text")


def test_an_unknown_encoding_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text(content("txt"))
    words = told(tmp_path / "t.txt", "model=gpt2_tiny", "data.encoding=utf8000")
    assert any("data.encoding=utf8000" in line for line in compose(*small(*words)).problems)


# --- what is left out -------------------------------------------------------------------------------


def test_left_out_rows_are_counted_with_a_place(train, tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(8)]
    rows[2]["label"], rows[4]["text"], rows[5]["label"] = None, "", None
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    record = train(*told(path, "data.samples=null")).record
    (line,) = [line for line in record.warnings if "left out" in line]
    assert "3 of 8 rows" in line and "2 without a label" in line and "1 without a text" in line
    assert "t.jsonl, line 3" in line
    assert record.training.samples == 4


def test_texts_such_as_null_are_texts(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\nNA,none\nnull,none\nsome,nan-like\n")
    data = classes(path)
    assert texts_of(data) == ["NA", "null", "some"] and data.names == ["nan-like", "none"]
    assert data.warnings == []


def test_blank_lines_are_counted_in_a_txt_file(tmp_path):
    (tmp_path / "t.txt").write_text("one\n\n\ntwo\n")
    data = built(*told(tmp_path / "t.txt", "model=gpt2_tiny", "data.documents=line"))
    assert any("2 of 4 rows" in line and "t.txt, line 2" in line for line in data.warnings)
    for kind in ("csv", "jsonl"):
        path = tmp_path / f"u.{kind}"
        path.write_text("\n".join(line + "\n" for line in content(kind).splitlines()) + "\n\n")
        assert texts_of(classes(path)) == TEXTS and classes(path).warnings == []


def test_texts_that_are_cut_are_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(content("csv", ["just 8 b", "a text that is longer than eight bytes", "short", "short"]))
    assert any(line.startswith("1 of 4 texts") for line in classes(path, "data.seq_len=8").warnings)


def test_an_empty_file_among_others_is_named(tmp_path):
    (tmp_path / "a.txt").write_text(content("txt"))
    (tmp_path / "b.txt").touch()
    assert any("b.txt is empty" in line for line in built(*told(tmp_path, "model=gpt2_tiny")).warnings)


def test_one_text_alone_has_no_evaluation_and_that_is_said(tmp_path):
    (tmp_path / "t.txt").write_text("only one line, however long it is\n")
    data = built(*told(tmp_path / "t.txt", "model=gpt2_tiny", "data.eval_fraction=0.1"))
    assert data.eval is None and any("data.eval_path" in line for line in data.warnings)


# --- what cannot be used ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,text,words",
    [
        ("t.csv", "", ["t.csv", "empty"]),
        ("t.csv", "text,label\n", ["t.csv", "a header and no rows"]),
        ("t.tsv", "text\tlabel\n", ["t.tsv", "a header and no rows"]),
        ("t.json", "", ["t.json", "empty"]),
        ("t.json", "[]", ["t.json", "empty"]),
        ("t.jsonl", "\n\n", ["t.jsonl", "empty"]),
        ("t.json", '{"a": [{"text": "a"}], "b": [{"text": "b"}]}', ["t.json", "object with the keys a, b", "list of"]),
        ("t.json", '[{"text": "a", "label": 0}', ["t.json cannot be read", "column"]),
        ("t.json", '[\n {"text": "a", "label": 0},\n {"text": b}\n]', ["t.json cannot be read: line 3:", "column 11"]),
        ("t.json", '{\n "text": "a",\n "label": }\n', ["t.json cannot be read: line 3:"]),
        ("t.json", '[["a", 0]]', ["t.json", "row 1: it is a list"]),
        ("t.csv", "text,label\na,0\nb, with a comma,1\n", ["t.csv", "line 3: it has 3 fields", "double quotes"]),
        ("t.csv", 'text,label\na,0\n"not closed,1\nb,1\n', ["t.csv", "line 3"]),
        ("t.csv", "text,text,label\na,b,0\n", ["t.csv", "names the column text 2 times"]),
        ("t.csv", "text,label\n1,0\n2,1\n", ["the column text holds numbers", "data.text_column="]),
        ("t.jsonl", '{"text": "a", "label": 0}\n{"text": 7, "label": 1}\n', ["t.jsonl, line 2", "text", "int (7)"]),
        ("t.jsonl", '{"text": "a", "label": [0, 1]}\n', ["t.jsonl, line 1", "the column label holds a list"]),
        ("t.jsonl", '{"text": "a", "label": {"id": 0}}\n', ["t.jsonl, line 1", "holds an object"]),
        ("t.jsonl", '{"text": "a", "label": 0.5}\n', ["t.jsonl, line 1", "0.5", "class"]),
        ("t.jsonl", '{"text": "\\ud800", "label": 0}\n', ["t.jsonl, line 1", "surrogate"]),
        ("t.jsonl", '{"text": "a", "label": 0}\n' + "[" * 100_000 + "\n", ["t.jsonl", "line 2"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_unusable_files_are_refused_in_a_line(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    line = refusal(*told(tmp_path / name), task=CLASSES)
    assert all(word in line for word in words), line


def test_a_file_without_a_suffix_is_told_which_there_are(tmp_path):
    (tmp_path / "corpus").write_text("one text\n")
    (line,) = compose(*small(*told(tmp_path / "corpus"))).problems
    assert "corpus has no suffix" in line and ".jsonl" in line and "Rename it" in line


def test_a_label_column_of_lists_in_parquet_is_one_line(tmp_path):
    pandas.DataFrame([{"text": "a", "label": [0, 1]}]).to_parquet(tmp_path / "t.parquet")
    line = refusal(*told(tmp_path / "t.parquet"), task=CLASSES)
    assert "t.parquet, row 1" in line and "label" in line


def test_a_compressed_file_that_is_cut_off_is_one_line(tmp_path):
    whole = gzip.compress(content("jsonl", [random.Random(0).randbytes(99).hex() for _ in range(99)]).encode())
    (tmp_path / "t.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    assert "t.jsonl.gz cannot be read" in refusal(*told(tmp_path / "t.jsonl.gz"), task=CLASSES)
    (tmp_path / "t.jsonl.gz").write_bytes(b"no gzip at all")
    assert "t.jsonl.gz cannot be read" in refusal(*told(tmp_path / "t.jsonl.gz"), task=CLASSES)


@pytest.mark.parametrize("data", ["dummy", "source", "mrpc"])
def test_evaluation_files_for_other_data_are_refused(data):
    problems = compose("model=gpt2_tiny", f"data={data}", "data.eval_path=some.txt", "device=cpu").problems
    assert any(f"data.eval_path is not used by data={data}" in line for line in problems)


# --- a line of 10 MB --------------------------------------------------------------------------------


def test_a_long_evaluation_is_bounded_by_default_and_says_so(train, tmp_path):
    (tmp_path / "train.txt").write_text("some text to train on\n" * 20)
    (tmp_path / "eval.txt").write_text("x" * 100_000)
    words = ["model=gpt2_tiny", *told(tmp_path / "train.txt")[1:], f"data.eval_path={tmp_path}/eval.txt"]
    run = train(*words, "eval.batch=64")
    found = run.record.evaluation
    assert (found.samples, found.available_samples) == (1000, 3125)
    assert any("1,000 of 3,125" in line and "eval.max_samples=null" in line for line in run.record.warnings)
    phases = [message for message in run.messages if getattr(message, "phase", "") == "eval"]
    assert phases[-1].total == 16, "the progress bar knows how many batches there are"
    other = train("recipe=trainer", *words, "eval.batch=64").record.evaluation
    assert other.loss == pytest.approx(found.loss, rel=1e-5)


def test_the_bound_is_a_key(tmp_path):
    (tmp_path / "t.txt").write_text("x" * 10_000 + "\n" + "some text\n" * 9)
    words = told(tmp_path / "t.txt", "model=gpt2_tiny", "data.eval_fraction=0.99")
    assert len(built(*words, "eval.max_samples=7").eval) == 7
    assert built(*words, "eval.max_samples=7").eval_available == len(built(*words, "eval.max_samples=null").eval)


def test_a_bounded_evaluation_draws_from_the_whole_file(tmp_path):
    """A file may be sorted by its labels."""
    path = tmp_path / "t.csv"
    path.write_text("text,label\n" + "".join(f"text {n},{n // 50}\n" for n in range(100)))
    data = classes(path, f"data.eval_path={path}", "eval.max_samples=20")
    assert {int(row["labels"]) for row in data.eval} == {0, 1}


@pytest.mark.slow
def test_a_line_of_ten_megabytes_is_read_in_seconds(tmp_path):
    (tmp_path / "t.txt").write_text("x" * 10_000_000 + "\n")
    (tmp_path / "t.csv").write_text("text,label\n" + "x" * 10_000_000 + ",0\nother,1\n")
    start = time.perf_counter()
    built(*told(tmp_path / "t.txt", "model=gpt2_tiny", "data.seq_len=64"))
    classes(tmp_path / "t.csv")
    assert time.perf_counter() - start < 20


# --- batches larger than the data -------------------------------------------------------------------


def test_a_batch_larger_than_the_data_is_refused(train, tmp_path):
    (problem,) = compose(*small("batch.per_device=16")).problems
    assert "batch.per_device=16" in problem and "8 samples" in problem and "batch.per_device=8 or less" in problem
    (problem,) = compose(*small("batch.per_device=5", "parallelism=ddp", "parallelism.num_processes=2")).problems
    assert "batch.per_device=5 on 2 devices is a batch of 10" in problem and "batch.per_device=4 or less" in problem
    path = tmp_path / "t.csv"
    path.write_text(content("csv"))
    for recipe in ("trainer", "accelerate"):
        record = train(f"recipe={recipe}", *told(path), "batch.per_device=5", status="refused").record
        assert "batch.per_device=5" in record.error.message and "4 samples" in record.error.message
    assert train(*told(path), "batch.per_device=4").record.training.samples == 8


def test_a_step_larger_than_the_data_is_said(train):
    record = train("batch.per_device=4", "accumulation=x8").record
    assert record.training.samples == 2 * 8
    assert any("32 samples" in line and "8 to train on" in line for line in record.warnings)
