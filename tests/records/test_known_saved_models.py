"""Where a trained model is found, and every refusal where there is none, compared with those kept here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from made_up_records import job

from legroom.errors import Refusal
from legroom.records import checkpoint_files, record_file, saved_model
from legroom.records.record import Evaluation, Model, Record


def put(folder: str, found: Record | None = None, *files: str) -> None:
    """A folder with a record, and with empty files below it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    if found is not None:
        record_file.write(found, Path(folder))
    for name in files:
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_text("{}")


def run(loss: float | None, architecture: str | None = None, evaluated: float | None = None) -> Record:
    found = job("data=source", overrides=["data=source", "save.final=true", "resume=latest", f"train.seed={loss}"])
    found.training.final_loss = loss
    found.evaluation = None if evaluated is None else Evaluation(1, evaluated)
    found.model = Model("name", architecture) if architecture else None
    return found


def tree() -> None:
    """Folders of every kind in the working directory."""
    estimate = job(
        "recipe=estimate", "gpu=l4_24gb", overrides=["recipe=estimate", "gpu=l4_24gb", "gpu.price_per_hour=1"]
    )
    put("empty")
    put("model of others", None, "config.json")
    put("adapter of others", None, "adapter_config.json")
    put("run", run(0.5), "model/config.json")
    put("run with adapter", run(0.5), "model/adapter_config.json")
    put("run without model", run(0.5))
    put("estimate", estimate)
    put("run with checkpoints", run(0.5), f"checkpoints/{checkpoint_files.folder_name(3)}/manifest.json")
    put("checkpoints alone", None, f"checkpoints/{checkpoint_files.folder_name(3)}/manifest.json")
    put("sweep/a", run(0.5), "model/config.json")
    put("sweep/b", run(0.75, evaluated=0.25), "model/config.json")
    put("sweep/c", run(0.1, "BertForSequenceClassification"), "model/config.json")
    put("sweep/d", run(0.01))
    put("sweep/e", run(None, "GPT2LMHeadModel"), "model/config.json")
    put("one of a sweep/a", run(0.75), "model/config.json")
    for number in range(8):
        put(f"many/day/{number}", run(1 + number), "model/config.json")
    put("no model/a", run(0.5))
    put("no model/b", run(0.25))
    put("damaged")
    Path("damaged/result.json").write_text("{}")
    put("model with parts", None, "config.json", "model/part.onnx")
    put("in its evaluation", None, "model/config.json", "checkpoints/step-00000002/manifest.json")


FOLDERS = [
    "empty",
    "missing",
    "model of others",
    "adapter of others",
    "run",
    "run/model",
    "run/result.json",
    "run with adapter",
    "run without model",
    "estimate",
    "run with checkpoints",
    "checkpoints alone",
    "sweep",
    "one of a sweep",
    "many",
    "no model",
    "damaged",
    "in its evaluation",
    "model with parts",
]


def located(folder: str, use: str) -> str:
    try:
        model, found = saved_model.locate(Path(folder), use)
    except Refusal as refusal:
        return f"Refusal: {refusal}"
    return f"{model}, {'in a run' if found else 'in no run'}"


def test_a_folders_model_is_found_or_what_to_type_is_said(tmp_path, monkeypatch, data_regression):
    monkeypatch.chdir(tmp_path)
    tree()
    found = {folder: located(folder, "chat") for folder in FOLDERS}
    found["sweep, to export"] = located("sweep", "export --into 'x y'")
    for age, name in enumerate(("old", "new", "middle")):
        put(f"outputs/day/{name}", None, "model/config.json")
        os.utime(f"outputs/day/{name}/model", (0, (100, 300, 200)[age]))
    found |= {f"{folder}, beside outputs": located(folder, "chat") for folder in ("empty", "missing")}
    assert "more than 255 bytes" in located("ü" * 128, "chat")  # of which pathlib asks the system in vain
    monkeypatch.chdir("run/model")
    found["where one stands"] = located(".", "chat").replace(str(tmp_path), "ROOT")
    found["below"] = located("..", "chat").replace(str(tmp_path), "ROOT")
    data_regression.check(found)


CASES = {
    "talks": ({"architectures": ["GPT2LMHeadModel"]}, True, None, False),
    "two classes, one of which talks": ({"architectures": ["Other", "LlamaForCausalLM"]}, True, None, False),
    "sees and talks": ({"architectures": ["XForConditionalGeneration"]}, True, None, False),
    "says no class": ({}, True, None, False),
    "no object": ([], True, None, False),
    "no json": ("{", True, None, False),
    "classifies": ({"architectures": ["BertForSequenceClassification"]}, True, None, False),
    "is bare": ({"architectures": ["BertModel"]}, True, None, False),
    "no tokenizer": ({"architectures": ["GPT2LMHeadModel"]}, False, None, False),
    "no tokenizer, of a run": ({}, False, ["data=source"], False),
    "no tokenizer, of random ids": ({}, False, ["model=gpt2"], False),
    "compared, of others": ({}, True, None, True),
    "compared, from random weights": ({}, True, ["data=source"], True),
    "compared": ({}, True, ["data=source", "model.pretrained=a/b"], True),
}


@pytest.mark.parametrize("card", [True, False])
def test_a_model_that_says_nothing_is_refused(tmp_path, monkeypatch, data_regression, card):
    monkeypatch.chdir(tmp_path)
    found = {}
    for name, (settings, tokenizer, typed, compare) in CASES.items():
        folder = Path(name)
        folder.mkdir()
        (folder / "config.json").write_text(settings if isinstance(settings, str) else json.dumps(settings))
        if tokenizer:
            (folder / "tokenizer_config.json").touch()
        if card:
            (folder / "README.md").touch()
        try:
            saved_model.check_talks(folder, None if typed is None else job(*typed, overrides=typed), compare)
            found[name] = "talks"
        except Refusal as refusal:
            found[name] = str(refusal)
    data_regression.check(found)
