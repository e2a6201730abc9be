"""Conversations in which tools are called: the template writes the whole of them, or they are refused."""

from __future__ import annotations

import json

import datasets
import pytest
from chat import ALTERNATING, CHATML, MARKED, save_tokenizer, write
from test_chat import told, trained
from test_data import built, refusal

RECIPES = ["trainer", "accelerate"]
WITH_TOOLS = (  # as Qwen 2.5 and Hermes
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>"
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"city": {"type": "string"}}}}
OTHER = {"type": "function", "function": {"name": "clock", "parameters": {"zone": {"type": "string"}}}}


def called(name: str, arguments) -> dict:
    """A row in which a tool is called and answers."""
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {
        "tools": [TOOL, OTHER],
        "messages": [
            {"role": "user", "content": "Is it warm?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": name, "content": "21"},
            {"role": "assistant", "content": "Yes."},
        ],
    }


ROWS = [called("weather", {"city": "Rome"}), called("clock", {"zone": "CET"})]
CALLS = ['<call>weather {"city": "Rome"}</call><|im_end|>', '<call>clock {"zone": "CET"}</call><|im_end|>']


@pytest.fixture
def told_with(tmp_path):
    """told_with(template, path) -> the overrides for a file, and a tokenizer that has the template."""

    def told_with(template, path, *more) -> list[str]:
        return told(
            path,
            f"data.tokenizer={save_tokenizer(tmp_path / 'tokenizer', template)}",
            "data.seq_len=512",
            "model.positions=512",
            *more,
        )

    return told_with


@pytest.mark.parametrize("kind", ["jsonl", "text", "parquet", "hub"])
def test_calls_are_trained_on_as_the_template_writes_them(told_with, tmp_path, kind):
    (tmp_path / "data").mkdir()
    path, more = tmp_path / "data" / "talks.jsonl", ["data.samples=null"]
    if kind in ("parquet", "hub"):
        path = path.with_suffix(".parquet")
        datasets.Dataset.from_list(ROWS).to_parquet(path)
        more += ["data=hub", "data.task=chat", f"data.path={path.parent}"] if kind == "hub" else []
    else:
        as_text = kind == "text"
        rows = [called(*each) for each in (("weather", {"city": "Rome"}), ("clock", {"zone": "CET"}))]
        for row in rows if as_text else []:  # as OpenAI writes arguments
            row["tools"] = json.dumps(row["tools"])
            function = row["messages"][1]["tool_calls"][0]["function"]
            function["arguments"] = json.dumps(function["arguments"])
        write(path, rows)
    data = built(*told_with(WITH_TOOLS, path, *more))
    assert [trained(data, n) for n in (0, 1)] == [[call, "Yes.<|im_end|>"] for call in CALLS]
    text = data.tokenizer.decode(data.train[0]["input_ids"])
    assert json.dumps(TOOL) in text and json.dumps(OTHER) in text and "<|im_start|>tool\n21<|im_end|>" in text
    assert not any("not read" in line or "and not" in line for line in data.warnings), data.warnings


@pytest.mark.parametrize(
    "template,left_out",
    [
        (CHATML, "tools"),
        (None, "tools"),
        (WITH_TOOLS.replace("{% if tools %}", "{% if false %}"), "tools"),
        (WITH_TOOLS.replace("m.tool_calls or", ""), "tool_calls"),
        (WITH_TOOLS.replace("in messages %}", "in messages if m.role != 'tool' %}"), "the role tool"),
    ],
)
@pytest.mark.parametrize("train_on", ["answers", "all"])
def test_tools_that_a_template_leaves_out_are_refused(told_with, tmp_path, template, left_out, train_on):
    path = write(tmp_path / "talks.jsonl", ROWS)
    message = refusal(*told_with(template, path, f"data.train_on={train_on}"))
    assert f"does not write {left_out}." in message and "talks.jsonl, line 1" in message


@pytest.mark.parametrize("part,refused", [("[:1]", True), ("[-1:]", True), ("", False)])
def test_a_template_that_drops_calls_is_refused(told_with, tmp_path, part, refused):
    """Also where another message has one call, which is written."""
    row = called("weather", {"city": "Rome"})
    calls = [*row["messages"][1]["tool_calls"], *ROWS[1]["messages"][1]["tool_calls"]]
    row["messages"] += [{"role": "user", "content": "And now?"}, {"role": "assistant", "tool_calls": calls}]
    template = WITH_TOOLS.replace("m.tool_calls or []", f"(m.tool_calls or []){part}")
    words = told_with(template, write(tmp_path / "talks.jsonl", [row]))
    if refused:
        assert "does not write all of several tool_calls." in refusal(*words)
    else:
        assert "".join(CALLS).replace("<|im_end|>", "", 1) in trained(built(*words))


def test_marks_are_looked_for_in_the_template_that_is_used(told_with, tmp_path):
    """Tools have one of their own, which marks nothing here."""
    rows = [ROWS[0], {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    data = built(*told_with({"default": MARKED, "tool_use": WITH_TOOLS}, write(tmp_path / "t.jsonl", rows)))
    assert [trained(data, n) for n in (0, 1)] == [[CALLS[0], "Yes.<|im_end|>"], ["b<|im_end|>"]]


def test_a_template_that_refuses_tools_says_so(told_with, tmp_path):
    message = refusal(*told_with(ALTERNATING, write(tmp_path / "talks.jsonl", ROWS)))
    assert "talks.jsonl, line 1" in message and "template" in message


@pytest.mark.parametrize(
    "change,words",
    [
        ({"tools": "get_weather"}, ["tools is"]),
        ({"tools": [1]}, ["tools is a list"]),
        (
            {"messages": [ROWS[0]["messages"][0], {"role": "assistant", "tool_calls": "x"}]},
            ["tool_calls is", "message 2"],
        ),
        (
            {
                "messages": [
                    ROWS[0]["messages"][0],
                    {"role": "assistant", "tool_calls": [{"name": "x", "arguments": "{"}]},
                ]
            },
            ["arguments", "no JSON", "message 2"],
        ),
        ({"tools": [{"function": {"name": "\ud83d"}}]}, ["tools holds half of a surrogate pair"]),
        (
            {
                "messages": [
                    ROWS[0]["messages"][0],
                    {"role": "assistant", "tool_calls": [{"name": "x", "arguments": {"a": "\ud83d"}}]},
                ]
            },
            ["message 2 (assistant) holds half of a surrogate pair"],
        ),
    ],
)
def test_tools_of_another_form_are_refused_with_their_place(told_with, tmp_path, change, words):
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (ROWS[0], ROWS[0] | change)))
    message = refusal(*told_with(WITH_TOOLS, path))
    assert "talks.jsonl, line 2" in message and all(word in message for word in words)
