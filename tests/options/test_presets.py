"""The presets, conf/experiment/*.yaml: each composes for a training, and its step fits the card that it is made for."""

from __future__ import annotations

import pytest
from conftest import CONF, ROOT, compose

from legroom.machine import host
from legroom.options import overrides, presets

NAMES = sorted(path.stem for path in CONF.glob("experiment/*.yaml"))
QUICK = {"classify_8gb"}  # the others take seconds each


@pytest.fixture(scope="module")
def known():
    return {preset.name: preset for preset in presets.presets()}


def test_every_preset_says_what_it_is_for(known):
    assert sorted(known) == NAMES
    for preset in known.values():
        assert preset.about and preset.gpu and preset.gpus >= 1
        cards = preset.gpu.rpartition("_")[2]  # as its name says it: 24gb
        assert preset.name.endswith(f"_{preset.gpus}x{cards}" if preset.gpus > 1 else f"_{cards}")


@pytest.mark.parametrize("page", ["README.md", "docs/own_options.md"])
def test_every_preset_stands_in_the_tables(known, page):
    lines = (ROOT / page).read_text().splitlines()
    for preset in known.values():
        (row,) = [line for line in lines if line.startswith(f"| `{preset.name}` |")]
        assert preset.about in row


def test_a_preset_needs_no_plus():
    assert overrides.quoted(["experiment=chat_8b_24gb"]) == ["+experiment=chat_8b_24gb"]
    assert not overrides.problems(overrides.quoted(["experiment=chat_8b_24gb"]), [CONF], False)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_trains_a_persons_rows(known, name, tmp_path):
    """Everything but the rows is in it, and an estimate of it does without them."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b", "text": "a", "label": 1}\n')
    preset = known[name]
    training = compose(f"+experiment={name}", f"data.path={rows}", "device=cpu")
    asked = [problem for problem in training.problems if "CPU" not in problem and "GPU" not in problem]
    assert not asked
    assert training.cfg.model.pretrained and training.cfg.parallelism.num_processes == preset.gpus
    assert not compose(f"+experiment={name}", "recipe=estimate", f"gpu={preset.gpu}").problems


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMES]
)
def test_a_preset_fits_its_card(known, predicted, name):
    outcome = predicted(f"+experiment={name}", f"gpu={known[name].gpu}")
    assert outcome.estimate.verdict == "fits"
    assert outcome.status == "ok"


def test_an_estimate_of_a_preset_without_a_card_names_the_presets(monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    (problem,) = compose("+experiment=chat_8b_24gb", "recipe=estimate").problems
    assert problem.endswith("experiment=chat_8b_24gb is made for gpu=rtx4090_24gb.")
    (problem,) = compose("recipe=estimate").problems
    assert "is made for" not in problem
