"""A conversation with a model: what ends an answer, what the model cannot read, and what cannot talk."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from made_up_records import job

from legroom.cli import chat
from legroom.errors import Refusal
from legroom.records import saved_model


def test_ctrl_c_and_a_refusal_end_an_answer_and_not_the_conversation(monkeypatch, capsys):
    lines, ends = ["a", "b", "c", "/quit"], [KeyboardInterrupt(), Refusal("Type /new."), None]

    def answer(line):
        if (ended := ends.pop(0)) is not None:
            raise ended
        print(f"answered {line}")

    monkeypatch.setattr("builtins.input", lambda prompt: lines.pop(0))
    chat.talk(SimpleNamespace(answer=answer), False)  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr() == ("\nanswered c\n", "refused: Type /new.\n")


@pytest.mark.parametrize(
    "task, card, said",
    [
        ("CAUSAL_LM", False, "has no tokenizer (tokenizer_config.json). Copy that of its base into it."),
        ("SEQ_CLS", True, "has an adapter that classifies texts and says nothing. {}/README.md shows how to use it."),
        ("SEQ_CLS", False, "has an adapter that classifies texts and says nothing. Use it with Python."),
        ("FEATURE_EXTRACTION", False, "has an adapter that is for FEATURE_EXTRACTION and says nothing."),
        (None, False, "has an adapter that is for no task and says nothing."),
    ],
)
def test_an_adapter_that_cannot_talk_is_refused(tmp_path, task, card, said):
    (tmp_path / saved_model.ADAPTER_FILE).write_text(json.dumps({"task_type": task}))
    if card:
        (tmp_path / "README.md").touch()
    with pytest.raises(Refusal) as refused:
        saved_model.check_talks(tmp_path, None, compare=False)
    assert f"{tmp_path} {said.format(tmp_path)}" in str(refused.value)


@pytest.mark.parametrize(
    "words, said",
    [
        (None, "is whole, and does not say what it was before. Give the run that trained it, or leave --compare out."),
        ([], "was not trained from pretrained weights. Leave --compare out."),
        (["model.pretrained=a/b"], None),
    ],
)
def test_a_model_is_compared_with_the_weights_that_it_was_trained_from(tmp_path, words, said):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    (tmp_path / "tokenizer_config.json").touch()
    found = None if words is None else job(*words)
    saved_model.check_talks(tmp_path, found, compare=False)
    if said is None:
        return saved_model.check_talks(tmp_path, found, compare=True)
    with pytest.raises(Refusal) as refused:
        saved_model.check_talks(tmp_path, found, compare=True)
    assert str(refused.value) == f"--compare: {tmp_path} {said}"
