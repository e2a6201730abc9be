"""data=chat reads ShareGPT and Alpaca as they are, from every kind of file, and refuses preferences by name."""

from __future__ import annotations

import json

import pytest
from test_data import built, decoded, ids_of, refusal
from test_silent import KINDS, line_of, told, write

from legroom.data.collate import IGNORE_INDEX

USUAL = [
    {"messages": [{"role": "system", "content": "Be kind."}, *turns]}
    for turns in (
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
        [{"role": "user", "content": "2, 3?\n\nadd"}, {"role": "assistant", "content": "5"}],
    )
]
SHAREGPT = [
    {
        "system": "Be kind.",
        "conversations": [
            {"from": {"user": "human", "assistant": "gpt"}[turn["role"]], "value": turn["content"]}
            for turn in row["messages"][1:]
        ],
    }
    for row in USUAL
]
ALPACA = [
    {"instruction": "Hi", "input": "", "output": "Hello", "system": "Be kind."},
    {"instruction": "2, 3?", "input": "add", "output": "5", "system": "Be kind."},
]
COLUMNS = [kind for kind in KINDS if kind not in ("csv", "tsv")]  # files that hold more than texts


def chat(path, *more: str) -> list[str]:
    words = ["data=hub", "data.task=chat"] if path.is_dir() else ["data=chat"]
    return ["model=gpt2_tiny", *told(path)[1:], "data.seq_len=64", "data.eval_fraction=0", *words, *more]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return ids_of(built(*chat(write(tmp_path_factory.mktemp("usual"), "jsonl", USUAL))).train)


@pytest.mark.parametrize("form,rows,kinds", [("ShareGPT", SHAREGPT, COLUMNS), ("Alpaca", ALPACA, KINDS)])
def test_forms_that_people_have_give_the_rows_of_messages(tmp_path, expected, form, rows, kinds):
    for kind in kinds:
        (tmp_path / kind).mkdir()
        data = built(*chat(write(tmp_path / kind, kind, rows)))
        assert ids_of(data.train) == expected, kind
        assert "2 of 2" in line_of(data, form)
        assert not any("of a row" in line for line in data.warnings), "nothing is left unread"


@pytest.mark.parametrize("written", [json.dumps, str])
def test_a_list_of_messages_may_be_the_text_of_a_cell(tmp_path, expected, written):
    """As JSON, or as pandas writes it."""
    halves = [{"prompt": row["messages"][:2], "completion": row["messages"][2:]} for row in USUAL]
    for name, rows in (("usual", USUAL), ("halves", halves), ("sharegpt", SHAREGPT)):
        texts = [
            {key: value if isinstance(value, str) else written(value) for key, value in row.items()} for row in rows
        ]
        for kind in ("csv", "jsonl"):
            (folder := tmp_path / name / kind).mkdir(parents=True)
            data = built(*chat(write(folder, kind, texts)))
            assert ids_of(data.train) == expected, (name, kind)
            assert not any("of a row" in line for line in data.warnings), (name, kind)
    answers = ['[{"value": "Paris", "type": "city"}]', '[{"role": "engineer", "name": "Ann"}]', "[{'role': {1, 2}}]"]
    answers += ['[{"role": "user", "content": prompt}]\nprint(1)', "[{'content': 'yo', 1: 2}]", '[{"role": "user"}]']
    kept = built(*chat(write(tmp_path, "jsonl", [{"prompt": "Tell", "completion": text} for text in answers])))
    assert all(text in decoded(row["input_ids"].tolist()) for text, row in zip(answers, kept.train)), (
        "an answer is as it was written"
    )
    wrong = [{"messages": "[{'role': 'user' 'content': 'Hi'}]"}]
    assert all(word in refusal(*chat(write(tmp_path, "csv", wrong))) for word in ("line 2", "messages", ".jsonl"))


def test_a_prompt_and_a_completion_may_be_lists_of_messages(tmp_path, expected):
    """As TRL has them."""
    rows = [{"prompt": row["messages"][:2], "completion": row["messages"][2:]} for row in USUAL]
    for kind in COLUMNS:
        (tmp_path / kind).mkdir()
        data = built(*chat(write(tmp_path / kind, kind, rows)))
        assert ids_of(data.train) == expected and not any("of a row" in line for line in data.warnings), kind
    asked = [{"asked": row["messages"], "completion": "Bye"} for row in USUAL]
    data = built(*chat(write(tmp_path, "jsonl", asked), "data.prompt_column=asked"))
    for row in data.train:  # an answer in the prompt is read and not learned
        learned = [number for number in row["labels"].tolist() if number != IGNORE_INDEX]
        assert decoded(learned) == "Bye" and "assistant" in decoded(row["input_ids"].tolist())
    wrong = [{"prompt": [*ANSWERED, "Hi"], "completion": "Bye"}]
    assert "prompt, message 3 is str (Hi), not an object" in refusal(*chat(write(tmp_path, "jsonl", wrong)))


def test_a_system_message_or_another_column_of_the_form(tmp_path, expected):
    rows = [{"talk": [{"from": "system", "value": "Be kind."}, *row["conversations"]]} for row in SHAREGPT]
    assert ids_of(built(*chat(write(tmp_path, "jsonl", rows), "data.messages_column=talk")).train) == expected
    text = "".join(f"{';'.join(row.values())}\n" for row in ALPACA)
    (tmp_path / "rows.csv").write_text(f"instruction;input;output;system\n{text}")
    data = built(*chat(tmp_path / "rows.csv"))
    assert ids_of(data.train) == expected and line_of(data, "semicolon")


def test_an_instruction_without_an_answer_is_left_out(tmp_path, expected):
    data = built(*chat(write(tmp_path, "jsonl", [*ALPACA, ALPACA[0] | {"output": ""}])))
    assert ids_of(data.train) == expected and "1 of 3" in line_of(data, "no answer")


def test_what_else_a_row_has_and_who_else_speaks_is_said(tmp_path):
    data = built(*chat(write(tmp_path, "jsonl", [row | {"history": [["a", "b"]]} for row in ALPACA])))
    assert "history (2)" in line_of(data, "of a row")
    spoken = [{"conversations": [{"from": "narrator", "value": "Once"}]}]
    assert "narrator" in refusal(*chat(write(tmp_path, "jsonl", spoken)))


ANSWERED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
PREFERENCES = {  # rows, and what the refusal says to type
    "texts": ({"prompt": "Hi", "chosen": "Hello", "rejected": "Go"}, "data.completion_column=chosen", KINDS),
    "messages": ({"chosen": ANSWERED, "rejected": ANSWERED[:1]}, "data.messages_column=chosen", COLUMNS),
    "documents": ({"chosen": "Human: Hi", "rejected": "Human: Go"}, "data=text data.text_column=chosen", KINDS),
    "answers": (
        {"prompt": ANSWERED[:1], "chosen": ANSWERED[1:], "rejected": ANSWERED[1:]},
        "data.completion_column=chosen",
        COLUMNS,
    ),
    "answers alone": ({"chosen": ANSWERED[1:], "rejected": ANSWERED[1:]}, None, COLUMNS),
}


@pytest.mark.parametrize("form", PREFERENCES)
def test_preferences_are_refused_with_what_to_type(tmp_path, form):
    row, remedy, kinds = PREFERENCES[form]
    for kind in kinds:
        (tmp_path / kind).mkdir()
        path = write(tmp_path / kind, kind, [row, row])
        line = refusal(*chat(path))
        assert "DPOTrainer" in line and ("type " in line) == (remedy is not None)
        if remedy is not None:
            assert remedy in line
            typed = (remedy.replace("data=text", "data.task=language_modelling") if kind == "hub" else remedy).split()
            keys = {word.partition("=")[0] for word in typed}
            kept = [word for word in chat(path) if word.partition("=")[0] not in keys]
            assert len(built(*kept, *typed).train), kind
