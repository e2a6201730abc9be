"""data.bad_rows: one refusal names all rows that cannot be used, or they are left out and counted."""

from __future__ import annotations

import json

import pytest
from chat import ALTERNATING, CHATML, save_tokenizer, talk, write
from test_chat import told
from test_data import built, refusal

GOOD = talk("2+2?", "four", "3+3?", "six")
FROM_ASSISTANT = {"messages": [{"role": "assistant", "content": "hello"}, *GOOD["messages"]]}
EMPTY = {"messages": [{"role": "user", "content": " "}, *GOOD["messages"][1:]]}
TWICE = {"messages": [GOOD["messages"][0], *GOOD["messages"]]}  # two users in a row
NO_MESSAGES = {"text": "hello"}
CLASSES = {"task": "classification", "vocab": 512}


@pytest.fixture
def told_with(tmp_path):
    """told_with(template, lines, *more) -> the overrides for the lines of a .jsonl file."""

    def told_with(template, lines, *more) -> list[str]:
        tokenizer = save_tokenizer(tmp_path / "tokenizer", template)
        path = tmp_path / "talks.jsonl"
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return told(path, f"data.tokenizer={tokenizer}", "data.samples=null", *more)

    return told_with


LINES = [GOOD, FROM_ASSISTANT, EMPTY, '{"messages": broken', TWICE, GOOD, FROM_ASSISTANT, NO_MESSAGES, EMPTY, EMPTY]


def test_a_refusal_names_all_rows_by_kind_with_their_places(told_with):
    """Lines that are no JSON, rows that are no conversation, and those that the template does not take."""
    first, *kinds = refusal_lines(*told_with(ALTERNATING, LINES))
    assert first.startswith("8 of 10 rows cannot be used.") and "data.bad_rows=skip" in first
    assert [line.partition(":")[0] for line in kinds] == ["3 rows", "3 rows", "1 row", "1 row"]
    wanted = (
        ("3 rows", "line 3", "content is empty", "(also talks.jsonl, line 9; talks.jsonl, line 10)"),
        ("3 rows", "line 2", "roles must alternate", "(also talks.jsonl, line 5; talks.jsonl, line 7)"),
        ("1 row", "line 4", "Expecting value", ""),
        ("1 row", "line 8", "there is no messages", ""),
    )
    for parts in wanted:
        assert any(all(part in line for part in parts) for line in kinds), (parts, kinds)


def refusal_lines(*words, **more) -> list[str]:
    from legroom.errors import Refusal

    with pytest.raises(Refusal) as refused:
        built(*words, **more)
    return str(refused.value).splitlines()


def test_skipped_rows_are_left_out_and_counted_by_kind(told_with):
    data = built(*told_with(ALTERNATING, LINES, "data.bad_rows=skip"))
    assert len(data.train) == 2
    (said,) = [line for line in data.warnings if "data.bad_rows=skip" in line]
    assert said.startswith("8 of 10 rows are left out (data.bad_rows=skip): 3: ")
    for part in ("content is empty", "Expecting value", "there is no messages", "roles must alternate"):
        assert part in said


def test_one_kind_is_one_line_and_one_row_is_as_it_was_said(told_with):
    (line,) = refusal_lines(*told_with(CHATML, [GOOD, EMPTY]))
    assert line.endswith("content is empty. data.bad_rows=skip leaves such rows out.") and "line 2" in line
    (line,) = refusal_lines(*told_with(CHATML, [GOOD, EMPTY, EMPTY]))
    assert "So it is in 2 of 3 rows (also talks.jsonl, line 3)." in line


def test_where_no_row_is_left_it_is_refused_with_the_kinds(told_with):
    lines = refusal_lines(*told_with(CHATML, [EMPTY, NO_MESSAGES], "data.bad_rows=skip"))
    assert "no row is left of 2" in lines[0] and any("content is empty" in line for line in lines)


@pytest.mark.parametrize("setting, rows", [("skip", 3), ("refuse", None)])
def test_rows_of_texts_and_of_questions_too(tmp_path, setting, rows):
    texts = [{"text": "good", "label": n % 2} for n in range(3)] + [
        {"text": 3, "label": 1},
        {"text": "x", "label": 0.5},
    ]
    path = write(tmp_path / "texts.jsonl", texts)
    words = ["model=bert_tiny", "data=text", f"data.path={path}", "data.eval_fraction=0", f"data.bad_rows={setting}"]
    if rows:
        data = built(*words, "data.task=classification", **CLASSES)
        assert len(data.train) == rows and any("2 of 5 rows are left out" in line for line in data.warnings)
    else:
        lines = refusal_lines(*words, "data.task=classification", **CLASSES)
        assert lines[0].startswith("2 of 5 rows cannot be used.") and len(lines) == 3


# --- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("talks.ndjson", "".join(json.dumps(GOOD) + "\n" for _ in range(2)), ""),
        ("talks.json", json.dumps({"version": 1, "data": [GOOD, GOOD]}), "its rows are those of the key data"),
        ("talks.json", json.dumps({"rows": [GOOD, GOOD]}), "its rows are those of the key rows"),
    ],
)
def test_other_forms_of_json_are_read(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    data = built(*told(tmp_path / name, "data.samples=null"))
    assert len(data.train) == 2 and any(said in line for line in data.warnings)


@pytest.mark.parametrize("window_log, frames", [(27, 1), (31, 1), (20, 3)])
def test_zst_of_a_long_window_and_of_several_frames_is_read(tmp_path, window_log, frames):
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, enable_ldm=True)
    packed = b""
    for _ in range(frames):
        packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        packed += packer.compress(json.dumps(GOOD).encode() + b"\n") + packer.flush()
    (tmp_path / "talks.jsonl.zst").write_bytes(packed)
    assert len(built(*told(tmp_path / "talks.jsonl.zst", "data.samples=null")).train) == frames


@pytest.mark.parametrize("task", ["classification", "language_modelling"])
@pytest.mark.parametrize("blank", ["", " ", "\n\t ", None])
def test_a_text_of_blanks_is_no_text(tmp_path, task, blank):
    rows = [{"text": "good text", "label": n % 2} for n in range(4)] + [{"text": blank, "label": 0}]
    path = write(tmp_path / "texts.jsonl", rows)
    model = "model=bert_tiny" if task == "classification" else "model=llama_tiny"
    words = [model, "data=text", f"data.path={path}", "data.eval_fraction=0", "data.seq_len=8", f"data.task={task}"]
    data = built(*words, task=task, vocab=512)
    assert any("1 of 5 rows are left out: 1 without a text" in line for line in data.warnings), data.warnings


# --- labels ----------------------------------------------------------------------------------------


def labelled(tmp_path, labels, *more):
    path = write(tmp_path / "texts.jsonl", [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)])
    return [
        "model=bert_tiny",
        "data=text",
        f"data.path={path}",
        "data.eval_fraction=0",
        "data.task=classification",
        *more,
    ]


def test_the_label_minus_1_is_asked_about(tmp_path):
    message = refusal(*labelled(tmp_path, [0, 1, -1, 0, -1]), **CLASSES)
    assert "2 of 5 rows have the label -1" in message and "line 3" in message
    assert "'no label'" in message and "data.bad_rows=skip" in message and "model.classes=3" in message


@pytest.mark.parametrize(
    "labels, more, classes, rows",
    [
        ([0, 1, -1, 0], ["data.bad_rows=skip"], 2, 3),
        ([0, 1, -1, 0], ["model.classes=3"], 3, 4),
        ([1, -1, 1], [], 2, 3),  # of support vector machines
    ],
)
def test_what_the_label_minus_1_is_can_be_answered(tmp_path, labels, more, classes, rows):
    data = built(*labelled(tmp_path, labels, *more), **CLASSES)
    assert (data.classes, len(data.train)) == (classes, rows)
