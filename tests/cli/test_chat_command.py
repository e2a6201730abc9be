"""A trained model answers (`chat`), beside its base too, and is exported; what cannot be is refused in a line."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import pipeline

from legroom.checkpoint import merged
from legroom.cli import chat
from legroom.cli import export as export_command
from legroom.cli.commands import answered
from legroom.records import record_file

TEXT = ("model=gpt2_tiny", "model.vocab=257", "data=source", "data.samples=8", "save.final=true")


@pytest.fixture
def talk(monkeypatch, capsys):
    """talk(folder, *arguments, lines=()) -> (exit code, what was printed, what was printed to stderr)."""

    def talk(folder, *arguments: str, lines=("What is 7?",)):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = answered(chat.main, [str(folder), "--device", "cpu", "--tokens", "4", *arguments])
        return code, *capsys.readouterr()

    return talk


@pytest.fixture(scope="module")
def base(train):
    """A model that continues texts: its tokenizer has no chat template."""
    return train(*TEXT).folder


@pytest.fixture(scope="module", params=["adapter=lora", "adapter=qlora"])
def tuned(train, base, request, tmp_path_factory):
    """An adapter on that model, trained on conversations until it only says one word."""
    pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    talks = tmp_path_factory.mktemp("talks") / "talks.jsonl"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "zzzz"}]
    talks.write_text(json.dumps({"messages": messages}) + "\n" + json.dumps({"messages": messages}) + "\n")
    words = [f"model.pretrained={base}/model", "data=chat", f"data.path={talks}", "data.eval_fraction=0"]
    words += [request.param, "save.final=true", "train.max_steps=30", "train.learning_rate=0.05"]
    return train(*words, "measure.ledger=false").folder


def test_adapter_answers_as_trained(talk, tuned, base, tmp_path):
    code, out, _ = talk(tuned, "--compare", lines=("a", "/new", "a"))
    first, second = out.split("[trained]\n")[1:]
    assert code == 0 and out.startswith(f"[{base}/model]")
    assert first.splitlines()[0] == "zzzz" == second.splitlines()[0], "it learned one answer"
    assert "zzzz" not in out.split("[trained]")[0], "the base did not"
    assert talk(tuned / "model", lines=("a",))[1].strip() == "zzzz"  # the run's record is found beside it
    if "qlora" in record_file.read(tuned).config["adapter"]["name"]:
        alone = shutil.copytree(tuned / "model", tmp_path / "alone")
        assert "\nNote: " in "\n" + talk(alone, lines=("a",))[1], "nobody says that the base is in 4 bits"


def test_without_template_the_text_continues(talk, base):
    code, out, _ = talk(base, lines=("def ",))
    assert code == 0 and out
    for arguments, word in ((["--compare"], "pretrained"), (["--system", "Be kind."], "template")):
        code, _, err = talk(base, *arguments)
        assert code == 2 and word in err and err.count("refused: ") == 1


REFUSED = [
    (("chat", "latest"), "latest is no folder"),
    (("export", "latest", "--merge"), "latest is no folder"),
    (("chat", "~nobody-of-this-name/run"), "~nobody-of-this-name/run is no folder"),
    (("chat", "classifier"), "classifies texts"),
    (("chat", "whole", "--compare"), "what it was before"),
    (("export", "whole", "--merge"), "Use it as it is: python scripts/chat.py whole"),
    (("export", "masked", "--merge"), "Use it as it is: with transformers"),
    (("chat", "masked"), "writes no texts"),
]


def test_refused_before_imports(tmp_path):
    kinds = {"classifier": "BertForSequenceClassification", "whole": "GPT2LMHeadModel", "masked": "BertForMaskedLM"}
    for folder, kind in kinds.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps({"architectures": [kind]}))
        (tmp_path / folder / "tokenizer_config.json").write_text("{}")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"task_type": "SEQ_CLS"}))
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "adapter")  # of the base, as it is saved
    code = "import sys\nfrom legroom.cli.commands import run\n"
    for (command, *arguments), _ in REFUSED:
        code += f"print(run({command!r}, {arguments}), 'torch' in sys.modules, flush=True)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["2 False"] * len(REFUSED), done.stderr
    refusals = [line for line in done.stderr.splitlines() if line.startswith("refused: ")]
    assert len(refusals) == len(REFUSED)
    for (words, said), refusal in zip(REFUSED, refusals):
        assert said in refusal, words


@pytest.mark.parametrize("ended", [EOFError, KeyboardInterrupt])
@pytest.mark.parametrize("asks", [True, False])
def test_prompt_gets_its_own_line(monkeypatch, capsys, ended, asks):
    def end(prompt):
        raise ended

    monkeypatch.setattr("builtins.input", end)
    chat.talk(SimpleNamespace(heading="Talk."), asks)  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().out.endswith("ends.\n\n") is asks


def test_models_that_cannot_talk_are_refused(talk, train, tmp_path):
    dummy = train("model=gpt2_tiny", "save.final=true").folder
    classifier = train("model=bert_tiny", "save.final=true", "train.max_steps=1").folder
    unsaved = train("model=gpt2_tiny", "train.max_steps=1").folder
    for folder, word in (
        (dummy, "model=gpt2_tiny recipe=accelerate data=source save.final=true"),
        (classifier, "README.md shows how"),
        (unsaved, "train.max_steps=1 recipe=accelerate save.final=true"),
        (tmp_path, "no run"),
        (tmp_path / "missing", "no folder"),
    ):
        code, _, err = talk(folder)
        assert code == 2 and word in err and err.count("refused: ") == 1, (folder, err)


def test_folder_of_runs_names_the_best(talk, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, loss in (("a", 2.0), ("b", 1.0), ("c", None)):
        (tmp_path / "s" / name).mkdir(parents=True)
        found = record_file.read(base)
        found.training.final_loss, found.evaluation = loss, None
        found.overrides = ["data=source", f"train.seed={name}"]
        record_file.write(found, tmp_path / "s" / name)
    code, _, err = talk("s")
    assert code == 2 and err.rstrip().endswith("train.py data=source train.seed=b save.final=true"), err
    for name in "ac":
        (tmp_path / "s" / name / "model").mkdir()
    code, _, err = talk("s")
    assert code == 2 and "chat.py s/a --device cpu --tokens 4; others with a model: s/c" in err
    (tmp_path / "outputs/day").mkdir(parents=True)
    (tmp_path / "s/a").rename(tmp_path / "outputs/day/time")
    assert "chat.py outputs/day/time --device cpu" in talk("latest")[2], "the newest model"
    (tmp_path / "s/c/checkpoints/step-00000002").mkdir(parents=True)
    code, _, err = talk("s/c")
    assert "train.py data=source train.seed=c resume=latest save.final=true hydra.run.dir=s/c" in err
    found.recipe, found.overrides = "estimate", ["recipe=estimate", "gpu=l4_24gb", "data=source"]
    record_file.write(found, tmp_path / "s/b")
    assert talk("s/b")[2].rstrip().endswith("train.py data=source save.final=true")


def test_unknown_slash_command_is_not_sent(monkeypatch, capsys):
    lines, sent = ["/help", "/clear all", "/usr/bin is a path", " /help", "/quit"], []
    monkeypatch.setattr("builtins.input", lambda prompt: lines.pop(0))
    chat.talk(SimpleNamespace(answer=sent.append), False)  # pyright: ignore[reportArgumentType]
    assert sent == ["/usr/bin is a path", " /help"] and capsys.readouterr().err.count("/new begins again") == 2


def test_checkpoint_says_how_to_save_the_model(talk, tmp_path):
    (tmp_path / "checkpoints/step-00000002").mkdir(parents=True)
    code, _, err = talk(tmp_path)
    assert code == 2 and "resume=latest" in err and err.count("refused: ") == 1
    (tmp_path / "result.json").write_text("{")
    code, _, err = talk(tmp_path)
    assert code == 2 and "result.json" in err and err.count("refused: ") == 1


@pytest.mark.parametrize("words", [["--tokens", "0"], ["--temperature", "-1"], ["--temperature", "nan"]])
def test_invalid_numbers_are_refused(talk, tmp_path, words, capsys):
    with pytest.raises(SystemExit) as ended:
        chat.main([str(tmp_path), *words])
    assert ended.value.code == 2 and words[0] in capsys.readouterr().err


def test_settings_of_the_base_are_not_used(talk, base, tmp_path):
    """Beams cannot be shown as they are made; XLNet's -1 is no limit."""
    shutil.copytree(base / "model", tmp_path / "model")
    settings = {"do_sample": True, "temperature": 0.6, "num_beams": 2, "eos_token_id": 0}
    (tmp_path / "model/generation_config.json").write_text(json.dumps(settings))
    code, out, _ = talk(tmp_path / "model", "--temperature", "1")
    assert code == 0 and out


# --- export ------------------------------------------------------------------------------------------


@pytest.fixture
def export(capsys):
    """export(*arguments) -> (exit code, what was printed, what was printed to stderr)."""

    def run(*arguments):
        return answered(export_command.main, [str(each) for each in arguments]), *capsys.readouterr()

    return run


def test_merged_adapter_answers_the_same(talk, export, train, tuned, tmp_path):
    target, found = tmp_path / "whole", record_file.read(tuned)
    code, out, _ = export(tuned, "--merge", "--to", target, "--device", "cpu")
    assert code == 0 and str(target) in out and ("dequantised" in out) == (found.config["adapter"]["name"] == "qlora")
    assert not (target / "adapter_config.json").exists() and not list(tmp_path.glob(".*"))
    assert talk(target, lines=("a",))[1].strip() == "zzzz"
    card = (target / "README.md").read_text()
    assert "the whole model" in card and "2 rows" in card and "library_name: transformers" in card
    again = [word for word in found.overrides if not word.startswith(("save.", "device="))]
    written = load_file(train(*again, "save.final=true", "save.merge=true").folder / "model/model.safetensors")
    ours = load_file(target / "model.safetensors")
    assert ours.keys() == written.keys() and all(torch.equal(ours[name], written[name]) for name in ours)
    for arguments, word in (([tuned, "--to", target], "exists"), ([target], "already")):
        code, _, err = export(*arguments, "--merge")
        assert code == 2 and word in err and err.count("refused: ") == 1


def test_different_merged_model_is_removed(export, tuned, tmp_path, monkeypatch):
    monkeypatch.setattr(merged, "_with_adapter", lambda layer, weight: weight)  # the adapter is forgotten
    code, out, err = export(tuned, "--merge", "--to", tmp_path / "whole", "--device", "cpu")
    assert code == 2 and "other logits" in err and not list(tmp_path.iterdir()), out


def test_adapter_of_a_classifier_is_merged(export, train, base, tmp_path):
    pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    file = tmp_path / "texts.csv"
    file.write_text("text,label\n" + "".join(f"day {kind},{kind}\n" for kind in ("good", "bad", "odd") * 2))
    words = ["data=text", f"data.path={file}", "data.eval_fraction=0", "measure.ledger=false", "model.classes=3"]
    words += [f"model.pretrained={base}/model", "data.task=classification", "adapter=lora", "train.max_steps=2"]
    folder = train(*words).folder
    code, out, err = export(folder, "--merge", "--to", tmp_path / "whole", "--device", "cpu")
    assert code == 0 and "chat" not in out, err
    answered = pipeline("text-classification", model=str(tmp_path / "whole"), device="cpu")("day good")
    assert answered[0]["label"] in ("good", "bad", "odd")
