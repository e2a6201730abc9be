"""What the app's form makes of each choice: a command line, or a sentence that refuses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.known_values import known

from legroom.cli.app import form as forms
from legroom.cli.app import model_name
from legroom.cli.app.form import Form
from legroom.errors import Refusal

CHOSEN = {"model": "bert_tiny", "gpu": "t4_16gb", "data.seq_len": 64, "batch.per_device": 2, "accumulation.steps": 1}
CONFIG = {"model_type": "bert"}
LIMIT = "launch.memory_limit_gib"
KNOWN = {
    "alpha_7b": ("Alpha 7B (7.2 B parameters)", "maker/Alpha-7B-v0.3"),
    "alpha_70b": ("Alpha 70B (70.6 B parameters)", "maker/Alpha-70B"),
    "alpha_tiny": ("A tiny one (4.4 M parameters)", ""),
    "beta_base": ("Beta base (110.0 M parameters)", "other/beta-base-uncased"),
    "beta_large": ("Beta large (340.0 M parameters)", "other/beta-large"),
    "gamma": ("of no size", "third/Gamma"),
}


@pytest.fixture
def form(tmp_path) -> Form:
    return Form(tmp_path / "pasted", [Path("/models/it's mine"), Path("/models/a\\b")])


def answer_of(make, *values) -> Any:
    try:
        return make(*values)
    except Refusal as refusal:
        return f"refused: {refusal}"


CHOICES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "most rows": {"data.seq_len": 2**20, "batch.per_device": 2**14, "accumulation.steps": 2**12},
    "least": {"data.seq_len": 1, "batch.per_device": 1},
    "two steps": {"accumulation.steps": 2},
    "no steps": {"accumulation.steps": 0},
    "a number as a text": {"batch.per_device": "2"},
    "a number with a point": {"batch.per_device": 2.0},
    "true as a number": {"batch.per_device": True},
    "the default option": {"precision": "fp32"},
    "another option": {"precision": "bf16", "checkpointing": "full"},
    "no option": {"precision": None},
    "a wrong option": {"precision": "int1"},
    "a rank": {"adapter": "lora", "adapter.rank": 4096},
    "a rank without an adapter": {"adapter.rank": 8},
    "an adapter without a rank": {"adapter": "lora"},
    "a rank that is too large": {"adapter": "lora", "adapter.rank": 4097},
    "one GPU": {"gpus": 1, "mode": "ddp"},
    "two GPUs": {"gpus": 2},
    "most GPUs": {"gpus": 1024, "mode": "zero"},
    "too many GPUs": {"gpus": 1025},
    "a limit": {LIMIT: 0.5},
    "the largest limit": {LIMIT: 1024},
    "a limit that is too large": {LIMIT: 1024.5},
    "no limit": {LIMIT: None},
    "a limit of nothing": {LIMIT: 0},
    "a limit that is true": {LIMIT: True},
    "a limit as a text": {LIMIT: "1"},
    "explained": {"explain": True},
    "explained by a text": {"explain": "yes"},
    "a folder": {"model": "/models/it's mine"},
    "a folder with a backslash": {"model": "/models/a\\b"},
    "another folder": {"model": "/models"},
    "no model": {"model": ""},
    "two models": {"config": json.dumps(CONFIG)},
    "a number as a model": {"model": 3},
    "no GPU": {"gpu": None},
}


def test_each_choice_makes_its_command_line_or_is_refused(form, data_regression):
    found = {name: answer_of(form.overrides, CHOSEN | more) for name, more in CHOICES.items()}
    # What follows in a refusal are options, whose menus grow.
    data_regression.check({name: text[:70] if isinstance(text, str) else text for name, text in found.items()})


def test_the_page_offers_numbers_with_their_defaults_and_most(form, data_regression):
    choices = form.choices()
    menus = [{"key": each["key"], "title": each["title"], "first": each["options"][0]} for each in choices["menus"]]
    found = {key: choices[key] for key in ("rank", "limit", "modes", "numbers")} | {"menus": menus}
    data_regression.check(found | {"folders": choices["models"][-2:]})


@pytest.mark.parametrize(
    "text, said",
    [
        (json.dumps(CONFIG), None),
        (json.dumps(CONFIG).ljust(forms.MOST_CONFIG_BYTES), None),
        (json.dumps(CONFIG).ljust(forms.MOST_CONFIG_BYTES + 1), "at most 64 KiB"),
        ({"model_type": "bert"}, "must be a text"),
        ("[1]", "no model_type"),
        ('{"model_type": 1}', "no model_type"),
        ("{", "not JSON"),
    ],
    ids=range(7),
)
def test_a_pasted_configuration_is_kept_under_a_name_of_its_own(form, text, said):
    if said is not None:
        with pytest.raises(Refusal, match=said):
            form._paste(text)
        assert not form.pasted.exists()
        return
    folder = form._paste(text)
    assert folder.parent == form.pasted and len(folder.name) == 16 and (folder / "config.json").read_text() == text
    assert form._paste(text) == folder


def test_an_answer_names_its_model_and_a_command_to_type(form, monkeypatch, data_regression):
    monkeypatch.setattr(forms.known_models, "known", lambda: KNOWN)
    typed = {name: f"model={name}" for name in KNOWN} | {"a/b": "model.pretrained=a/b"}
    found: dict[str, Any] = {
        name: form.named({}, ["recipe=estimate", text], {"command": f"train {text} gpu=x"})
        for name, text in typed.items()
    }
    pasted = form.named(
        {"config": "{}"}, ["model.pretrained=a/folder"], {"command": "train model.pretrained=a/folder gpu=x"}
    )
    data_regression.check(found | {"pasted": pasted})


WRITTEN = [
    "alpha_7b",
    " alpha_7b ",
    "Alpha 7B",
    "alpha-7b-v0.3",
    "Alpha",
    "al",
    "tiny",
    "beta",
    "beta base",
    "beta-base-uncased",
    "Gamma",
    "ga",
    "amm",
    "uncased",
    "nothing 100m",
    "delta 60b",
    "delta 0b",
    "gama",
    "",
    "x" * 101,
    "maker/Alpha-7B-v0.3",
    "maker/Alpha-7B-Instruct-v0.3",
    "https://huggingface.co/maker/Alpha-70B-chat/tree/main",
    "www.hf.co/other/beta-large?x=1",
    "hf.co/third/Gamma",
    "cached/one",
    "cached/one/more",
    "-x/one",
    "nobody/delta-13b",
    "nobody/beta",
    "nobody/" + "y" * 100,
]


def test_what_people_write_is_a_model_or_is_answered_with_what_is_near(monkeypatch, data_regression):
    monkeypatch.setattr(model_name, "known", lambda: KNOWN)
    monkeypatch.setattr(model_name, "_is_cached", lambda name: "one" in name)
    data_regression.check({text: answer_of(model_name.overrides, text) for text in WRITTEN})


def test_a_size_is_read_from_the_first_line_of_a_model(monkeypatch):
    monkeypatch.setattr(model_name, "known", lambda: KNOWN)
    assert known([model_name._parameters(name) for name in KNOWN]) == [7.2e9, 70.6e9, 4.4e6, 110e6, 340e6, 1]
