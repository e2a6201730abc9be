"""What the app's form makes of each choice: a command line, or a sentence that refuses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from legroom.cli.app import form as forms
from legroom.cli.app import model_name
from legroom.cli.app.form import Form
from legroom.errors import Refusal

CONFIG = {"model_type": "bert"}
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


def test_a_size_is_read_from_the_first_line_of_a_model(monkeypatch):
    monkeypatch.setattr(model_name, "known", lambda: KNOWN)
    assert [model_name._parameters(name) for name in KNOWN] == [7.2e9, 70.6e9, 4.4e6, 110e6, 340e6, 1]
