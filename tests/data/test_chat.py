"""data=chat: which tokens of a conversation are trained on, and what is said of rows of other forms."""

from __future__ import annotations

import json

import datasets
import pytest
import tiny
from chat import ALTERNATING, CHATML, COUNTED, HEADERS, MARKED, THOUGHTS, save_tokenizer, talk, write
from conftest import compose, small
from test_data import built, refusal
from tokenizers import processors
from transformers import AutoTokenizer

from legroom.data import answer_ends, preview
from legroom.data.byte_tokenizer import byte_tokenizer
from legroom.data.chat_template import PLAIN
from legroom.data.collate import IGNORE_INDEX
from legroom.records.messages import Shown

RECIPES = ["trainer", "accelerate"]
ONE = talk("What is 1+1?", "2", system="Be brief.")
TWO = talk("a", "first", "b", "second ü")


def told(path, *more: str) -> list[str]:
    sizes = ["data.seq_len=128", "model.positions=256"]
    return ["model=llama_tiny", "data=chat", f"data.path={path}", "data.eval_fraction=0", *sizes, *more]


def trained(data, row: int = 0) -> list[str]:
    """The runs of tokens that the loss looks at, as text."""
    text = preview.samples(data, row + 1).split(f"sample {row + 1} of ")[1]
    return [piece.split("<<<")[0] for piece in text.split(">>>")[2:]]


@pytest.fixture
def told_with(tmp_path):
    """told_with(template, *rows) -> the overrides for rows with a tokenizer that has this template."""

    def told_with(template, *rows, more=()) -> list[str]:
        tokenizer = save_tokenizer(tmp_path / "tokenizer", template)
        talks = write(tmp_path / "talks.jsonl", list(rows))
        return told(talks, f"data.tokenizer={tokenizer}", *more)

    return told_with


# --- the answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template,answers",
    [
        (CHATML, ["first<|im_end|>", "second ü<|im_end|>"]),
        (HEADERS, ["first<|eot|>", "second ü<|eot|>"]),
        (ALTERNATING, [" first<|eot|>", " second ü<|eot|>"]),
        (MARKED, ["first<|im_end|>", "second ü<|im_end|>"]),
        (None, ["first<|end|>", "second ü<|end|>"]),
    ],
    ids=["chatml", "headers", "alternating", "marked", "none"],
)
def test_the_loss_is_on_every_answer_alone(told_with, template, answers):
    data = built(*told_with(template, TWO))
    assert len(data.train) == 1 and trained(data) == answers
    row = data.train[0]
    assert set(row["labels"].tolist()) > {IGNORE_INDEX}
    kept = row["labels"] != IGNORE_INDEX
    assert row["labels"][kept].tolist() == row["input_ids"][kept].tolist()
    assert sum("chat template" in line for line in data.warnings) == (template is None)


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["found", "marked"])
def test_an_answer_of_weight_0_is_read_and_not_learned(told_with, template):
    """As in OpenAI's files; a content may be a list of texts."""
    said = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    said += [{"role": "assistant", "content": "wrong", "weight": 0}, {"role": "user", "content": "c"}]
    data = built(*told_with(template, {"messages": [*said, {"role": "assistant", "content": "right", "weight": 1}]}))
    (answer,) = trained(data)
    text = data.tokenizer.decode(data.train[0]["input_ids"])
    assert "right" in answer and "wrong" not in answer and "wrong" in text and "ab" in text
    assert not any("weight" in line for line in data.warnings)


def test_train_on_all_takes_every_token(told_with):
    data = built(*told_with(COUNTED, TWO, more=["data.train_on=all"]))
    assert data.train[0]["labels"].tolist() == data.train[0]["input_ids"].tolist()
    assert not any("weight" in line for line in data.warnings)
    wrong = {"messages": [TWO["messages"][0], {"role": "assistant", "content": "wrong", "weight": 0}]}
    data = built(*told_with(CHATML, TWO, wrong, more=["data.train_on=all"]))
    assert any("1 of 2 conversations to train on have an answer of weight 0" in line for line in data.warnings)


def test_templates_that_change_earlier_turns(told_with):
    data = built(*told_with(THOUGHTS, TWO, talk("c", "third")))
    answers = ["first", "second ü", "third"]
    assert [trained(data, n) for n in range(3)] == [[f"<think>\n\n</think>\n\n{each}<|im_end|>"] for each in answers]
    text = data.tokenizer.decode(data.train[1]["input_ids"])
    assert text.startswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nfirst<|im_end|>\n<|im_start|>user\nb")
    assert any("1 of 2 conversations to train on become a row for each answer" in line for line in data.warnings)


def test_a_template_whose_answers_cannot_be_found_is_refused(told_with):
    message = refusal(*told_with(COUNTED, TWO))
    assert "talks.jsonl, line 1" in message and "data.train_on=all" in message


@pytest.mark.parametrize("end", ["", "\n", "###\n\n"])
def test_a_template_without_a_token_that_ends_a_turn_is_said(told_with, end):
    """All that stands behind an answer is trained on: it may be what ends it."""
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}END{% endfor %}".replace("END", end)
    template += "{% if add_generation_prompt %}assistant: {% endif %}"
    data = built(*told_with(template, TWO, TWO))
    assert trained(data) == [f"first{end}", f"second ü{end}"]
    assert sum("does not learn to end answers" in line for line in data.warnings) == 1
    assert not any("end answers" in line for line in built(*told_with(CHATML, TWO)).warnings)


@pytest.mark.parametrize("end,warned", [("{% endgeneration %}<|im_end|>", 1), ("<|im_end|>\n{% endgeneration %}", 0)])
def test_marks_that_leave_the_end_of_a_turn_out_are_said(told_with, end, warned):
    data = built(*told_with(MARKED.replace("<|im_end|>{% endgeneration %}", end), TWO, TWO))
    assert sum("does not learn to end answers" in line for line in data.warnings) == warned


@pytest.mark.parametrize(
    "fault",
    [
        "{{ 1 / 0 }}",
        "{{ 10.0 ** 1000 }}",
        "{% for n in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[9]['role'] }}",
        "{% if %}",
        "{{ '%d' | format('a') }}",
    ],
)
def test_any_error_of_a_template_is_a_refusal_with_the_row(told_with, fault):
    failing = "{% if messages[0]['role'] == 'system' %}" + fault + "{% endif %}" + CHATML
    message = refusal(*told_with(failing, TWO, ONE))
    place = "line 1" if fault == "{% if %}" else "line 2"  # a template that cannot be read fails with the first row
    assert f"talks.jsonl, {place}" in message and "chat template" in message and "\n" not in message


def test_what_a_template_refuses_is_said_with_the_row(told_with):
    message = refusal(*told_with(ALTERNATING, TWO, ONE))
    assert "talks.jsonl, line 2" in message and "roles must alternate user/assistant" in message


def test_the_plain_template_is_saved(told_with):
    data = built(*told_with(None, TWO))
    text = data.tokenizer.apply_chat_template(TWO["messages"][:1], tokenize=False, add_generation_prompt=True)
    assert text == "user:\na\n\nassistant:\n"
    assert data.train[0]["input_ids"].tolist()[: len(text)] == [byte + 1 for byte in text.encode()]


def test_the_plain_template_begins_as_the_tokenizer_does(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
    words = ["<|begin|>", tokenizer.bos_token_id]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{words[0]} $A", special_tokens=[tuple(words)]
    )
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    path = write(tmp_path / "talks.jsonl", [TWO])
    ids = built(*told(path, f"data.tokenizer={tmp_path / 'tokenizer'}")).train[0]["input_ids"].tolist()
    assert ids[0] == words[1] and ids.count(words[1]) == 1
    assert words[1] not in built(*told(path)).train[0]["input_ids"].tolist()


def test_the_evaluation_counts_rows(told_with):
    rows = [talk("a", "b", "c", "d"), *([TWO] * 5)]
    data = built(*told_with(THOUGHTS, *rows, more=["data.eval_fraction=0.5", "eval.max_samples=4"]))
    assert len(data.eval) == 4 and data.eval_available == 6
    assert any("4 of 6 samples" in line for line in data.warnings)


def test_prompt_and_completion_are_a_question_and_its_answer(tmp_path):
    rows = [{"prompt": "a", "completion": "b"}, TWO, {"q": "ask", "a": "say", "prompt": None}]
    data = built(*told(write(tmp_path / "talks.jsonl", rows[:2])))
    assert [trained(data, n) for n in (0, 1)] == [["b<|end|>"], ["first<|end|>", "second ü<|end|>"]]
    (tmp_path / "talks.csv").write_text("q,a\nask,say\n")
    for path in (write(tmp_path / "talks.json", rows[2:] * 2), tmp_path / "talks.csv"):
        named = built(*told(path, "data.prompt_column=q", "data.completion_column=a"))
        assert trained(named) == ["say<|end|>"]
    datasets.Dataset.from_list([TWO]).to_parquet(tmp_path / "talks.parquet")
    assert trained(built(*told(tmp_path / "talks.parquet"))) == trained(data, 1)


# --- length ----------------------------------------------------------------------------------------


def test_a_long_conversation_keeps_its_end(tmp_path):
    rows = [talk("x" * 200, "short"), talk("a", "b"), talk("a", "y" * 200, "z" * 60)]
    data = built(*told(write(tmp_path / "talks.jsonl", rows), "data.seq_len=32"))
    assert [len(row["input_ids"]) for row in data.train] == [32, 24]  # the last one's end has no answer
    assert trained(data, 0) == ["short<|end|>"]
    cut, left_out = (next(line for line in data.warnings if word in line) for word in ("end is kept", "left out"))
    assert "1 of 3 conversations" in cut and "talks.jsonl, line 1" in cut
    assert "1 of 3 conversations" in left_out and "talks.jsonl, line 3" in left_out


def test_conversations_without_an_answer_are_left_out(tmp_path):
    path = write(tmp_path / "talks.jsonl", [talk("only a question"), talk("a", "b")])
    data = built(*told(path))
    assert len(data.train) == 1 and any("have no answer" in line for line in data.warnings)
    assert "nothing to train on" in refusal(*told(write(path, [talk("only a question")])))


# --- what else is said -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row,words",
    [
        ({"text": "hello"}, ["line 2", "no messages", "text", "data.messages_column="]),
        ({"question": "a", "answer": "b"}, ["data.prompt_column=question and data.completion_column=answer."]),
        ({"messages": "hello"}, ["line 2", "not a list of messages"]),
        ({"messages": []}, ["line 2", "empty list"]),
        ({"messages": ["hello"]}, ["line 2, message 1", "not an object"]),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]}, ["message 2", "role bot"]),
        ({"messages": [{"speaker": "human", "value": "a"}]}, ["no role", "speaker, value"]),
        ({"messages": [{"role": "user", "content": ["a"]}]}, ["content is a list", "not a text"]),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ["image_url", "only texts"]),
        ({"messages": [{"role": "user", "content": [{"text": "a"}, {"image": "b.png"}]}]}, ["image", "without a text"]),
        ({"prompt": [], "completion": "a"}, ["prompt is a list, not a text"]),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}, ["message 1", "weight is 0.5"]),
        ({"prompt": "a", "completion": "b", "label": False}, ["label is false", "KTOTrainer"]),
        ({"messages": [{"role": "user", "content": None}]}, ["content is missing"]),
        ({"messages": [{"role": "user", "content": " "}]}, ["content is empty"]),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, ["surrogate"]),
        ({"messages": [{"role": "assistant", "content": "a"}]}, ["first message is of the assistant"]),
        ({"prompt": "a", "completion": None}, ["completion is missing"]),
        ([1], ["line 2: it is a list"]),
    ],
    ids=str,
)
def test_a_row_without_a_conversation_is_named(tmp_path, row, words):
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps(TWO) + "\n" + json.dumps(row) + "\n")
    message = refusal(*told(path))
    assert all(word in message for word in ["talks.jsonl", *words]), message


def test_unused_parts_of_a_row_are_named(told_with):
    row = {"messages": [{"role": "user", "content": "say <|im_end|>", "name": "Ann"}, *TWO["messages"][1:2]]}
    forgetful = CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}")
    data = built(*told_with(forgetful, ONE, row))
    for words in ("name (1)", "changes or leaves out (the first: talks.jsonl, line 1)", "special token in a message"):
        assert any(words in line for line in data.warnings), (words, data.warnings)


@pytest.mark.parametrize(
    "words,expected",
    [
        (["model=bert_tiny"], "decoder"),
        (["data.path=null"], "data.path="),
        (["eval.stride=16"], "eval.stride=16"),
        (["data.train_on=some"], "answers"),
    ],
    ids=str,
)
def test_keys_that_conversations_do_not_have_are_refused(tmp_path, words, expected):
    path = write(tmp_path / "talks.jsonl", [TWO])
    sizes = [word for word in small(*told(path)) if not word.startswith("model.kv")]
    problems = compose(*sizes, *words).problems
    assert problems and expected in problems[0]


def test_a_text_file_holds_no_conversation(tmp_path):
    (tmp_path / "talks.txt").write_text("hello\n")
    assert "no conversations" in compose(*small(*told(tmp_path / "talks.txt"))).problems[0]


# --- training --------------------------------------------------------------------------------------

TALKS = [talk("q" * n, "answer " * (n % 5 + 1), "again", f"no {n}") for n in range(1, 11)]


@pytest.mark.parametrize(
    "more",
    [
        ["loss=chunked", "loss.rows=8", "accumulation=x2", "data.preview=2"],
        pytest.param(["adapter=lora", "precision=bf16", "checkpointing=full"], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_both_recipes_train_the_same_on_conversations(train, tmp_path, more):
    path = write(tmp_path / "talks.jsonl", TALKS)
    words = told(path, "data.eval_fraction=0.2", "data.samples=null", *more)
    runs = [train(f"recipe={recipe}", *words) for recipe in RECIPES]
    assert runs[0].record.training.losses == runs[1].record.training.losses
    assert all(run.record.evaluation.samples == 2 for run in runs)
    assert any("no chat template" in line for line in runs[0].record.warnings)
    shown = [message.text for message in runs[0].messages if isinstance(message, Shown)]
    assert len(shown) == ("data.preview=2" in more) and all("sample 2 of 8" in text for text in shown)


@pytest.mark.slow_for("none")
@pytest.mark.parametrize("template", [HEADERS, None], ids=["headers", "none"])
def test_the_saved_model_has_the_base_template(train, tmp_path, template):
    tiny.tiny_model("llama", "language_modelling").save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model", template)
    path = write(tmp_path / "talks.jsonl", TALKS)
    words = ["data=chat", f"data.path={path}", f"model.pretrained={tmp_path / 'model'}", "data.seq_len=64"]
    run = train(*words, "save.final=true", "data.eval_fraction=0", "data.samples=null")
    saved = AutoTokenizer.from_pretrained(run.folder / "model")
    assert saved.chat_template == (template or PLAIN)
    assert any("no chat template" in line for line in run.record.warnings) == (template is None)
    estimate = train(*words, "recipe=estimate", "device=auto", "gpu=l4_24gb", "data.packing=true").record
    assert estimate.estimate is not None and estimate.speed.samples_per_second


def test_the_loss_is_that_of_the_answers(train, tmp_path):
    """A model that has learnt one answer by heart is sure of it, and of nothing else."""
    path = write(tmp_path / "talks.jsonl", [talk("q", "yes"), talk("q", "yes")])
    more = ["train.max_steps=30", "train.learning_rate=0.01", "train.schedule=constant", "data.samples=null"]
    answers = train(*told(path, *more)).record.training
    assert answers.final_loss < 0.1 and answers.samples == 60


# --- where an answer ends --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template,ends",
    [
        (CHATML, ["<|end|>", "<|im_end|>"]),
        (THOUGHTS, ["<|end|>", "<|im_end|>"]),
        (MARKED, ["<|end|>", "<|im_end|>"]),
        (HEADERS, ["<|end|>", "<|eot|>"]),
        (ALTERNATING, ["<|end|>", "<|eot|>"]),
        (CHATML.replace("<|im_end|>", "<turn_b>"), ["<|end|>", "<turn_b>"]),  # added, and not among the special ones
        (CHATML.replace("<|im_end|>", "!"), ["<|end|>"]),  # no token of its own
        ("{{ 1 / 0 }}", ["<|end|>"]),
        (None, ["<|end|>"]),
    ],
)
def test_the_tokens_that_end_an_answer(tmp_path, template, ends):
    tokenizer = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path, template))
    tokenizer.add_tokens(["<turn_b>"])
    said = []
    found = answer_ends.end_tokens(tokenizer, None, said.append)
    assert tokenizer.convert_ids_to_tokens(found) == ends and len(said) == (template == "{{ 1 / 0 }}")
    assert answer_ends.end_tokens(tokenizer, [300, 0], said.append)[:2] == [300, 0]
    assert answer_ends.end_tokens(tokenizer, 300, said.append)[0] == 300
