"""Whole cards of saved models, and what is typed to use a model, compared with the texts kept here."""

from __future__ import annotations

import pytest
from made_up_records import job

from legroom.records import model_card
from legroom.records.record import Evaluation, Model, Record, Training

ADAPTER = ("adapter=lora", "model.pretrained=someone/base")
HUB = ("data=hub", "data.path=someone/rows")


def made(architecture: str | None, *typed: str, **evaluated) -> Record:
    found = job(*(each for each in typed if not each.startswith(("hydra", "+"))), overrides=typed)
    found.model = Model("a name", architecture) if architecture else None
    found.training = Training(1234, 56789, 0, [], 0.5)
    found.evaluation = Evaluation(4321, 0.25, **evaluated) if evaluated else None
    found.config["train"]["learning_rate"] = 2e-5
    return found


CARDS = {
    "random ids": (made("BertForSequenceClassification"), None),
    "random ids without a model": (made(None), 7),
    "writes": (made("GPT2LMHeadModel", "model=gpt2", "data=source", "train.seed=1", perplexity=2.5), 12345),
    "writes, adapter with ends of its own": (
        made("LlamaForCausalLM", *ADAPTER, *HUB, "data.task=chat", "save.final=true", "hydra.run.dir=x"),
        7,
    ),
    "writes, adapter": (made("LlamaForCausalLM", *ADAPTER, "data=text", "data.path=/home/somebody/secret.txt"), 7),
    "writes, adapter on random weights": (made("LlamaForCausalLM", "adapter=lora", "data=source"), 7),
    "writes, merged": (
        made(
            "LlamaForCausalLM",
            "adapter=qlora",
            "model.pretrained=someone/base",
            "save.merge=true",
            "data=chat",
            "data.path='a b.jsonl'",
        ),
        7,
    ),
    "writes, adapter of bits": (made("LlamaForCausalLM", "adapter=qlora", ADAPTER[1], "data=wikitext"), 7),
    "classifies": (made("BertForSequenceClassification", "data=mrpc", accuracy=0.875), 3668),
    "classifies, adapter": (made("BertForSequenceClassification", *ADAPTER, "data=mrpc", accuracy=0.5), 1),
    "classifies, adapter of a folder": (
        made("BertForSequenceClassification", ADAPTER[0], "model.pretrained=./some/base", "data=mrpc"),
        None,
    ),
    "numbers": (made("BertForSequenceClassification", *HUB, "data.task=regression", pearson=0.75), 7),
    "labels": (made("BertForSequenceClassification", *HUB, "data.task=multi_label", f1=0.75), 7),
    "fills": (made("BertForMaskedLM", "data=text", "data.path=somewhere/a.txt", "+data.eval_path=b.txt"), 7),
    "answers": (made("BertForQuestionAnswering", *HUB, "data.task=question_answering", exact_match=0.5, f1=0.6), 7),
    "answers, adapter": (made("BertForQuestionAnswering", *ADAPTER, *HUB, "data.task=question_answering"), 7),
}


def test_a_card_says_the_ends_where_the_adapter_has_them(tmp_path):
    outcome, rows = CARDS["writes, adapter with ends of its own"]
    texts = []
    for _ in range(2):
        model_card.write(outcome, tmp_path, rows)
        texts.append((tmp_path / "README.md").read_text())
        (tmp_path / "generation_config.json").write_text("{}")
    assert ["GenerationConfig" in text for text in texts] == [False, True]


@pytest.mark.parametrize(
    "name, public",
    [
        ("someone/model", "someone/model"),
        ("gpt2", "gpt2"),
        ("a/b/c", "c"),
        ("/abs/folder", "folder"),
        ("./folder", "folder"),
        ("~/folder", "folder"),
        ("here/model", "model"),
        ("runs/one/model", ".../one/model"),
        ("runs/one/other", "other"),
        ("runs/two/model", "model"),
    ],
)
def test_a_card_names_no_folder_of_this_machine(name, public, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    for run in ("one", "two"):
        (tmp_path / "runs" / run).mkdir(parents=True)
    (tmp_path / "runs" / "one" / "result.json").touch()
    assert model_card._public(name) == public


@pytest.mark.parametrize(
    "override, from_hub, shown",
    [
        ("optim=sgd", False, "optim=sgd"),
        ("+train.seed=1", False, "+train.seed=1"),
        ("++tracker.project=x", False, None),
        ("hydra.run.dir=x", False, None),
        ("resume=latest", False, None),
        ("resume_allow=[x]", False, None),
        ("data.path=someone/rows", True, "data.path=someone/rows"),
        ("data.path=someone/rows", False, "data.path=..."),
        ("data.path=/home/rows", True, "data.path=..."),
        ("data.eval_path='x y'", False, "data.eval_path=..."),
        ("data.tokenizer=/home/one", True, "data.tokenizer=one"),
        ("data.text_column='a b'", True, "'data.text_column='\"'\"'a b'\"'\"''"),
    ],
)
def test_a_card_shows_what_was_typed_of_the_model(override, from_hub, shown):
    assert model_card._shown(override, from_hub) == shown
