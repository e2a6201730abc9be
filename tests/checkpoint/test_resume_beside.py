"""A training resumes beside what it was trained on: rows, tokenizer, template and base weights; else it is refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from conftest import compose
from test_hostile_resume import seal

from legroom.checkpoint import fingerprints
from legroom.data import byte_tokenizer, rows
from legroom.options import resume
from legroom.records import checkpoint_files, checkpoint_values

TOLD = ["recipe=accelerate", "train.max_steps=4", "measure.ledger=false", "eval.enabled=false"]


def base(folder, seed: int) -> None:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=512)).save_pretrained(folder)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"number {i} of many"}) + "\n" for i in range(8)))
    return path


@pytest.fixture
def resumed(train, again, tmp_path):
    """resumed(*words, change=f, more=[...]) -> (outcome, warnings): saved at step 2, changed, and resumed."""

    def resumed(*words: str, change, more=(), status="refused"):
        saved = train(*TOLD, *words, "save.every_steps=2", "save.keep=9")
        run = tmp_path / "run"
        name = checkpoint_files.folder_name(2)
        shutil.copytree(saved.folder / "checkpoints" / name, run / "checkpoints" / name)
        change(run / "checkpoints" / name)
        return again(run, *TOLD, *words, "resume=latest", *more, status=status)

    return resumed


def test_another_base_model_under_the_same_path(resumed, tmp_path):
    pytest.importorskip("peft")
    base(tmp_path / "base", 0)
    words = [f"model.pretrained={tmp_path / 'base'}", "adapter=lora"]
    outcome, _ = resumed(*words, change=lambda _: base(tmp_path / "base", 1))
    assert "resume_allow=[model]" in outcome.error.message and "step-00000002" in outcome.error.message
    assert not any((tmp_path / "run" / "checkpoints").glob("step-00000004")), "nothing was trained"


def test_rows_that_are_changed_shuffled_or_more_have_another_hash():
    lists = [[1, 2], [3], [4, 5, 6]]
    others = [[[1, 2], [3], [4, 5, 7]], lists[::-1], lists * 2, [[1], [2, 3], [4, 5, 6]]]
    digests = [rows.digest(rows.dataset(each, each)) for each in (lists, *others)]
    assert len(set(digests)) == 5 and digests[0] == rows.digest(rows.dataset(lists, lists))


@pytest.mark.parametrize("allow", [False, True])
def test_other_rows(resumed, texts, allow):
    lines = texts.read_text().splitlines()
    more = ["resume_allow=[data]"] if allow else []
    words = ["data=text", f"data.path={texts}", "data.tokenizer=bytes", "data.eval_fraction=0", "model=gpt2_tiny"]
    outcome, warned = resumed(
        *words,
        change=lambda _: texts.write_text("\n".join(lines[::-1])),
        more=more,
        status="ok" if allow else "refused",
    )
    if allow:
        assert outcome.training.resumed_from_step == 2 and "resume_allow" in warned[-1] and "data" in warned[-1]
    else:
        assert "resume_allow=[data]" in outcome.error.message


def test_a_group_of_parameters_without_their_names_is_refused(resumed):
    def forget(folder):
        path = folder / "rank-0.json"
        values = json.loads(path.read_text())
        del values["optimizer"]["groups"][0]["parameters"]
        path.write_text(json.dumps(values))
        seal(folder)

    outcome, _ = resumed(change=forget, status="refused")
    assert "not name" in outcome.error.message


def test_every_fingerprint_has_its_own_cause(tmp_path):
    """The tokenizer and the template, and frozen weights alone where there is an adapter."""

    class Data:
        train, tokenizer = rows.dataset([[1, 2], [3]], [[1, 2], [3]]), byte_tokenizer.byte_tokenizer()

    base(tmp_path, 0)
    cfg = compose("data=chat", "data.path=x", f"model.pretrained={tmp_path}", "adapter=lora").cfg
    first = fingerprints.of_training(cfg, Data)
    assert first.keys() == {"data", "model", "template", "tokenizer"} and first == fingerprints.of_training(cfg, Data)
    assert checkpoint_values.are_fingerprints(first)

    def changed() -> list[str]:
        now = fingerprints.of_training(cfg, Data)
        return [name for name in first if now[name] != first[name]]

    Data.tokenizer.chat_template = "{{ messages }}"
    assert changed() == ["template"]
    Data.tokenizer.add_tokens(["<new>"])
    assert set(changed()) == {"template", "tokenizer"}
    base(tmp_path, 1)
    assert "model" in changed()
    cfg.adapter.kind = "none"
    before = fingerprints.of_training(cfg, Data)["model"]
    base(tmp_path, 2)
    assert fingerprints.of_training(cfg, Data)["model"] == before, "the checkpoint has the weights themselves"


@pytest.mark.parametrize(
    "words,said", [(["resume_allow=[rows]", "resume=latest"], "no rows"), (["resume_allow=[data]"], "resume=")]
)
def test_names_that_cannot_be_allowed(words, said):
    (problem,) = compose("device=cpu", *words).problems
    assert "resume_allow" in problem and said in problem


@pytest.mark.parametrize("values", [[], {"data": 1}, {"data": "g" * 16}, {"a" * 99: "0" * 16}, {"data": ["0" * 16]}])
def test_fingerprints_of_a_stranger(values):
    assert not checkpoint_values.are_fingerprints(values)


def test_what_lies_elsewhere_may_be_allowed():
    """On another machine; its rows are compared all the same."""
    here, there = (compose("device=cpu", "data=text", f"data.path={place}").record.config for place in ("a", "b"))
    assert resume.differences(here, there) and not resume.differences(here | {"resume_allow": ["data"]}, there)
    assert resume.differences(here | {"resume_allow": ["model"]}, there)
