"""What a run leaves to be used: its model where weights were trained further, the card, and the command to type."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest
import transformers
import yaml
from chat import CHATML, save_tokenizer
from conftest import compose

from legroom.checkpoint import base_card
from legroom.cli import brief, export

BASE = "model.pretrained=someone/model"


@pytest.fixture(scope="module")
def base(train):
    return train("model=gpt2_tiny", "model.vocab=257", "data=source", "save.final=true", "measure.ledger=false").folder


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    file = tmp_path_factory.mktemp("talks") / "private.jsonl"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "zz"}]
    file.write_text(f"{json.dumps({'messages': messages})}\n" * 3)
    return file


@pytest.mark.parametrize(
    ("words", "final"),
    [
        ([BASE, "data=source"], True),
        ([BASE, "data=source", "save.final=false"], False),
        ([BASE, "data=source", "recipe=estimate"], False),
        ([BASE], False),  # random ids
        (["data=source", "model=gpt2_tiny"], False),
        (["data=source", "model=gpt2_tiny", "save.final=true"], True),
    ],
)
def test_weights_that_were_trained_further_are_saved(words, final):
    assert compose(*words).record.config["save"]["final"] is final


def test_a_run_from_random_weights_keeps_its_key():
    assert compose().record.config_key == compose("save.final=false").record.config_key


def test_a_sweep_saves_no_model_and_says_so_once(command, base, talks):
    words = [f"model.pretrained={base}/model", "data=chat", f"data.path={talks}", "train.max_steps=1", "device=cpu"]
    words += ["data.seq_len=32", "batch.per_device=1", "recipe=accelerate", "measure.ledger=false"]
    swept = command("-m", "hydra.sweep.dir=sweep", *words, "optim=adamw,sgd")
    assert swept.code == 0 and swept.out.count("save.final=true") == 1
    again = command("-m", "hydra.sweep.dir=sweep", *words, "optim=adamw", "save.final=false")
    assert again.code == 0 and "save.final=true" not in again.out
    run = command(*words, "hydra.run.dir=run")
    assert run.code == 0
    assert run.out.splitlines()[-2].split() == ["Model:", "run/model"]
    assert run.out.splitlines()[-1].endswith("chat.py run")


def test_a_summary_ends_with_how_to_save_the_model(train):
    run = train("model=gpt2_tiny", "train.max_steps=1", "measure.ledger=false")
    assert "save.final=true" in brief.brief(run.record, run.folder).splitlines()[-1]


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_the_card_is_true_and_names_no_folder(train, base, talks, adapter):
    pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    words = [f"model.pretrained={base}/model", "data=chat", f"data.path={talks}", f"adapter={adapter}"]
    run = train(*words, "data.eval_fraction=0.4", "measure.ledger=false", "batch.per_device=1")
    card = (run.folder / "model" / "README.md").read_text()
    assert str(base.parent) not in card and "private" not in card
    assert "More Information" not in card
    for true in (
        f"adapter={adapter}",
        "data.path=...",
        "1 rows to train on",
        f"{run.record.training.final_loss}",
        f"{run.record.evaluation.loss}, 2 samples",
        "loss is on: answers",
        "chat.py FOLDER",
        "transformers 5",
    ):
        assert true in card, true
    assert ("an adapter (lora)" in card) == (adapter == "lora")


def test_an_id_of_the_hub_stands_in_the_card():
    from legroom.records import model_card

    outcome = compose(BASE, "data=hub", "data.path=someone/talks", "data.task=chat", "adapter=lora").record
    card = model_card.text(outcome, 7, {})
    assert "base_model: someone/model" in card and "data.path=someone/talks" in card and "7 rows" in card
    assert "Licence of the base: not known" in card and "\nlicense:" not in card


CARD = """---
license: other
license_name: someone-2
license_link: LICENSE.md
language: [en, de]
tags: [of_the_base]
---
The base.
"""


def matter(card: str) -> dict:
    return yaml.safe_load(card.split("---")[1])


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_licence_and_languages_are_those_of_the_base(train, base, talks, tmp_path, adapter):
    shutil.copytree(base / "model", tmp_path / "base")
    (tmp_path / "base/README.md").write_text(CARD)
    words = [f"model.pretrained={tmp_path}/base", "data=chat", f"data.path={talks}", f"adapter={adapter}"]
    run = train(*words, "data.seq_len=32", "save.final=true", "measure.ledger=false")
    found = [run.folder / "model"]
    if adapter == "lora":
        assert export.main([str(run.folder), "--merge"]) == 0
        found.append(run.folder / "merged")
    for folder in found:
        card = (folder / "README.md").read_text()
        kept = {"license": "other", "license_name": "someone-2", "license_link": "LICENSE.md", "language": ["en", "de"]}
        assert matter(card).items() >= kept.items() and matter(card)["tags"] == ["legroom"]
        assert "- Licence of the base: other, someone-2, LICENSE.md\n- Languages of the base: en, de\n" in card


@pytest.mark.parametrize("front", ["license: [1, 2]\nlanguage: {a: b}", "license: [", "just text"])
def test_a_card_of_the_base_that_says_nothing_usable_is_left_alone(tmp_path, front):
    (tmp_path / "README.md").write_text(f"---\n{front}\n---\n")
    assert base_card.read(str(tmp_path)) == {}
    assert base_card.read(str(tmp_path / "README.md")) == {} and base_card.read(None) == {}


def test_a_classifier_is_used_by_a_line_of_python(train, tmp_path):
    """That of an adapter stands in the card: it opens the base with the classes of the training, and their names."""
    pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    file = tmp_path / "texts.csv"
    file.write_text("text,label\n" + "".join(f"day {kind},{kind}\n" for kind in ("good", "bad", "odd") * 2))
    words = ["data=text", f"data.path={file}", "data.eval_fraction=0", "measure.ledger=false", "model.classes=3"]
    whole = train("model=bert_tiny", *words, "save.final=true")
    namespace: dict = {"print": lambda found: namespace.update(found=found)}
    line = brief.brief(whole.record, whole.folder).splitlines()[-1].partition("Use it: ")[2]
    python, flag, code = shlex.split(line)
    assert (python, flag) == ("python", "-c")
    exec(code, namespace)
    assert namespace["found"][0]["label"] in ("good", "bad", "odd")
    texts = train("model=gpt2_tiny", "model.vocab=257", "data=source", "save.final=true", "measure.ledger=false")
    words += [f"model.pretrained={texts.folder}/model", "data.task=classification", "adapter=lora"]
    beside = train(*words)
    assert brief.brief(beside.record, beside.folder).splitlines()[-1].endswith("README.md shows")
    code = (beside.folder / "model" / "README.md").read_text().rpartition("```\nfrom")[2].partition("```")[0]
    code = code.replace("BASE", f"{texts.folder}/model").replace("FOLDER", f"{beside.folder}/model")
    namespace.pop("found")
    exec("from" + code, namespace)
    assert namespace["found"][0]["label"] in ("good", "bad", "odd")


@pytest.mark.parametrize("task", ["classification", "question_answering"])
def test_a_model_without_a_pipeline_is_called_by_the_lines_of_its_card(train, tmp_path, task):
    words = ["data=dummy"]
    if task == "question_answering":
        row = {"question": "who", "context": "it was me", "answers": {"text": ["me"], "answer_start": [7]}}
        (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 4)
        words = ["data=text", f"data.path={tmp_path}/rows.jsonl", f"data.task={task}", "data.eval_fraction=0"]
    run = train("model=bert_tiny", *words, "save.final=true", "train.max_steps=1", "measure.ledger=false")
    assert brief.brief(run.record, run.folder).splitlines()[-1].endswith("README.md shows")
    code = (run.folder / "model" / "README.md").read_text().rpartition("```\n")[0].rpartition("```\n")[2]
    namespace: dict = {"print": lambda made: namespace.update(made=made)}
    exec(code.replace("FOLDER", f"{run.folder}/model"), namespace)
    assert "logits" in "".join(namespace["made"])


# --- where an answer ends ------------------------------------------------------------------------------


ANSWERED = {"do_sample": False, "temperature": 0.6, "eos_token_id": [0, 7]}  # transformers warns of the second


@pytest.fixture(scope="module")
def ends_texts(tmp_path_factory):
    """A model whose end of a text is not the end of a turn in its chat template."""
    folder = save_tokenizer(tmp_path_factory.mktemp("base"), CHATML)
    config = transformers.AutoConfig.for_model("gpt2", vocab_size=264, n_layer=1, n_embd=32, n_head=2, n_inner=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(ANSWERED))
    return folder


def says(run):
    """What generation_config.json of a run's model says, and whether the run said that it has changed it."""
    found = transformers.GenerationConfig.from_pretrained(run.folder / "model")
    return found, any("generation_config.json" in line for line in run.record.warnings)


SMALL_RUN = ["train.max_steps=1", "device=cpu", "data.seq_len=32", "measure.ledger=false", "save.final=true"]


@pytest.mark.parametrize("words", [[], ["adapter=lora"], ["adapter=lora", "save.merge=true"]], ids=" ".join)
def test_a_model_of_conversations_stops_where_its_template_ends_an_answer(train, ends_texts, talks, words):
    if words:
        pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    run = train(f"model.pretrained={ends_texts}", "data=chat", f"data.path={talks}", *SMALL_RUN, *words)
    turn = transformers.AutoTokenizer.from_pretrained(ends_texts).convert_tokens_to_ids("<|im_end|>")
    found, said = says(run)
    assert found.eos_token_id == [0, 7, turn] and said
    card = (run.folder / "model" / "README.md").read_text()
    assert ("GenerationConfig.from_pretrained" in card) == (words == ["adapter=lora"]), "generate has to be given it"
    namespace: dict = {"print": lambda made: namespace.update(made=made)}
    exec(card.rpartition("\n```")[0].rpartition("```\n")[2].replace("FOLDER", f"{run.folder}/model"), namespace)
    assert namespace["made"][-1]["role"] == "assistant"
    if words == ["adapter=lora"]:
        assert export.main([str(run.folder), "--merge", "--device", "cpu"]) == 0
        found = transformers.GenerationConfig.from_pretrained(run.folder / "merged")
        assert found.eos_token_id == [0, 7, turn]
    assert words == ["adapter=lora"] or found.temperature == 0.6, "the rest is as the base had it"


@pytest.mark.parametrize("words", [[], ["adapter=lora", "save.merge=true"]], ids=" ".join)
def test_a_model_of_texts_stops_where_its_base_did(train, ends_texts, tmp_path, words):
    if words:
        pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    (tmp_path / "text.txt").write_text("a text\n" * 20)
    words = ["data=text", f"data.path={tmp_path}/text.txt", *words]
    found, said = says(train(f"model.pretrained={ends_texts}", *SMALL_RUN, *words))
    assert found.eos_token_id == [0, 7] and found.temperature == 0.6 and not said
