"""What is left out, taken otherwise than written, or evaluated on rows to train on: it is said, with the number."""

from __future__ import annotations

import csv
import json

import datasets
import pytest
from conftest import compose
from test_data import CLASSES, LM, built, refusal

from legroom.data import sources
from legroom.errors import Refusal
from legroom.options import train as train_options

KINDS = ["csv", "tsv", "jsonl", "json", "parquet", "hub"]


def write(folder, kind: str, rows: list[dict]):
    """Rows as a file; `hub`: a folder of them. Returns what data.path names."""
    path = folder / f"rows.{'parquet' if kind == 'hub' else kind}"
    if kind in ("csv", "tsv"):
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif kind in ("parquet", "hub"):
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text(json.dumps(rows) if kind == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    return folder if kind == "hub" else path


def told(path, *more: str) -> list[str]:
    name = "hub" if path.is_dir() else "text"
    return [f"data={name}", f"data.path={path}", "data.samples=null", "data.seq_len=32", *more]


def classes(path, *more: str):
    words = ["model=bert_tiny", "data.task=classification", "model.classes=3"]
    return built(*words, *told(path, *more), task=CLASSES)


def line_of(data, word: str) -> str:
    """The one warning with a word in it."""
    (line,) = (line for line in data.warnings if word in line)
    return line


# --- labels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["nan", "NA"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_label_that_says_there_is_none_is_none(tmp_path, kind, missing):
    rows = [{"text": f"text {n}", "label": ("good", "bad")[n % 2]} for n in range(6)]
    data = classes(write(tmp_path, kind, [*rows, {"text": "NA", "label": missing}]), "data.eval_fraction=0")
    assert data.names == ["bad", "good"] and len(data.train) == 6
    assert "1 of 7 rows are left out" in line_of(data, "left out") and missing in line_of(data, "left out")


@pytest.mark.parametrize("missing", ["Nan", "nAn", "-nan"])
def test_a_missing_label_among_numbers_is_none(tmp_path, missing):
    data = classes(write(tmp_path, "csv", [*ROWS, {"text": "x", "label": missing}]), "data.eval_fraction=0")
    assert len(data.train) == len(ROWS) and f"1 without a label ({missing})" in line_of(data, "left out")


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_floats_are_numbers_of_classes_in_every_kind_of_file(tmp_path, kind, gap):
    rows = [{"text": f"text {n}", "label": float(n % 3)} for n in range(6)] + [{"text": "x", "label": None}] * gap
    data = classes(write(tmp_path, kind, rows), "data.eval_fraction=0")
    assert [int(row["labels"]) for row in data.train] == [0, 1, 2, 0, 1, 2] and data.names == ["0", "1", "2"]
    assert sum("1 without a label" in line for line in data.warnings) == gap


@pytest.mark.parametrize("kind", KINDS)
def test_fractions_are_no_classes_in_any_kind_of_file(tmp_path, kind):
    rows = [{"text": f"text {n}", "label": 0.5 + n % 2} for n in range(6)]
    with pytest.raises(Exception, match="0.5: a class is a whole number or a word.*data.task=regression"):
        classes(write(tmp_path, kind, rows))


# --- columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_are_not_read_are_named(tmp_path, kind):
    rows = [{"text": f"text {n}", "label": n % 2, "title": "t"} for n in range(6)]
    path = write(tmp_path, kind, rows)
    line = line_of(classes(path, "data.eval_fraction=0"), "is read of a row")
    assert "title" in line and "only text and label" in line
    assert ("(6)" in line) == (kind not in ("parquet", "hub"))
    line = line_of(built("model=gpt2_tiny", *told(path, "data.task=language_modelling")), "is read of a row")
    assert "label" in line and "title" in line


@pytest.mark.parametrize("kind", KINDS)
def test_columns_beside_prompt_and_completion_are_named(tmp_path, kind):
    rows = [{"prompt": "translate", "completion": f"b{n}", "input": f"w{n}", "system": "Be brief."} for n in range(4)]
    path = write(tmp_path, kind, rows)
    words = ["data=hub", "data.task=chat"] if kind == "hub" else ["data=chat"]
    line = line_of(built("model=gpt2_tiny", *told(path)[1:], *words), "of a row")
    assert "input" in line and "system" in line and "(4)" in line


@pytest.mark.parametrize("kind", KINDS)
def test_answers_marked_as_wrong_are_refused(tmp_path, kind):
    path = write(tmp_path, kind, [{"prompt": "a", "completion": f"b{n}", "label": False} for n in range(2)])
    words = ["data=hub", "data.task=chat"] if kind == "hub" else ["data=chat"]
    line = refusal("model=gpt2_tiny", *told(path)[1:], *words)
    assert "label is false" in line and "KTOTrainer" in line


# --- the evaluation ------------------------------------------------------------------------------------

ROWS = [{"text": f"text number {n}", "label": n % 2} for n in range(10)]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluated_rows_that_are_trained_on_are_counted(tmp_path, kind):
    path = write(tmp_path, kind, ROWS)
    key = "eval_split=train" if kind == "hub" else f"eval_path={path}"
    assert "10 of 10 rows to evaluate on" in line_of(classes(path, f"data.{key}"), "to evaluate on")
    assert not any("to evaluate on" in line for line in classes(path).warnings)
    same = line_of(built("model=gpt2_tiny", "data.task=language_modelling", *told(path, f"data.{key}")), "evaluate on")
    assert "10 of 10 rows" in same


def test_rows_that_moved_to_another_place_are_found(tmp_path):
    (tmp_path / "eval").mkdir()
    other = write(tmp_path / "eval", "jsonl", [ROWS[3], *({**row, "text": row["text"] + "!"} for row in ROWS), ROWS[0]])
    line = line_of(classes(write(tmp_path, "csv", ROWS), f"data.eval_path={other}"), "to evaluate on")
    assert "2 of 12 rows" in line and "rows.jsonl, line 1" in line
    cut = classes(tmp_path / "rows.csv", f"data.eval_path={other}", "data.samples=2")
    assert "1 of 12 rows" in line_of(cut, "to evaluate on")


def test_lines_of_plain_text_and_conversations_are_found(tmp_path):
    lines = [f"a line that is long enough to be compared, number {n}\n" for n in range(10)]
    (tmp_path / "train.txt").write_text("".join(lines))
    (tmp_path / "eval.txt").write_text("short\n" + "".join(lines[3:5]) + "another line that is long enough to be one\n")
    words = ["model=gpt2_tiny", *told(tmp_path / "train.txt"), f"data.eval_path={tmp_path / 'eval.txt'}"]
    assert "2 of 3 " in line_of(built(*words), "to evaluate on")
    talks = write(tmp_path, "jsonl", [{"prompt": "a", "completion": str(n % 2)} for n in range(4)])
    assert "rows to evaluate on" in line_of(
        built("model=gpt2_tiny", "data=chat", *told(talks, f"data.eval_path={talks}")[1:]), "4 of 4"
    )


def test_labels_that_only_the_evaluation_has_are_refused(tmp_path):
    (tmp_path / "eval").mkdir()
    other = write(tmp_path / "eval", "jsonl", [*ROWS[:2], {"text": "x", "label": 2}])
    words = ["model=bert_tiny", "data.task=classification", "model.classes=3"]
    message = refusal(*words, *told(write(tmp_path, "csv", ROWS), f"data.eval_path={other}"), task=CLASSES)
    assert "1 rows to evaluate on" in message and "rows.jsonl, line 3" in message and ": 2 (" in message


def test_the_only_row_of_a_label_is_trained_on(tmp_path):
    path = write(tmp_path, "csv", [{"text": f"text {n}", "label": "abc"[(n >= 3) + (n > 3)]} for n in range(8)])
    moved = 0
    for seed in range(6):
        data = classes(path, "data.eval_fraction=0.5", f"train.seed={seed}")
        assert {int(row["labels"]) for row in data.train} >= {1}
        moved += any("1 rows drawn" in line for line in data.warnings)
    assert moved


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_a_warm_up_that_never_ends_is_said(train, recipe):
    words = [f"recipe={recipe}", "train.max_steps=null", "train.epochs=1", "data.samples=8", "batch.per_device=2"]
    found = [
        [line for line in train(*words, f"train.warmup_steps={steps}").record.warnings if "train.warmup_steps" in line]
        for steps in (3, 4)
    ]
    assert found[0] == [] and "the 4 steps" in found[1][0]


def test_a_decay_that_is_longer_than_a_training_by_epochs_is_said(train):
    words = ["train.schedule=wsd", "train.max_steps=null", "train.epochs=1", "data.samples=8", "batch.per_device=2"]
    fits = train(*words, "train.warmup_steps=1", "train.decay_steps=3").record.warnings
    cut = train(*words, "train.warmup_steps=1", "train.decay_steps=4").record.warnings
    assert not any("train.decay_steps" in line for line in fits)
    assert any("train.decay_steps are 5 steps together, and this training has 4" in line for line in cut)


@pytest.mark.parametrize("warmup, decay", [(0, 10), (90, 10), (95, 5)])
def test_the_usual_decay_begins_after_the_warm_up(warmup, decay):
    cfg = compose("train.schedule=wsd", f"train.warmup_steps={warmup}", "train.max_steps=100").cfg
    assert train_options.schedule_arguments(cfg, 100)["num_decay_steps"] == decay


@pytest.mark.parametrize(
    ("model", "name", "task", "typed", "ignored"),
    [
        ("bert_tiny", "text", "question_answering", "text_column=body", True),
        ("bert_tiny", "text", "question_answering", "label_column=y", True),
        ("gpt2_tiny", "text", "null", "label_column=y", True),
        ("gpt2_tiny", "hub", "chat", "text_column=y", True),
        ("gpt2_tiny", "hub", "null", "train_on=all", True),
        ("bert_tiny", "text", "null", "label_column=y", False),
        ("gpt2_tiny", "hub", "chat", "train_on=all", False),
        ("gpt2_tiny", "text", "null", "text_column=y", False),
        ("gpt2_tiny", "text", "null", "eval_path=PATH data.eval_fraction=0", False),
        ("gpt2_tiny", "text", "null", "eval_path=PATH data.eval_fraction=0.3", True),
    ],
)
def test_a_key_that_the_rows_have_no_use_for_is_refused(tmp_path, model, name, task, typed, ignored):
    path = write(tmp_path, "hub" if name == "hub" else "csv", ROWS)
    words = [f"model={model}", f"data={name}", f"data.path={path}", f"data.task={task}", "device=cpu"]
    problems = compose(*words, *f"data.{typed}".replace("PATH", str(path)).split()).problems
    key = f"data.{typed}".split()[-1].split("=")[0]
    assert [key in line and "would be ignored" in line for line in problems] == [True] * ignored, problems
    assert compose(*words).problems == []


def test_the_task_of_trained_weights_may_be_open(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    words = [f"model.pretrained={tmp_path}", "data=hub", f"data.path={tmp_path}", "data.tokenizer=bytes", "device=cpu"]
    found = compose(*words, "data.label_column=y", "data.text_column=x", "data.pair_column=z").problems
    assert not any("ignored" in line for line in found)

    assert not any("ignored" in line for line in found)


@pytest.mark.parametrize(
    ("task", "typed", "ignored"),
    [
        ("language_modelling", "label_column=title", True),
        ("language_modelling", "text_column=title", False),
        ("question_answering", "text_column=title", True),
        ("classification", "label_column=title", False),
    ],
)
def test_columns_without_use_for_the_task_are_refused(tmp_path, task, typed, ignored):
    rows = [{"text": "a", "label": 0, "title": f"t{n}", "question": "a", "context": "b", "answers": None} for n in "01"]
    cfg = compose("model=gpt2_tiny", *told(write(tmp_path, "hub", rows))).cfg
    key, _, column = typed.partition("=")
    setattr(cfg.data, key, column)
    if ignored:
        with pytest.raises(Refusal, match=f"data.{typed} would be ignored.*data.task=classification"):
            sources.build(cfg, task, 512, None, print)
    else:
        sources.build(cfg, task, 512, None, lambda _: None)


@pytest.mark.parametrize("kind", ["csv", "hub"])
@pytest.mark.parametrize(
    ("task", "typed"),
    [
        ("classification", ["text_column=x", "label_column=x"]),
        ("chat", ["prompt_column=x", "completion_column=x"]),
    ],
)
def test_one_column_for_two_keys_is_refused(tmp_path, kind, task, typed):
    path = write(tmp_path, kind, [{"x": f"text {n}", "y": n % 2} for n in range(4)])
    name = "hub" if kind == "hub" else "chat" if task == "chat" else "text"
    words = [f"data={name}", *([] if name == "chat" else [f"data.task={task}"]), *(f"data.{each}" for each in typed)]
    model = "gpt2_tiny" if task == "chat" else "bert_tiny"
    line = refusal(f"model={model}", *told(path)[1:], *words, task=LM if task == "chat" else CLASSES)
    assert "both name x" in line and all(f"data.{each.partition('=')[0]}" in line for each in typed)


@pytest.mark.parametrize(
    ("kind", "typed", "expected"),
    [
        ("jsonl", "data.separator=tab", "data.separator=tab is for .csv and .tsv files"),
        ("parquet", "data.encoding=latin-1", "data.encoding=latin-1 is for text files"),
        ("csv", "data.separator=comma data.encoding=latin-1", None),
        ("csv", "model.classes=3", "model.classes=3 would be ignored: language_modelling has no classes"),
        ("csv", "data.task=regression model.classes=3", "model.classes=3 would be ignored: regression has no classes"),
        ("csv", "data.task=classification model.classes=3", None),
    ],
)
def test_keys_without_use_for_files_or_task_are_refused(tmp_path, kind, typed, expected):
    words = ["model=llama_tiny", "data=text", f"data.path={write(tmp_path, kind, ROWS)}", "device=cpu"]
    problems = compose(*words, *typed.split()).problems
    assert [expected in line for line in problems] == [True] if expected else problems == []
