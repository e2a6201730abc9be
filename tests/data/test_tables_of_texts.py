"""What small files, conversations and labels of many kinds are read as, with what is refused and said: kept beside
this file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from support import chat
from support.changed_config import changed
from support.known_values import known

from legroom.data import (
    chat_rows,
    conversations,
    documents,
    hub,
    label_values,
    labels,
    open_text,
    overlap,
    sources,
    text_data,
    text_files,
    text_rows,
)
from legroom.data.chat_template import ChatTemplate
from legroom.data.text_files import NOT_READ, Format, Unread
from legroom.data.tokens import Tokens
from legroom.errors import Refusal
from legroom.options import data_sources


def told(made: Callable[[Callable[[str], None]], Iterable[Any]], longest: int = 130) -> list[str]:
    """What a function gives, a line each, and what it warns of; or what it refuses. made: is given what it may say."""
    said: list[str] = []
    try:
        found = [str(each) for each in made(said.append)]
    except Refusal as refusal:
        found = [f"refused: {str(refusal)}"[:longest]]
    return found + [f"said: {line}"[:longest] for line in said]


# --- files -----------------------------------------------------------------------------------------

FILES = {
    "a.txt": "one\n\ntwo\nthree\n \nfour\n",
    "b.txt": "\n \n",
    "c.txt": "one\n\n",
    "d.txt": "\n\none",
    "a.csv": "text,label\none,0\ntwo,\n\n,1\n",
    "semicolon.csv": "text;label\none;0\n",
    "tab.tsv": "text\tlabel\none\t0\n",
    "comma.tsv": "text,label\none,0\n",
    "odd.csv": "text|label\none|0\n",
    "two.csv": "text;label,x\none;0,1\n",
    "spaces.csv": " text , label \none,0\n",
    "twice.csv": "text,text\none,two\n",
    "other_twice.csv": "text,x,x\none,two,three\n",
    "more.csv": "text,label\none,0,1\n",
    "fewer.csv": "text,label\none\n",
    "header.csv": "text,label\n",
    "empty.csv": "",
    "quotes.csv": 'text,label\n"one\ntwo",0\nthree,1\n',
    "quoted.csv": 'text,label\n"one,0\n',
    "doubled.csv": 'text,label\n"a ""b"" c",0\n',
    "after.csv": 'text,label\n"one" two,0\n',
    "alone.csv": "text\none\n",
    "prompts.csv": "instruction;output\none;two\n",
    "a.jsonl": '{"text": "one", "label": 0}\n\n{"text": "two"}\n',
    "list.jsonl": "[1]\n",
    "broken.jsonl": '{"text": "one"}\n{"text": \n',
    "deep.jsonl": "[" * 100_000 + "\n",
    "a.json": '[{"text": "one"}, {"text": "two"}]',
    "one.json": '{"text": "one", "label": 3}',
    "lines.json": '{"text": "one"}\n{"text": "two"}\n',
    "object.json": '{"data": [1], "version": "2"}',
    "lists.json": '{"text": ["one", "two"], "label": [0, 1]}',
    "number.json": "3",
    "empty.json": " ",
    "inner.json": "[1]",
    "broken.json": '[{"text": "one"},\n{]',
    "deep.json": "[" * 100_000,
    "latin.txt": "caf\u00e9 au lait".encode("latin-1"),
    "utf16.txt": "some text".encode("utf-16"),
    "bom.txt": b"\xef\xbb\xbfone",
    "short.txt.gz": gzip.compress(b"one " * 99, mtime=0)[:20],
    "none.txt.gz": b"no gzip",
}


def test_what_small_files_are_read_as(data_regression, tmp_path):
    found: dict[str, Any] = {}
    for name, content in FILES.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        forms = [Format(instead=("instruction", "output"))]
        if name.endswith(".txt"):
            forms = [Format(documents=each) for each in ("file", "blank_line", "line", "line_break")]
        forms += [Format(separator="bar"), Format(separator="semicolon")] if name in ("odd.csv", "a.csv") else []
        forms += [Format(encoding="latin-1")] if name in ("latin.txt", "bom.txt", "a.jsonl") else []
        for form in forms:
            columns = ["text", "label"] if name.endswith((".csv", ".tsv")) else ["text"]
            if name in ("alone.csv", "twice.csv", "other_twice.csv"):
                columns = ["text"]
            more = [
                each for each in (form.documents, form.separator, form.encoding) if each not in ("file", "utf-8", None)
            ]
            key = " ".join([name, *more])

            def made(
                say: Callable[[str], None], path: Path = path, columns: list[str] = columns, form: Format = form
            ) -> Iterable[Any]:
                return text_files.placed([path], columns, form, "data.path=x", say)

            found[key] = told(made)
    data_regression.check(known(found))


def test_what_is_said_of_an_encoding(data_regression, tmp_path):
    texts = {
        "ascii": b"plain words",
        "utf-8": "Gr\u00fc\u00dfe".encode(),
        "latin-1": ("\u00e9t\u00e9 o\u00f9 \u00e0 la plage " * 3).encode("latin-1"),
        "cp1252": ("\u201cquoted\u201d \u00e9t\u00e9 " * 3).encode("cp1252"),
        "utf-16": "some words".encode("utf-16"),
        "utf-16-be": b"\xfe\xff" + "some words".encode("utf-16-be"),
        "utf-32": "some words".encode("utf-32"),
        "utf-8-sig": "\ufeffsome w\u00f6rds".encode(),
        "bytes of a program": b"\x7fELF\x02\x01\x00\x90\xe8",
        "cp1251": ("\u041f\u0440\u0438\u0432\u0435\u0442, \u0434\u0440\u0443\u0433 " * 9).encode("cp1251"),
    }
    found: dict[str, Any] = {}
    for name, content in texts.items():
        path = tmp_path / "some.txt"
        path.write_bytes(content)
        read = {encoding: open_text.is_utf8_read_as(path, encoding) for encoding in ("utf-8", "UTF8", "latin-1")}
        found[name] = [open_text._encoding_of(content), str(read), open_text.wrong_encoding(path, "utf-8")]
    found["where it is read"] = open_text._reads_as(b"a" * 30 + "\u00e9".encode("latin-1") + b"b" * 30, "latin-1")
    found["at the beginning"] = open_text._reads_as("\u00e9b".encode("latin-1"), "latin-1")
    found["nowhere"] = open_text._reads_as(b"a" * 50, "latin-1")
    data_regression.check(known(found))


def test_columns_that_are_not_read_are_counted(data_regression):
    found = {}
    for count in (1, 8, 9):
        unread = Unread()
        for index in range(count):
            unread.add({f"c{index}": 1, "text": 1}, ("text",))
        found[f"{count}"] = str(unread)
    unread = Unread()
    unread.add({"a": 1, "b": None, "c": "", "d": [], "e": {}, "f": NOT_READ, "g": 0}, ("a",))
    found["values"] = dict(unread)
    found["null"] = str(
        text_files.without_nulls({"a": None, "b": {"c": None, "d": 1}, "e": [{"f": None}, {"g": [None]}]})
    )
    found["shown"] = [text_files.shown(each) for each in (None, [], {}, "x" * 50, 3, True)]
    data_regression.check(known(found))


# --- conversations ---------------------------------------------------------------------------------


def message(role: Any, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


ASK, SAY = message("user", "q"), message("assistant", "a")
CALL = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
TALKS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "usual": [{"messages": [ASK, SAY]}],
    "beside": [{"messages": [ASK, SAY], "id": 1, "empty": None}],
    "more of a message": [{"messages": [ASK | {"name": "n", "when": 3}, SAY | {"name": "n"}]}],
    "parts": [{"messages": [message("user", [{"text": "q"}, {"type": "text", "text": "r"}]), SAY]}],
    "a picture": [{"messages": [message("user", [{"text": "q"}, {"type": "image"}]), SAY]}],
    "no parts": [{"messages": [message("user", []), SAY]}],
    "a number": [{"messages": [message("user", 3), SAY]}],
    "empty": [{"messages": [message("user", " "), SAY]}],
    "empty system": [{"messages": [message("system", ""), ASK, SAY]}],
    "of a developer": [{"messages": [message("developer", "d"), ASK, SAY]}],
    "half a pair": [{"messages": [message("user", "\ud83d"), SAY]}],
    "no list": [{"messages": "text"}],
    "an empty list": [{"messages": []}],
    "no object": [{"messages": ["text"]}],
    "no role": [{"messages": [{"content": "x", "who": "y"}]}],
    "another role": [{"messages": [message("bot", "x")]}],
    "a role that is none": [{"messages": [message(3, "x")]}],
    "as text": [{"messages": json.dumps([ASK, SAY])}],
    "as Python's text": [{"messages": str([ASK, SAY])}],
    "as broken text": [{"messages": "[{'role': "}],
    "weights": [{"messages": [ASK, SAY | {"weight": 0}, ASK, SAY | {"weight": 1}]}],
    "another weight": [{"messages": [ASK, SAY | {"weight": 2}]}],
    "tools": [
        {"messages": [ASK, message("assistant", None, tool_calls=[CALL]), message("tool", "", tool_call_id="1")]}
    ],
    "tools listed": [{"messages": [ASK, SAY], "tools": [{"name": "f"}]}],
    "tools as text": [{"messages": [ASK, SAY], "tools": '[{"name": "f"}]'}],
    "no tools": [{"messages": [ASK, SAY], "tools": "[]"}, {"messages": [ASK, SAY], "tools": []}],
    "tools of a kind": [{"messages": [ASK, SAY], "tools": {"name": "f"}}],
    "tools of texts": [{"messages": [ASK, SAY], "tools": ["f"]}],
    "tools not read": [{"messages": [ASK, SAY], "tools": NOT_READ}],
    "calls of a kind": [{"messages": [ASK, SAY | {"tool_calls": {"name": "f"}}]}],
    "calls of texts": [{"messages": [ASK, SAY | {"tool_calls": ["f"]}]}],
    "broken arguments": [{"messages": [ASK, SAY | {"tool_calls": [{"arguments": "{"}]}]}],
    "arguments of none": [{"messages": [ASK, SAY | {"tool_calls": [{"arguments": ""}, {"function": "f"}]}]}],
    "calls of a user": [{"messages": [ASK | {"tool_calls": [CALL]}, SAY]}],
    "ShareGPT": [{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"}],
    "ShareGPT with its own": [
        {"conversations": [{"from": "system", "value": "t"}, {"from": "human", "value": "q"}], "system": "s"}
    ],
    "ShareGPT without": [{"conversations": [{"from": "human", "value": "q"}], "system": ""}],
    "both names": [{"messages": [{"role": "user", "content": "q", "from": "human", "value": "v"}]}],
    "a human by role": [{"messages": [{"role": "human", "content": "q"}]}],
    "Alpaca": [{"instruction": "i", "input": "j", "output": "o"}, {"instruction": "i", "input": "", "output": "o"}],
    "Alpaca with a system": [{"instruction": "i", "input": None, "output": "o", "system": "s"}],
    "Alpaca without an answer": [{"instruction": "i", "input": "j", "output": ""}],
    "Alpaca without output": [{"instruction": "i", "input": "j"}],
    "prompts": [{"prompt": "q", "completion": "a"}],
    "prompts and more": [{"prompt": "q", "completion": "a", "label": True, "x": 1}],
    "a wrong answer": [{"prompt": "q", "completion": "a", "label": False}],
    "prompts of messages": [{"prompt": [ASK, SAY], "completion": [SAY]}],
    "prompts as text": [{"prompt": json.dumps([ASK]), "completion": "a"}],
    "an answer of objects": [{"prompt": "q", "completion": '[{"a": 1}]'}],
    "an answer of no roles": [{"prompt": "q", "completion": '[{"content": "x"}]'}],
    "prompts of parts": [{"prompt": [{"text": "q"}], "completion": "a"}],
    "prompts of no objects": [{"prompt": ["q"], "completion": "a"}],
    "an empty prompt": [{"prompt": "", "completion": "a"}],
    "a prompt alone": [{"prompt": "q"}],
    "no columns": [{}],
    "two texts": [{"x": "q", "y": "a", "z": 3}],
    "three texts": [{"x": "q", "y": "a", "z": "b"}],
    "preferences": [{"prompt": "q", "chosen": "a", "rejected": "b"}],
    "preferences of messages": [{"chosen": [ASK, SAY], "rejected": [ASK, SAY]}],
    "preferences of answers": [{"chosen": [SAY], "rejected": [SAY]}],
    "preferences of answers to a prompt": [{"prompt": [ASK], "chosen": [SAY], "rejected": [SAY]}],
    "preferences of ShareGPT": [{"chosen": [{"from": "gpt"}], "rejected": []}],
    "preferences alone": [{"chosen": "a", "rejected": "b"}],
    "preferences as text": [{"chosen": json.dumps([ASK, SAY]), "rejected": "b"}],
    "preferences of nothing": [{"chosen": [], "rejected": "b"}],
    "chosen alone": [{"chosen": [ASK, SAY]}],
    "two forms": [{"messages": [ASK, SAY]}, {"prompt": "q", "completion": "a"}, {"instruction": "i", "output": "o"}],
}


def test_which_rows_are_conversations(data_regression):
    found = {}
    for name, each in TALKS.items():
        placed = (
            [(f"line {number}", row) for number, row in enumerate(json.loads(json.dumps(each)), 1)]
            if (NOT_READ not in [row.get("tools") for row in each] and name != "half a pair")
            else [(f"line {number}", row) for number, row in enumerate(each, 1)]
        )

        def made(say: Callable[[str], None], placed: Any = placed) -> list[str]:
            talks = conversations.collect(iter(placed), conversations.Columns(), "data.path=x", say)
            return [
                f"{row['place']}, tools {row['tools']}: "
                + " | ".join(f"{m['role']}: {m['content']} ({m['more']})" for m in row["messages"])
                for row in talks.to_list()
            ]

        found[name] = told(made, 400)
    kinds = (".csv", ".tsv", ".jsonl", ".json", ".parquet", "")
    found["columns"] = [", ".join(conversations.Columns("m", "p", "c").of_kind(kind)) for kind in kinds]
    data_regression.check(known(found))


WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}{{ call | tojson }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT_TEMPLATES = {
    "tools": WITH_TOOLS,
    "chatml": chat.CHATML,
    "headers": chat.HEADERS,
    "thoughts": chat.THOUGHTS,
    "marked": chat.MARKED,
    "alternating": chat.ALTERNATING,
    "counted": chat.COUNTED,
    "plain": None,
}


@pytest.fixture
def encoders(tmp_path):
    return {
        name: Tokens(str(chat.save_tokenizer(tmp_path / name, template))) for name, template in CHAT_TEMPLATES.items()
    }


def test_what_is_learned_of_a_conversation(data_regression, encoders):
    """Between > and < stand the tokens with a label."""
    first, second = message("user", "q"), message("assistant", "aa")
    talks = {
        "two": [first, second],
        "four": [first, second, first, message("assistant", "bb")],
        "left out": [first, second | {"weight": 0}, first, message("assistant", "bb")],
        "no answer": [first],
        "system": [message("system", "s"), first, second],
        "assistant first": [second, first],
        "spaces": [first, message("assistant", " a ")],
        "a tool": [first, second, message("tool", "t"), second],
        "calls": [first, message("assistant", "x", tool_calls=[CALL])],
    }
    found: dict[str, Any] = {}
    for name, encoder in encoders.items():
        for train_on in ("answers", "all"):
            said: list[str] = []
            template = ChatTemplate(encoder, name, train_on, said.append)
            for kind, messages in talks.items() if train_on == "answers" else [*talks.items()][:2]:
                for tools in (None, [{"name": "f"}]) if kind == "two" else (None,):

                    def made(
                        say: Callable[[str], None],
                        messages: Any = messages,
                        tools: Any = tools,
                        template: ChatTemplate = template,
                        decode: Callable[[list[int]], str] = encoder.tokenizer.decode,
                    ) -> list[str]:
                        lines = []
                        for row in template.rows(messages, "line 1", tools)[0]:
                            text, before = "", False
                            for number, label in zip(row.ids.tolist(), row.labels.tolist()):
                                learned = label != -100
                                text += "" if learned == before else ">" if learned else "<"
                                text, before = text + decode([number]).replace("\n", "/"), learned
                            lines.append(text + "<" * before)
                        return lines

                    found[f"{name}, {train_on}, {kind}{' with tools' if tools else ''}"] = told(made, 100)
            found[f"{name}, {train_on}: said"] = [line[:100] for line in said]
    data_regression.check(known(found))


def test_the_rows_of_conversations(data_regression, encoders):
    answers = [("q", "aa"), ("q" * 20, "b"), ("q", "c" * 30), ("<|eot|>", "d"), ("q", None)]
    talked = [[message("user", q), *([message("assistant", a)] if a else [])] for q, a in answers]
    placed = [(f"line {number}", {"messages": each}) for number, each in enumerate(talked, 1)]
    talks = conversations.collect(iter(placed), conversations.Columns(), "x", lambda _: None)
    found: dict[str, Any] = {}
    for length, samples, packing in ((64, None, False), (64, 2, True), (24, None, False), (2, None, False)):
        for name in ("chatml", "headers"):
            cfg, _ = changed(f"data.name=chat data.seq_len={length} data.tokenizer={name}", "model=gpt2_tiny")
            cfg.data.samples, cfg.data.packing, cfg.eval.max_samples = samples, packing, 2

            def made(say: Callable[[str], None], name: str = name, cfg: Any = cfg) -> list[str]:
                train, evaluated, _, _ = chat_rows.build(cfg, talks, talks, encoders[name], say)
                assert evaluated is not None
                rows = [
                    f"{len(row['input_ids'])} tokens, {sum(label != -100 for label in row['labels'])} labels"
                    for row in train.to_list()
                ]
                return [*rows, f"{len(evaluated[0])} of {evaluated[1]}"]

            found[f"{name}, {length} tokens, {samples} samples, packed {packing}"] = told(made, 150)
    cfg, _ = changed("data.name=chat data.tokenizer=chatml", "model=gpt2_tiny")
    with pytest.raises(Refusal, match="no conversation has an answer.*Add some, or type data.train_on=all"):
        chat_rows.build(cfg, talks.select([4]), None, encoders["chatml"], lambda _: None)
    data_regression.check(known(found))


# --- labels ----------------------------------------------------------------------------------------


def refused(function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except Refusal as refusal:
        return f"refused: {str(refusal)[:200]}"


def test_a_label_as_a_number_or_as_several(data_regression):
    numbers = [
        1,
        1.5,
        True,
        "2",
        " 2.5 ",
        "1,84",
        "250,000",
        "1_000",
        "1 000",
        "-1.5e3",
        "x",
        "",
        3.4e38,
        3.5e38,
        -3.5e38,
    ]
    numbers += ["nan", "inf", 10**309, None, [1], "1'000", "1."]
    found: dict[str, Any] = {
        f"number {each!r:.30}": refused(label_values.number, each, "it has", "Do.") for each in numbers
    }
    several = [
        "a",
        "a|b",
        " a | b ",
        "",
        "a||b",
        ["a", "b"],
        ["a", "a", ""],
        [1, 2],
        [1, "a"],
        [1.5],
        [True],
        3,
        None,
        [],
    ]
    several += [
        "1|0|1",
        [1, 0, 1],
        [0, 0],
        "0 0",
        ["1", "0"],
        [1, 0],
        [True, False, True],
        "1.0 0.0 0.0",
        "1|2|1",
        [0.0, 1.0],
    ]
    found |= {f"several {each!r}": str(refused(label_values.several, each, "it has", "Do.")) for each in several}
    data_regression.check(known(found))


def wanted(
    task: str = "classification", say: Callable[[str], None] = lambda _: None, **columns: str
) -> text_data.Wanted:
    return text_data.Wanted(
        columns or {"text": "text", "label": "label"}, lambda column: f"Name {column}.", "x", say, task
    )


def test_the_values_of_rows(data_regression):
    values = [
        "a",
        "",
        " ",
        "\u00e9",
        "NA",
        " NA ",
        "nan",
        "-NaN",
        "None",
        "none",
        None,
        3,
        3.0,
        3.5,
        True,
        float("nan"),
    ]
    values += [["a"], {"a": 1}, "\ud83d", -1, b"x"]
    found = {}
    for task in ("classification", "regression", "multi_label"):
        for column in ("text", "label"):
            for value in values:
                if task == "classification" or (column == "label" and not isinstance(value, (bytes, dict))):
                    found[f"{task}, {column} {value!r}"] = repr(refused(wanted(task).value, value, column, "line 1"))[
                        :110
                    ]
    data_regression.check(known(found))


ROWS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "two": [{"text": "a", "label": 0}, {"text": "b", "label": 1}],
    "without": [
        {"text": "a", "label": None},
        {"text": None, "label": 1},
        {"text": "b", "label": "NA"},
        {"text": "c", "label": 1},
    ],
    "spaces": [{"text": " ", "label": 1}, {"text": "b", "label": " "}, {"text": "c", "label": 1}],
    "nothing": [{"text": None, "label": 0}],
    "no label": [{"text": "a"}, {"text": "b", "label": 1}],
    "no column": [{"text": "a", "x": 1}],
    "more": [{"text": "a", "label": 0, "x": 1}],
    "words": [{"text": "a", "label": "b"}, {"text": "c", "label": 1}],
    "large": [{"text": "a", "label": 2**63}, {"text": "c", "label": 2**63 - 1}],
    "as large": [{"text": "a", "label": 2**63 - 1}, {"text": "c", "label": 1}],
    "mixed": [{"text": "a", "label": "1.0"}, {"text": "c", "label": "x"}],
}


def test_the_rows_that_lack_no_value(data_regression):
    found = {}
    for name, each in ROWS.items():
        for columns in ({"text": "text", "label": "label"}, {"text": "text"}):
            placed = [(f"line {number}", row) for number, row in enumerate(each, 1)]

            def made(say: Callable[[str], None], placed: Any = placed, columns: Any = columns) -> list[Any]:
                values = text_data.collect(iter(placed), wanted(say=say, **columns))
                return list(text_data.dataset(values, None, say))

            found[f"{name}, {' and '.join(columns)}"] = told(made, 160)
    data_regression.check(known(found))


def test_several_labels_are_words_unless_all_are_numbers(data_regression):
    named, found = datasets.ClassLabel(names=["no", "yes"]), {}
    for each in ([[0, 1], [1]], [[0, "a"], []], [["a"], ["b", "a"]], [[], [1]]):
        for classes in (None, named):
            made = text_data.dataset({"text": ["x", "y"], "label": each}, classes)
            kinds = [name for name in ("ClassLabel", "int64", "large_string") if name in str(made.features["label"])]
            found[f"{each} {classes and classes.names}"] = f"{made['label'][:]} {kinds}"
    found["a surrogate"] = [
        refused(wanted(task).value, value, "label", "line 1")
        for task, value in (("classification", "\ud83d"), ("multi_label", ["\ud83d"]), ("multi_label", [1, "b"]))
    ]
    data_regression.check(known(found))


def test_texts_of_files(data_regression, tmp_path):
    files = {
        "numbers.csv": "text,label\na,1.0\nb,0\n",
        "words.csv": "text,label\na,1.0\nb,x\n",
        "fractions.csv": "text,label\na,1.5\nb,0\n",
        "texts.csv": "text,label\n1,0\n2,1\n",
        "underscore.csv": "text,label\na,1_0\nb,0\n",
        "several.csv": "text,label\na,x|y\nb,\n",
        "numbers.jsonl": '{"text": "a", "label": "1"}\n{"text": "b", "label": "0"}\n',
        "plain.txt": "a\nb\n",
        "header.jsonl": "",
    }
    found = {}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        for task in ("classification", "multi_label", "regression"):
            columns = {"text": "text", "label": "label"} if name != "plain.txt" else {"text": "text"}
            paths = [tmp_path / name] if name != "header.jsonl" else [tmp_path / "header.jsonl"] * 1

            def made(
                say: Callable[[str], None], task: str = task, columns: Any = columns, paths: Any = paths
            ) -> list[Any]:
                return [f"{row}" for row in text_data.read(paths, Format(), wanted(task, say, **columns))]

            found[f"{name}, {task}"] = told(made, 140)
    for count in (1, 3, 4):
        some = [tmp_path / f"{number}.jsonl" for number in range(count)] + [tmp_path / "numbers.jsonl"]
        for path in some[:-1]:
            path.write_text("")
        found[f"{count} empty files"] = told(lambda say, some=some: text_data.read(some, Format(), wanted(say=say)), 90)
    found["labels of a text file"] = told(
        lambda say: text_data.read([tmp_path / "plain.txt"], Format(), wanted(say=say))
    )
    data_regression.check(known(found))


def labelled(values: list[Any], kind: Any = None) -> datasets.Dataset:
    places = [f"file{number // 2}.csv, line {number + 2}" for number in range(len(values))]
    features = None if kind is None else datasets.Features({"label": kind, "place": datasets.Value("string")})
    return datasets.Dataset.from_dict({"label": values, "place": places}, features)


def test_the_classes_of_labels(data_regression):
    named = datasets.ClassLabel(names=["no", "yes", "other"])
    new = {
        "numbers": (labelled([0, 1, 2]), None),
        "words": (labelled(["b", "a", "b"]), None),
        "negative": (labelled([-1, 1]), None),
        "gaps": (labelled([0, 1, 3]), None),
        "gaps that fit": (labelled([0, 1, 3, 5, 9]), None),
        "far apart": (labelled([0, 1, 99]), None),
        "from 1": (labelled([1, 2]), None),
        "at most twice": (labelled([0, 1, 2, 7]), None),
        "more than twice": (labelled([0, 1, 2, 8]), None),
        "one": (labelled(["a", "a"]), None),
        "one row": (labelled(["a"]), None),
        "20 ids": (labelled([f"w{n:02}" for n in range(20)]), None),
        "21 ids": (labelled([f"w{n:02}" for n in range(21)]), None),
        "half of 42": (labelled([f"w{n:02}" for n in range(21)] * 2), None),
        "more than half": (labelled([f"w{n:02}" for n in range(22)] + [f"w{n:02}" for n in range(21)]), None),
        "alike": (labelled(["Yes", "yes ", "no"]), None),
        "named": (labelled([0, 1, 0], named), None),
        "evaluated": (labelled([0, 1]), labelled([1])),
        "new to the evaluation": (labelled([0, 1]), labelled([2, 1, 2])),
        "new names": (labelled([0, 1], named), labelled([2], named)),
        "words and numbers": (labelled(["a", "b"]), labelled([0])),
        "many files": (labelled([0, 5, 99, 5, 0, 5, 0, 1]), None),
    }
    found = {}
    for name, (train, held_out) in new.items():
        for most in (2, 9, 30) if "ids" in name or "gaps" in name or "twice" in name else (2,):

            def made(
                say: Callable[[str], None], train: Any = train, held_out: Any = held_out, most: int = most
            ) -> list[str]:
                got = labels.of_task("classification", train, held_out, None, most, say)
                return [f"{len(got.names)}: {got.names[:10]} {[got.of(each) for each in train['label'][:10]]}"]

            found[f"{name}, {most} classes"] = told(made, 150)
    heads = {
        "names": {"no": 0, "yes": 1, "other": 2},
        "numbers": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
        "turned": {"yes": 0, "no": 1},
    }
    of_heads = {
        "numbers": labelled([0, 2, 2]),
        "too large": labelled([0, 3]),
        "negative": labelled([-1, 0]),
        "words": labelled(["yes", "no"]),
        "capital words": labelled(["Yes ", "NO"]),
        "other words": labelled(["yes", "maybe"]),
        "named": labelled([0, 1], named),
        "other names": labelled([0, 1], datasets.ClassLabel(names=["x", "y"])),
        "written": labelled(["LABEL_1", "label_0"]),
        "all one": labelled(["yes", "yes"]),
    }
    for head, classes in heads.items():
        for name, train in of_heads.items():

            def of_head(say: Callable[[str], None], train: Any = train, classes: Any = classes) -> list[str]:
                got = labels.of_task("classification", train, None, classes, 2, say)
                return [f"{got.names} {[got.of(each) for each in train['label']]}"]

            found[f"head of {head}: {name}"] = told(of_head, 170)
    data_regression.check(known(found))


def test_labels_that_are_numbers_or_several(data_regression):
    found: dict[str, Any] = {}
    numbers = {
        "one": [5.0],
        "all the same": [5.0, 5.0],
        "usual": [0.0, 1.0, 2.0],
        "mean 10": [9.5, 10.5],
        "mean above 10": [9.6, 10.5],
        "mean below -10": [-9.6, -10.5],
        "spread 10": [-10.0, 10.0],
        "spread above 10": [-10.1, 10.1],
        "spread 0.01": [0.0, 0.02],
        "spread below 0.01": [0.0, 0.0199],
    }
    for name, values in numbers.items():
        train = labelled(values, datasets.Value("float64"))
        found[name] = told(
            lambda say, train=train: [labels.of_task("regression", train, None, None, 2, say).of("3")], 400
        )
    several = {
        "sets": ([["a"], ["a", "b"], []], None),
        "one of each": ([["a"], ["b"]], None),
        "one label": ([["a"], ["a"]], None),
        "one label in some": ([["a"], []], None),
        "the same": ([["a", "b"], ["b", "a"]], None),
        "none": ([[], []], None),
        "numbers": ([[0, 2], [1]], None),
        "evaluated": ([["a"], ["a", "b"]], [["b"], []]),
        "evaluated on others": ([["a"], ["a", "b"]], [["c"]]),
    }
    for name, (train, held_out) in several.items():
        kind = [datasets.Value("int64") if name == "numbers" else datasets.Value("string")]
        parts = [labelled(part, kind) if part is not None else None for part in (train, held_out)]

        def made(say: Callable[[str], None], parts: Any = parts) -> list[str]:
            got = labels.of_task("multi_label", parts[0], parts[1], None, 2, say)
            return [f"{got.names} {[got.of(each) for each in parts[0]['label']]}"]

        found[f"several: {name}"] = told(made, 150)
    found["shown"] = [labels.shown(range(count)) for count in (8, 9)]
    found["mixed"] = labels.shown(["b", 2, "a", 1, "x" * 50])
    for each in ([0, 0], [0], [0, 1], [1, 1, 1]):
        found[f"rows of {each}"] = str(refused(labels.refuse_one_class, each, ["no", "yes"], "rows"))
    data_regression.check(known(found))


# --- parts -----------------------------------------------------------------------------------------


def test_what_is_held_out_of_documents(data_regression):
    found: dict[str, Any] = {}
    for count in (1, 2, 3, 10, 11, 20, 40):
        for fraction in (0.05, 0.1, 0.5, 0.9):
            texts = text_data.dataset({"text": [f"{number}" for number in range(count)]})
            for kind in ("line", "file"):
                _, taken, said = documents.held_out(texts, kind, fraction, shortest=1)
                found[f"{count} of {kind}, {fraction}"] = f"{','.join(taken['text'][:]) if taken else None}; {said}"
    ends = {
        "words": "one two three four five six seven eight nine ten",
        "lines": "one two three\nfour five six\nseven eight nine ten",
        "a word": "a" * 40,
        "short": "abc",
        "two lines": "a" * 30 + "\n" + "b" * 9,
    }
    for name, text in ends.items():
        for fraction, shortest in ((0.1, 1), (0.3, 1), (0.3, 11), (0.3, 12), (0.3, 13), (0.99, 1)):
            texts = text_data.dataset({"text": [text]})
            kept, taken, said = documents.held_out(texts, "file", fraction, shortest)
            found[f"the end of {name}, {fraction}, {shortest}"] = (
                f"{kept['text'][0]!r} | {taken and taken['text'][0]!r} {said}"
            )
    two = text_data.dataset({"text": [ends["words"], "ab"]})
    found["of two files"] = [documents.held_out(two, "file", 0.2, shortest)[2] for shortest in (1, 5)]
    data_regression.check(known(found))


def test_rows_of_both_parts(data_regression):
    found: dict[str, Any] = {}
    train = text_data.dataset({"text": ["a", "b", "b"], "label": [0, 1, 1], "place": ["t, 1", "t, 2", "t, 3"]})
    both = text_data.dataset({"text": ["b", "c"], "label": [1, 2], "place": ["e, 1", "e, 2"]})
    long, lines = "x" * 40, "y" * 39
    plain = {
        "long lines": (f"{long}\n{lines}", f"  {long} \nz"),
        "short lines": (f"{lines}\na", f"{lines}\nb"),
        "whole": ("a\nb", "a\nb"),
        "other": ("a", "b"),
    }
    for name, (ours, theirs) in plain.items():
        parts = [text_data.dataset({"text": [each]}) for each in (ours, theirs)]
        found[name] = told(lambda say, parts=parts: overlap.warn_of_overlap(parts[0], parts[1], True, say) or [], 200)
    found["rows"] = told(lambda say: overlap.warn_of_overlap(train, both, False, say) or [], 200)
    found["rows without places"] = told(
        lambda say: overlap.warn_of_overlap(train, both.remove_columns("place"), False, say) or [], 200
    )
    for name, other in (("moved", both), ("all moved", both.select([1])), ("nothing new", both.select([0]))):
        said: list[str] = []
        ours, theirs = overlap.move_new_labels(train, other, said.append)
        found[name] = [str(list(ours["text"])), str(theirs and list(theirs["text"])), *said]
    numbers = text_data.dataset({"text": ["a"], "label": [0.5], "place": ["t, 1"]})
    assert overlap.move_new_labels(numbers, both, lambda _: None) == (numbers, both)
    data_regression.check(known(found))


def test_rows_of_texts(data_regression):
    encoder, found = Tokens("bytes"), dict[str, Any]()
    texts = text_data.dataset({"text": ["abc", "", "de", "f" * 9]})
    for packing, samples, one_text in (
        (False, None, False),
        (False, 2, False),
        (False, None, True),
        (True, None, False),
        (True, 2, False),
    ):
        for eval_samples, most in ((None, None), (None, 1), (2, 1), (9, None)):
            cfg, _ = changed("data.seq_len=4 data.name=text", "model=gpt2_tiny")
            cfg.data.packing, cfg.data.samples, cfg.data.eval_samples, cfg.eval.max_samples = (
                packing,
                samples,
                eval_samples,
                most,
            )

            def made(say: Callable[[str], None], cfg: Any = cfg, one_text: bool = one_text) -> list[str]:
                train, part, _, _ = text_rows.build(
                    cfg, "language_modelling", texts, texts, encoder, None, say, one_text
                )
                assert part is not None
                shown = [f"{row['input_ids']} {row['labels']}" for row in train.to_list()]
                return [*shown, f"evaluated: {[row['input_ids'] for row in part[0].to_list()]} of {part[1]}"]

            found[f"packed {packing}, {samples} samples, one text {one_text}, {eval_samples} or {most} evaluated"] = (
                told(made)
            )
    values = {"text": ["abc", "d", "efgh"], "label": ["x", "y", "x"], "place": ["f, 1", "f, 2", "f, 3"]}
    pairs = {"pair": ["1", "2", "345"], **values}
    for name, each in (("texts", values), ("pairs", pairs)):
        for length, samples, eval_samples, most in (
            (3, None, None, 1),
            (4, 2, 2, 1),
            (8, 1, None, None),
            (8, None, 9, 1),
        ):
            cfg, _ = changed(f"data.seq_len={length} data.name=text", "model=bert_tiny")
            cfg.data.samples, cfg.data.eval_samples, cfg.eval.max_samples = samples, eval_samples, most

            def of_rows(say: Callable[[str], None], cfg: Any = cfg, each: Any = each) -> list[str]:
                part = text_data.dataset(each)
                train, held, names, _ = text_rows.build(cfg, "classification", part, part, encoder, None, say, False)
                assert held is not None
                return [
                    *[f"{row['input_ids']} {row['labels']}" for row in train.to_list()],
                    f"{len(held[0])} of {held[1]} {names}",
                ]

            found[f"{name} of {length}, {samples} samples, {eval_samples} or {most} evaluated"] = told(of_rows)
    empty = text_data.dataset({"text": ["", ""]})
    encoder.end = None
    cfg, _ = changed("data.seq_len=4 data.name=text", "model=gpt2_tiny")
    found["no text"] = told(
        lambda say: text_rows.build(cfg, "language_modelling", empty, None, encoder, None, say, False)
    )
    found["no end"] = told(
        lambda say: [
            row["input_ids"]
            for row in text_rows.build(cfg, "language_modelling", texts, None, encoder, None, say, False)[0].to_list()
        ]
    )
    cfg.data.group_by_length = True
    found["grouped"] = told(
        lambda say: text_rows.build(cfg, "language_modelling", texts, None, encoder, None, say, False)
    )
    data_regression.check(known(found))


def test_the_parts_of_files(data_regression, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(f"line {number} of some words\n" for number in range(12)))
    Path("short.txt").write_text("ab\n")
    Path("labels.csv").write_text("text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(10)))
    Path("one.csv").write_text("text,label\na,b\n")
    Path("talks.jsonl").write_text(json.dumps({"messages": [ASK, SAY]}) + "\n")
    lines = """
    data.path=text.txt data.eval_fraction=0.3
    data.path=text.txt data.eval_fraction=0.3 data.documents=line
    data.path=text.txt data.eval_fraction=0.0
    data.path=text.txt data.eval_fraction=0.3 data.eval_path=short.txt
    data.path=text.txt data.eval_fraction=0.3 data.eval_path=text.txt
    data.path=short.txt data.eval_fraction=0.3
    data.path=short.txt data.eval_fraction=0.3 eval.enabled=false
    data.path=labels.csv data.eval_fraction=0.3 data.task=classification
    data.path=labels.csv data.eval_fraction=0.31 data.task=classification
    data.path=labels.csv data.eval_fraction=0.99 data.task=classification
    data.path=labels.csv data.eval_path=labels.csv data.samples=1 data.task=classification
    data.path=one.csv data.eval_fraction=0.3 data.task=classification
    data.path=labels.csv data.eval_fraction=0.3 data.task=language_modelling
    data.name=chat data.path=talks.jsonl data.eval_path=talks.jsonl
    data.path=labels.csv data.task=classification data.text_column=x
    data.path=labels.csv data.task=classification data.label_column=x
    data.path=labels.csv data.task=regression data.pair_column=x
    """
    found = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        base = ("model=bert_tiny", "data=chat" if "data.name=chat" in line else "data=text")
        cfg, _ = changed(f"data.seq_len=8 data.samples=null {line}", *base)

        def made(say: Callable[[str], None], cfg: Any = cfg) -> list[Any]:
            train, held_out = sources._parts(cfg, cfg.data.task or "language_modelling", say)
            name = "text" if "text" in train.column_names else "place"
            return [len(train), len(held_out) if held_out else None, held_out and str(list(held_out[name]))[:200]]

        found[line] = told(made, 200)
    data_regression.check(known(found))


def test_splits_that_were_saved(data_regression, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    some = datasets.Dataset.from_dict({"text": ["a", "b", "c\n", None], "label": [0, 1, -1, 1]}, named)
    datasets.DatasetDict({"train": some, "test": some.select([0, 1])}).save_to_disk("both")
    some.save_to_disk("one")
    found: dict[str, Any] = {}
    cases = ("both train", "both test", "both train[:2]", "both train[1:3]", "both train+test", "both absent")
    for case in (*cases, "one train", "one train[:1]", "one test", "both train subset", "one train documents"):
        path, split, *more = case.split()
        cfg, _ = changed(f"data.name=hub data.path={path} data.split={split}")
        cfg.data.subset = "x" if "subset" in more else None
        cfg.data.documents = "line" if "documents" in more else None
        found[case] = told(lambda say, cfg=cfg: [len(hub.split(cfg, "split")[0])], 160)
    cfg, _ = changed("data.name=hub data.path=one data.eval_split=train")
    found["to evaluate on"] = told(lambda say: hub.split(cfg, "eval_split")[0], 120)
    for columns in ({"text": "text", "label": "label"}, {"text": "text"}, {"x": "text"}):
        found[f"columns {columns}"] = told(
            lambda say, columns=columns: hub.texts(some, wanted(say=say, **columns)), 150
        )
    found["placed"] = [f"{place} {row['text']!r}" for place, row in hub.placed(some, ["text"])]
    found["of none of these"] = [f"{place} {sorted(row)}" for place, row in hub.placed(some, ["x"])]
    assert not hub.is_plain(some)
    plain: Any = SimpleNamespace(info=SimpleNamespace(builder_name="text"))
    assert hub.is_plain(plain) and data_sources.PUBLISHED
    data_regression.check(known(found))
