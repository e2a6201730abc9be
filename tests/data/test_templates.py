"""Chat templates of all kinds: what a message carries reaches them, and answers are found in what they write."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import chat
import pytest
from chat import CHANNELS, CHATML, OPENS_THOUGHT, PARTS, SWITCHED_THOUGHT, THOUGHTS, save_tokenizer, talk, write
from conftest import compose, small
from test_chat import told
from test_data import built, refusal

from legroom.data.byte_tokenizer import byte_tokenizer
from legroom.data.chat_template import PLAIN, ChatTemplate, Talk
from legroom.data.tokens import Tokens
from legroom.errors import Refusal

TWO = talk("2+2?", "four", "3+3?", "six")


def trained(data, row: int = 0) -> list[str]:
    """The runs of tokens that the loss looks at, as text."""
    runs, labels = [[]], data.train[row]["labels"].tolist()
    for label in labels:
        if label >= 0:
            runs[-1].append(label)
        elif runs[-1]:
            runs.append([])
    return [data.tokenizer.decode(run) for run in runs if run]


SPECIAL = re.compile(r"<\|[^<>|]+\|>|<\|\w+>|<\w+\|>|</?s>|<[a-z]+_of_[a-z]+>|<｜[^｜]+｜>|</?think>")


@pytest.fixture
def told_with(tmp_path):
    """told_with(template, *rows) -> the overrides for rows with a tokenizer that has this template."""

    def told_with(template, *rows, more=()) -> list[str]:
        tokenizer = save_tokenizer(tmp_path / "tokenizer", template)
        return told(write(tmp_path / "talks.jsonl", list(rows)), f"data.tokenizer={tokenizer}", *more)

    return told_with


# --- where an answer begins ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template, answers, more",
    [
        (OPENS_THOUGHT, ["four<|im_end|>", "six<|im_end|>"], []),
        (CHANNELS, ["four<|eot|>", "six<|eot|>"], []),
        (SWITCHED_THOUGHT, ["four<|im_end|>", "six<|im_end|>"], []),
        (
            SWITCHED_THOUGHT,  # the prompt opens a thought, which the model is to close
            ["</think>four<|im_end|>", "</think>six<|im_end|>"],
            ["data.template_arguments={enable_thinking: true}"],
        ),
    ],
    ids=["opens", "channels", "closed", "open"],
)
def test_an_answer_is_found_behind_an_opened_thought(told_with, template, answers, more):
    assert trained(built(*told_with(template, TWO, more=more))) == answers


def test_an_answer_that_begins_as_the_prompt_is_learned(told_with):
    row = talk("2+2?", "<think> is a tag")
    assert trained(built(*told_with(OPENS_THOUGHT, row))) == ["<think> is a tag<|im_end|>"]


def templates():
    """Name -> chat template, of the repository and of every package that is installed."""
    found = {name: value for name, value in vars(chat).items() if isinstance(value, str) and "messages" in value}
    for path in Path(sysconfig.get_paths()["purelib"]).rglob("*.jinja"):
        text = path.read_text(errors="replace")
        if "message" in text and "role" in text:
            found[path.stem] = text
    return found | {"PLAIN": PLAIN}


@pytest.mark.parametrize("name", sorted(templates()))
def test_every_template_has_its_answers_learned_or_is_refused(name):
    template = templates()[name]
    tokens = Tokens("bytes")
    tokens.tokenizer = byte_tokenizer()
    special = sorted(set(SPECIAL.findall(template)) | {"<s>", "</s>"})
    tokens.tokenizer.add_special_tokens({"additional_special_tokens": special, "bos_token": "<s>"})
    tokens.tokenizer.chat_template = template
    try:
        rows, _ = ChatTemplate(tokens, name, "answers", lambda _: None).rows(Talk(TWO["messages"], "line 1"))
    except Refusal as refused:
        assert str(refused).startswith("line 1: the chat template ") and "Traceback" not in str(refused)
        return
    learned = "".join(tokens.tokenizer.decode([each for each in row.labels if each >= 0]) for row in rows)
    assert "four" in learned and "six" in learned
    assert "2+2" not in learned and "3+3" not in learned


# --- what reaches a template -----------------------------------------------------------------------


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])  # that transformers takes for one
@pytest.mark.parametrize("train_on", ["answers", "all"])
def test_thoughts_are_learned_as_the_template_writes_them(told_with, key, train_on):
    """As transformers' apply_chat_template gives it to the model."""
    row = {"messages": [*TWO["messages"][:1], {"role": "assistant", key: "two and two", "content": "four"}]}
    data = built(*told_with(SWITCHED_THOUGHT, row, more=[f"data.train_on={train_on}"]))
    wanted = data.tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert data.tokenizer.decode(data.train[0]["input_ids"]) == wanted
    assert "two and two\n</think>\nfour<|im_end|>" in "".join(trained(data))
    assert not any(key in line for line in data.warnings)


def test_keys_of_messages_reach_the_template(told_with):
    template = CHATML.replace(
        "{{ m['content'] }}", "{{ m['content'] }}{% for s in m.sources %}[{{ s.url }}]{% endfor %}"
    )
    answer = {"role": "assistant", "content": "four", "sources": [{"url": "a.org"}, {"url": "b.org"}], "mood": "calm"}
    data = built(*told_with(template, {"messages": [*TWO["messages"][:1], answer]}, TWO))
    assert trained(data) == ["four[a.org][b.org]<|im_end|>"]
    (said,) = [line for line in data.warnings if "keys of messages" in line]
    assert "mood (1)" in said and "sources" not in said


def test_thoughts_that_the_template_does_not_write_are_said(told_with):
    row = {"messages": [*TWO["messages"][:1], {"role": "assistant", "thinking": "two and two", "content": "four"}]}
    said = built(*told_with(THOUGHTS, TWO, row)).warnings
    assert any("writes nothing of these keys of messages: thinking (1)" in line for line in said)


def test_a_row_may_have_variables_of_its_own(told_with):
    """`chat_template_kwargs`, as TRL calls the column."""
    rows = [TWO, TWO | {"chat_template_kwargs": {"enable_thinking": True}}]
    data = built(*told_with(SWITCHED_THOUGHT, *rows, more=["data.template_arguments={enable_thinking: false}"]))
    assert [trained(data, number)[0] for number in (0, 1)] == ["four<|im_end|>", "</think>four<|im_end|>"]
    assert not any("only the conversation is read" in line for line in data.warnings)


@pytest.mark.parametrize(
    "words, expected",
    [
        (["data=chat", "data.template_arguments={tokenize: true}"], "tokenize is no variable"),
        (["data=chat", "data.template_arguments=enable_thinking"], "is no mapping"),
        (["data=hub", "data.template_arguments={enable_thinking: true}"], "data.template_arguments would be ignored"),
    ],
)
def test_wrong_template_variables_are_refused(tmp_path, words, expected):
    path = write(tmp_path / "talks.jsonl", [TWO])
    problems = compose(*small("model=llama_tiny", *words, f"data.path={path}")).problems
    assert any(expected in problem for problem in problems), problems


# --- what a template leaves out --------------------------------------------------------------------


@pytest.mark.parametrize("train_on", ["answers", "all"])
@pytest.mark.parametrize("row", [TWO, talk("2+2?", "2")], ids=["words", "part of the question"])
def test_a_template_that_leaves_answers_out_is_refused(told_with, row, train_on):
    silent = CHATML.replace("{{ m['content'] }}", "{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}")
    for template in (PARTS, silent):
        message = refusal(*told_with(template, row, more=[f"data.train_on={train_on}"]))
        assert "writes nothing of what the assistant says" in message and "line 1" in message
