"""eval.generate: what the model says before and after; and the first hour, from whether it fits to a talk."""

from __future__ import annotations

import io
import json
import types

import pytest
from conftest import compose

from legroom.cli import brief, chat
from legroom.training import generate

SAYS = "zzzz"
TRAINED = ["train.max_steps=25", "train.learning_rate=0.05", "data.eval_fraction=0.4", "measure.ledger=false"]


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """A file as ShareGPT has them, of one answer."""
    file = tmp_path_factory.mktemp("talks") / "talks.json"
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": SAYS}]
    file.write_text(json.dumps([{"conversations": turns}] * 4))
    return file


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_it_shows_what_was_learned_and_changes_no_loss(train, talks, recipe):
    words = [f"recipe={recipe}", "model=llama_tiny", "data=chat", f"data.path={talks}", *TRAINED]
    run = train(*words, "eval.generate=5")
    assert len(run.record.evaluation.generated) == 2, "there are two rows to evaluate on"
    for each in run.record.evaluation.generated:
        assert each["prompt"].rstrip().endswith("assistant:") and each["after"] == SAYS != each["before"]
    assert repr(SAYS) in brief.brief(run.record, run.folder)
    assert train(*words).record.training.losses == run.record.training.losses


def test_a_text_is_continued_from_its_half(train):
    words = ["model=gpt2_tiny", "data=source", "model.positions=32", "measure.ledger=false"]
    [each] = train(*words, "eval.generate=1").record.evaluation.generated
    assert 1 <= len(each["prompt"]) <= 16


def test_who_does_not_ask_has_the_same_key():
    assert compose().record.config_key == compose("eval.generate=0").record.config_key
    assert "generate" not in compose().record.config["eval"]
    assert compose("data=source", "model=gpt2_tiny", "eval.generate=1").record.config["eval"]["generate"] == 1


@pytest.mark.parametrize(
    "words",
    [["data=dummy"], ["data=source", "eval.enabled=false"], ["data=source", "parallelism=fsdp"]],
)
def test_where_nothing_can_be_said_it_is_refused(words):
    problems = compose("model=gpt2_tiny", "eval.generate=2", *words).problems
    assert any("eval.generate=2" in line and words[-1].partition(" ")[0] in line for line in problems)


def test_without_rows_to_evaluate_on_it_is_refused(train, talks):
    words = ["model=llama_tiny", "data=chat", f"data.path={talks}", "data.eval_fraction=0", "eval.generate=1"]
    run = train(*words, status="refused")
    assert "eval.generate=1" in run.record.error.message


def test_a_classifier_that_was_given_as_a_folder_is_refused(train, tmp_path):
    """What its config.json is for is read in the worker."""
    base = train("model=bert_tiny", "save.final=true", "measure.ledger=false", "eval.enabled=false").folder / "model"
    (tmp_path / "t.csv").write_text("text,label\n" + "a,0\nb,1\n" * 8)
    words = [f"model.pretrained={base}", "data=text", f"data.path={tmp_path}/t.csv", "data.tokenizer=bytes"]
    run = train(*words, "eval.generate=2", status="refused")
    assert "eval.generate=2" in run.record.error.message and "no next token" in run.record.error.message


def test_a_model_that_cannot_generate_is_a_warning():
    model, said = types.SimpleNamespace(training=True, eval=lambda: None, train=lambda mode: None), []
    assert generate.continuations(model, types.SimpleNamespace(eval=[{}], tokenizer=None), 1, said.append) == []
    assert len(said) == 1 and "eval.generate" in said[0]


def test_the_first_hour(train, talks, tmp_path, monkeypatch, capsys):
    """Does it fit? Train. Use it: with nothing typed beside the model, the adapter and the file."""
    pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    base = train("model=llama_tiny", "model.vocab=257", "data=source", "save.final=true", "measure.ledger=false").folder
    words = [f"model.pretrained={base}/model", "data=chat", f"data.path={talks}", "adapter=lora"]
    fits = train("recipe=estimate", "gpu=l4_24gb", "device=auto", *words)
    assert fits.record.estimate.fits and not (fits.folder / "model").exists()
    run = train(*words, *TRAINED)
    assert any("ShareGPT" in line for line in run.record.warnings)
    *_, model, use = brief.brief(run.record, run.folder).splitlines()
    assert model.endswith("model") and "chat" in use
    monkeypatch.setattr("sys.stdin", io.StringIO("a\n"))
    assert chat.main([use.split()[-1], "--device", "cpu", "--tokens", "4"]) == 0
    assert capsys.readouterr().out.strip() == SAYS
    assert (run.folder / "model" / "README.md").is_file()
