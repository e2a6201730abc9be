"""datafiles: how texts of the user's become rows, with any tokenizer, and what is said of files that cannot be used."""

from __future__ import annotations

import json

import pytest
import torch
from conftest import compose, small
from test_data import CLASSES, built, decoded, ids_of, refusal

from legroom.errors import Refusal

# --- text: the user's files ------------------------------------------------------------------------


TEXTS = ["one", "two words", "three words here", "a fourth text that is longer than a block of sixteen", "five"]


def write(path, kind, texts=TEXTS, labels=None):
    """The texts as a .txt, .jsonl or .csv file."""
    labels = labels or [n % 2 for n in range(len(texts))]
    if kind == "txt":
        content = "".join(text + "\n" for text in texts)
    elif kind == "jsonl":
        content = "".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in zip(texts, labels))
    else:
        content = "text,label\n" + "".join(f'"{t}",{n}\n' for t, n in zip(texts, labels))
    path.with_suffix("." + kind).write_text(content)
    return path.with_suffix("." + kind)


def told(path, *more):
    lines = ["data.documents=line"] if str(path).endswith(".txt") else []
    files = ["data=text", f"data.path='{path}'", *lines]
    return ["model=gpt2_tiny", *files, "data.eval_fraction=0", "data.seq_len=16", *more]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_packing_loses_no_token(tmp_path, kind):
    rows = built(*told(write(tmp_path / "texts", kind))).train
    ids = ids_of(rows)
    assert [len(row) for row in ids[:-1]] == [16] * (len(ids) - 1) and 2 <= len(ids[-1]) <= 16
    flat = [i for row in ids for i in row]
    assert flat == [i for text in TEXTS for i in [*(b + 1 for b in text.encode()), 0]]
    assert all(torch.equal(row["labels"], row["input_ids"]) for row in rows)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_classification_has_a_row_a_text(tmp_path, kind):
    rows = built(*told(write(tmp_path / "texts", kind)), "data.task=classification", task=CLASSES)
    assert [decoded(ids) for ids in ids_of(rows.train)] == [text[:16] for text in TEXTS]
    assert [int(row["labels"]) for row in rows.train] == [0, 1, 0, 1, 0] and rows.classes == 2


def test_labels_may_be_words_and_are_numbered_in_order(tmp_path):
    path = write(tmp_path / "texts", "csv", labels=["bad", "good", "bad", "fair", "good"])
    rows = built(*told(path), "data.task=classification", task=CLASSES)
    assert [int(row["labels"]) for row in rows.train] == [0, 2, 0, 1, 2] and rows.classes == 3


def test_columns_can_be_named(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"body": "hello", "stars": 1, "text": 5}\n{"body": "world", "stars": 0, "text": 6}\n')
    rows = built(
        *told(path), "data.text_column=body", "data.label_column=stars", "data.task=classification", task=CLASSES
    )
    assert [decoded(ids) for ids in ids_of(rows.train)] == ["hello", "world"]
    assert [int(row["labels"]) for row in rows.train] == [1, 0]


def test_a_folder_and_a_pattern_name_several_files(tmp_path):
    (tmp_path / "below").mkdir()
    for index, place in enumerate([tmp_path / "a", tmp_path / "b", tmp_path / "below" / "c"]):
        write(place, "txt", [f"file {index}"])
    whole = [i for row in ids_of(built(*told(tmp_path)).train) for i in row]
    part = [i for row in ids_of(built(*told(tmp_path / "*.txt")).train) for i in row]
    assert decoded(whole) == "file 0file 1file 2" and decoded(part) == "file 0file 1"


def test_empty_lines_and_missing_labels_are_left_out(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(
        '{"text": "kept", "label": 1}\n{"text": "", "label": 1}\n{"text": "no label", "label": null}\n'
        '{"text": null, "label": 0}\n{"text": "kept too", "label": 0}\n'
    )
    rows = built(*told(path), "data.task=classification", task=CLASSES)
    assert [decoded(ids) for ids in ids_of(rows.train)] == ["kept", "kept too"]


def test_part_of_the_texts_is_kept_for_the_evaluation(tmp_path):
    texts = [f"text number {n}" for n in range(20)]
    rows = built(
        *told(write(tmp_path / "texts", "jsonl", texts)),
        "data.eval_fraction=0.25",
        "data.seq_len=32",
        "data.samples=null",
        "data.task=classification",
        task=CLASSES,
    )
    train, held_out = ([decoded(ids) for ids in ids_of(part)] for part in (rows.train, rows.eval))
    assert (len(train), len(held_out)) == (15, 5) and set(train) | set(held_out) == set(texts)


def test_files_of_their_own_can_be_named_for_the_evaluation(tmp_path):
    other = write(tmp_path / "other", "txt", ["held out"])
    rows = built(*told(write(tmp_path / "texts", "txt")), f"data.eval_path={other}")
    assert decoded(ids_of(rows.eval)[0]) == "held out"
    assert built(*told(tmp_path / "texts.txt")).eval is None


def test_the_samples_can_be_limited(tmp_path):
    assert len(built(*told(write(tmp_path / "texts", "txt")), "data.samples=2").train) == 2
    assert len(built(*told(tmp_path / "texts.txt"), "data.samples=1000").train) < 10


def test_a_row_is_left_to_train_on(tmp_path):
    path = write(tmp_path / "texts", "txt", ["one text", "another text"])
    words = [*told(path), "data.eval_fraction=0.9"]
    try:
        assert len(built(*words).train) > 0
    except Refusal as said:
        assert "data.eval_fraction" in str(said)


# --- a tokenizer of the user's own -----------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with a tokenizer of seven words."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "[END]": 2, "one": 3, "two": 4, "words": 5, "here": 6}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="[UNK]", pad_token="[PAD]", eos_token="[END]"
    ).save_pretrained(folder)
    return folder


def test_any_tokenizer_folder_will_do(tmp_path, tokenizer):
    path = write(tmp_path / "texts", "txt", ["one two words", "two strangers here"])
    rows = built(*told(path), f"data.tokenizer={tokenizer}")
    end = 2  # a text ends with the tokenizer's end, not with its padding
    assert ids_of(rows.train) == [[3, 4, 5, end, 4, 1, 6, end]]
    assert rows.pad_token_id == 0
    assert rows.vocab == 7 and rows.tokenizer is not None


def test_a_tokenizer_goes_with_the_saved_model(train, tmp_path, tokenizer):
    from transformers import AutoTokenizer

    path = write(tmp_path / "texts", "jsonl", ["one two words", "two words here"] * 4)
    run = train(
        "model=bert_tiny",
        "data=text",
        f"data.path={path}",
        f"data.tokenizer={tokenizer}",
        "model.vocab=8",
        "save.final=true",
    )
    saved = AutoTokenizer.from_pretrained(run.folder / "model")
    assert saved("one here")["input_ids"] == [3, 6]


def test_a_vocabulary_too_small_for_the_tokenizer_is_refused(train, tmp_path, tokenizer):
    path = write(tmp_path / "texts", "txt")
    record = train(
        "model=gpt2_tiny",
        "data=text",
        f"data.path={path}",
        f"data.tokenizer={tokenizer}",
        "model.vocab=4",
        "batch.per_device=1",
        status="refused",
    ).record
    assert "model.vocab=8" in record.error.message and record.error.phase == "load"


def test_no_tokenizer_there_is_refused(tmp_path):
    path = write(tmp_path / "texts", "txt")
    (tmp_path / "empty").mkdir()
    for name in (tmp_path / "empty", "nobody/no-such-tokenizer"):
        line = refusal(*told(path), f"data.tokenizer={name}")
        assert f"data.tokenizer={name}" in line and "data.tokenizer=bytes" in line


# --- files that cannot be used ---------------------------------------------------------------------


def problems_of(*overrides) -> str:
    return "\n".join(compose(*small(*overrides)).problems)


@pytest.mark.parametrize(
    "name,words",
    [
        ("nothing.txt", ["data.path", "no such file"]),
        ("*.nothing", ["data.path", "no such file"]),
        ("folder", ["data.path", ".txt, .jsonl"]),
        ("file.pdf", ["data.path", ".pdf", ".jsonl"]),
        ("*.*", ["data.path", "one kind"]),
    ],
)
def test_a_path_without_usable_files_is_refused(tmp_path, name, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.pdf").touch()
    write(tmp_path / "a", "txt")
    write(tmp_path / "b", "csv")
    found = problems_of(*told(tmp_path / name))
    assert all(word in found for word in words), found


def test_a_missing_evaluation_file_is_refused_before_the_job(tmp_path):
    found = problems_of(*told(write(tmp_path / "texts", "txt")), f"data.eval_path={tmp_path / 'nothing.txt'}")
    assert "data.eval_path" in found and "no such file" in found


def test_classes_from_a_txt_file_are_refused_before_the_job(tmp_path):
    found = problems_of(*told(write(tmp_path / "texts", "txt")), "data.task=classification")
    assert "data.task=classification" in found and ".jsonl" in found


@pytest.mark.parametrize(
    "content,words",
    [
        ('{"body": "x", "label": 1}\n', ["text", "body", "data.text_column="]),
        ('{"text": "x", "stars": 1}\n', ["label", "stars", "data.label_column="]),
        ('{"text": "x", "label": 1}\n{"text": broken\n', ["texts.jsonl, line 2: Expecting value"]),
        ('{"text": "", "label": 1}\n', ["no text"]),
        ('{"text": 5, "label": 1}\n{"text": 6, "label": 0}\n', ["data.text_column", "text"]),
    ],
    ids=str,
)
def test_a_jsonl_file_that_cannot_be_used_is_refused_in_words(tmp_path, content, words):
    path = tmp_path / "texts.jsonl"
    path.write_text(content)
    line = refusal(*told(path), "data.task=classification", task=CLASSES)
    assert all(word in line for word in words), line


def test_a_refusal_of_the_worker_is_a_refused_job(command, tmp_path):
    """What only reading the file can tell comes from the worker, and looks the same to the person."""
    (tmp_path / "texts.jsonl").write_text('{"body": "x"}\n{"body": "y"}\n')
    ended = command(*small(*told(tmp_path / "texts.jsonl"), "hydra.run.dir=here"))
    assert ended.code == 2 and "data.text_column=" in ended.err and "Traceback" not in ended.err + ended.out


def test_more_labels_than_classes_are_refused(train, tmp_path):
    path = write(tmp_path / "texts", "jsonl", labels=[0, 1, 2, 3, 4])
    record = train("model=bert_tiny", "data=text", f"data.path={path}", status="refused").record
    assert "5 labels" in record.error.message and "model.classes=5" in record.error.message


# --- the tokenizer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("task", ["classification", "question_answering", "language_modelling", "chat"])
def test_a_saved_tokenizer_truncates_and_pads_as_before(tmp_path, task, own):
    """Encoding the rows of a training sets both in a fast tokenizer, and its file has them."""
    from chat import save_tokenizer, talk
    from transformers import AutoTokenizer

    folder = save_tokenizer(tmp_path / "given", None)
    if own:
        given = AutoTokenizer.from_pretrained(folder)
        given.backend_tokenizer.enable_truncation(20, strategy="only_second")
        given.backend_tokenizer.enable_padding(length=20)
        given.save_pretrained(folder)
    answers = {"text": ["b"], "answer_start": [2]}
    row = {"text": "a text", "question": "a?", "context": "a b", "answers": answers} | talk("a", "b")
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row | {"label": number % 2}) + "\n" for number in range(4)))
    words = ["model=llama_tiny"] if task in ("chat", "language_modelling") else ["model=bert_tiny"]
    words += ["data=chat"] if task == "chat" else ["data=text", f"data.task={task}"]
    words += [f"data.path={path}", f"data.tokenizer={folder}"]
    built(*words, "data.eval_fraction=0.5", "data.seq_len=16", task=task).tokenizer.save_pretrained(tmp_path / "saved")
    files = [json.loads((each / "tokenizer.json").read_text()) for each in (folder, tmp_path / "saved")]
    for key in ("truncation", "padding"):
        assert files[0][key] == files[1][key] and (files[0][key] is not None) == own
