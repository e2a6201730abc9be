"""code=FILE: a model of one's own is trained, estimated and saved as those of transformers are."""

from __future__ import annotations

import json
import re

import pytest
from conftest import ROOT, compose, small

from legroom.models import builder

PAGE = (ROOT / "docs" / "own_options.md").read_text()
(MINE,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "AutoConfig.register" in block]


@pytest.fixture
def own(tmp_path):
    """own(*words) -> the words for the page's own model, of a small llama's sizes."""
    (tmp_path / "mine.py").write_text(MINE)
    builder.configuration(compose(*small("model=llama_tiny")).cfg).save_pretrained(tmp_path / "sizes")
    file = tmp_path / "sizes" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "mine"}))
    scratch = [f"code={tmp_path / 'mine.py'}", f"model.pretrained={tmp_path / 'sizes'}", "model.weights=random"]
    return lambda *more: small(*scratch, "data=source", "data.samples=8", "train.learning_rate=0.01", *more)


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_it_trains_as_the_model_that_it_is_made_of(train, own, recipe):
    mine = train(*own(f"recipe={recipe}", "save.final=true")).record
    llama = train("model=llama_tiny", "data=source", "train.learning_rate=0.01", f"recipe={recipe}").record
    assert mine.model.architecture == "MyModel" and mine.status == "ok"
    assert mine.training.losses == llama.training.losses


def test_it_is_estimated(train, own):
    estimated = train("recipe=estimate", "gpu=l4_24gb", *own(), "device=auto").record
    assert estimated.model.architecture == "MyModel" and estimated.estimate.verdict == "fits"


def test_a_file_that_fails_is_refused_in_words(train, own, tmp_path):
    (tmp_path / "mine.py").write_text("import no_such_module")
    refused = train(*own(), status="refused").record
    assert "cannot be run: ModuleNotFoundError" in refused.error.message


def test_a_file_without_a_model_or_that_is_not_there_is_refused(tmp_path):
    assert any("there is no such file" in line for line in compose("device=cpu", "code=absent.py").problems)
    (tmp_path / "mine.py").write_text("")
    problems = compose("device=cpu", f"code={tmp_path / 'mine.py'}").problems
    assert any("Type model.config=FOLDER." in line for line in problems)
