"""What classes of transformers do with labels, later tokens and padding, and what is trained where they differ.

The truth comes from the saved model itself, as transformers opens it, row by row and with a loss that is written here.
"""

from __future__ import annotations

import copy
import json

import pytest
import tiny
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from conftest import compose, small

from legroom.data import collate, dataset
from legroom.models import architectures, behaviour, shifted_loss
from legroom.models.behaviour import Behaviour

UNSHIFTED = (
    "bart", "mbart", "pegasus", "marian", "blenderbot", "blenderbot-small", "plbart", "bigbird_pegasus", "trocr", "mvp",
    "prophetnet",
)  # fmt: skip


def saved(path, kind: str, task: str, **values):
    """The folder of a tiny model without dropout."""
    config = tiny.tiny_configuration(kind, task)
    for name in [name for name in vars(config) if "drop" in name and isinstance(getattr(config, name), float)]:
        setattr(config, name, 0.0)
    for name, value in values.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    architectures.AUTO_CLASSES[task].from_config(config).save_pretrained(path)
    return path


def word_tokenizer(pad: int = 0):
    """A tokenizer of the words w3 to w59 whose padding has the id `pad`."""
    words = {f"[{n}]": n for n in range(3)} | {f"w{n}": n for n in range(3, 60)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[1]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[1]", pad_token=f"[{pad}]")


@pytest.fixture
def texts(tmp_path):
    """texts(folder, pad) -> what trains a classifier in the folder on texts of 2 to 9 words, evaluated on them all."""

    def words(folder, pad=0):
        word_tokenizer(pad).save_pretrained(folder)
        rows = [{"text": " ".join(f"w{3 + (5 * n + i) % 57}" for i in range(2 + n % 8)), "label": n % 2}
                for n in range(8)]  # fmt: skip
        file = tmp_path / "texts.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [f"model.pretrained={folder}", "data=text", "data.task=classification", f"data.path={file}",
                f"data.eval_path={file}", "data.pad_to_multiple_of=1", "train.learning_rate=0"], rows  # fmt: skip

    return words


def alone(folder, rows) -> float:
    """The mean loss of the rows, each computed by itself."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    total = 0.0
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([[int(word[1:]) for word in row["text"].split()]])
            total += F.cross_entropy(model(input_ids=ids).logits.float(), torch.tensor([row["label"]])).item()
    return total / len(rows)


# --- what is asked --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(behaviour.KNOWN))
def test_the_types_that_are_not_asked_are_as_assumed(kind):
    for task in (task for task, names in tiny.NAMES.items() if kind in names):
        assert behaviour.ask(tiny.tiny_model(kind, task), task) == Behaviour(), task


@pytest.mark.parametrize(
    "kind,task,found",
    [
        *((kind, "language_modelling", Behaviour(shifts_labels=False)) for kind in UNSHIFTED[:-1]),
        ("prophetnet", "language_modelling", Behaviour(shifts_labels=False, padding=None)),
        ("xlnet", "language_modelling", Behaviour(shifts_labels=False, is_causal=False, padding=None)),
        ("cpmant", "language_modelling", Behaviour(shifts_labels=False, is_causal=False, padding=None)),
        ("jetmoe", "language_modelling", Behaviour()),
        ("xlnet", "classification", Behaviour(padding="left")),
        ("fnet", "classification", Behaviour(padding=None)),
        ("t5", "classification", Behaviour()),
    ],
)
def test_a_tiny_model_says_what_its_class_does(kind, task, found):
    before = torch.random.get_rng_state()
    assert behaviour.of(tiny.tiny_configuration(kind, task), task) == found
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["llama4", "qwen3_5"])
def test_the_text_model_of_several_is_asked(kind):
    """Their configuration has one for text inside, which the class of a causal model takes."""
    assert behaviour.of(tiny.tiny_configuration(kind, "language_modelling"), "language_modelling") == Behaviour()


@pytest.mark.parametrize(
    "kind,key,value", [("gemma3_text", "use_bidirectional_attention", True), ("llama", "is_causal", False),
                       ("qwen2", "is_causal", False)],
)  # fmt: skip
def test_a_known_type_that_looks_both_ways_is_asked(kind, key, value):
    """gte-Qwen2's config.json has is_causal=false, by which transformers leaves the causal mask out."""
    config = tiny.tiny_configuration(kind, "language_modelling")
    assert behaviour.of(config, "language_modelling").is_causal
    setattr(config, key, value)
    assert not behaviour.of(config, "language_modelling").is_causal


def test_a_large_configuration_is_asked_in_small():
    config = transformers.BloomConfig(hidden_size=4096, n_layer=30, n_head=32, dtype="bfloat16")
    assert behaviour.of(config, "language_modelling") == Behaviour()


# --- labels ---------------------------------------------------------------------------------------


def next_token_loss(model, ids) -> float:
    """The cross entropy of each token with the logits before it. ids: (B, T)."""
    with torch.no_grad():
        logits = model.eval()(input_ids=ids).logits.float()
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()


@pytest.mark.parametrize("kind", UNSHIFTED)
def test_the_loss_is_that_of_the_next_token(kind):
    model, ids = tiny.tiny_model(kind, "language_modelling"), torch.randint(100, 512, (2, 16))
    expected = next_token_loss(model, ids)
    assert model(input_ids=ids, labels=ids).loss.item() != pytest.approx(expected, rel=1e-3)
    shifted_loss.use_shifted_loss(model)
    assert model(input_ids=ids, labels=ids).loss.item() == pytest.approx(expected, rel=1e-6)
    assert copy.deepcopy(model)(input_ids=ids, labels=ids).loss.item() == pytest.approx(expected, rel=1e-6)
    labels = torch.where(torch.arange(16) < 8, -100, ids)
    assert torch.isfinite(model(input_ids=ids, labels=labels).loss)


def test_both_recipes_and_the_estimate_have_the_same_step(train, tmp_path):
    folder = saved(tmp_path / "bart", "bart", "language_modelling")
    words = [f"model.pretrained={folder}", "data.seq_len=16", "data.samples=2", "save.final=true"]
    runs = [train(f"recipe={recipe}", *words) for recipe in ("accelerate", "trainer")]
    loop, trainer = (run.record for run in runs)
    assert loop.training.losses == trainer.training.losses and loop.evaluation.loss == trainer.evaluation.loss
    rows = dataset.build_data(compose(*small(*words)).cfg, "language_modelling", 512).train
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.stack([row["input_ids"] for row in rows])
    assert loop.training.losses[0] == pytest.approx(next_token_loss(model, ids), rel=1e-5)
    assert any("BartForCausalLM in transformers compares" in line for line in loop.warnings)
    estimated = train("recipe=estimate", *words[:-1]).record
    assert estimated.memory.peak_tensor_bytes == pytest.approx(loop.memory.peak_tensor_bytes, rel=0.01)
    assert any("BartForCausalLM in transformers compares" in line for line in estimated.warnings)
    chunked = train("loss=chunked", *words[:-1]).record
    assert chunked.training.losses == pytest.approx(loop.training.losses, rel=1e-5)
    again = transformers.AutoModelForCausalLM.from_pretrained(runs[0].folder / "model")
    assert type(again) is transformers.BartForCausalLM and again.config.architectures == ["BartForCausalLM"]


@pytest.mark.parametrize("recipe", ["accelerate", "estimate"])
@pytest.mark.parametrize("kind", ["xlnet", "cpmant"])
def test_a_model_that_sees_later_tokens_is_refused(train, tmp_path, kind, recipe):
    folder = saved(tmp_path / kind, kind, "language_modelling")
    message = train(f"model.pretrained={folder}", f"recipe={recipe}", status="refused").record.error.message
    assert "data=dummy" in message and kind in message and "decoder" in message and "\n" not in message


# --- padding --------------------------------------------------------------------------------------


def test_padding_on_the_left():
    padding = collate.Padding(4, 8, 9, with_mask=True, side="left")
    rows = [{"input_ids": torch.tensor(ids), "labels": torch.tensor(1)} for ids in ([1, 2], [3, 4, 5])]
    batch = padding(rows)
    assert batch["input_ids"].tolist() == [[9, 9, 1, 2], [9, 3, 4, 5]] and batch["labels"].tolist() == [1, 1]
    assert batch["attention_mask"].tolist() == [[0, 0, 1, 1], [0, 1, 1, 1]]


@pytest.mark.parametrize("recipe", ["accelerate", "trainer"])
def test_a_head_at_the_last_position_pads_on_the_left(train, tmp_path, texts, recipe):
    folder = saved(tmp_path / "xlnet", "xlnet", "classification", architectures=["XLNetForSequenceClassification"])
    words, rows = texts(folder)
    record = train(*words, f"recipe={recipe}", "eval.batch=8").record
    assert record.evaluation.loss == pytest.approx(alone(folder, rows), rel=1e-5)
    assert any("on the left" in line and "XLNet" in line for line in record.warnings)


@pytest.mark.parametrize("own", [0, 2, -1])
def test_rows_are_padded_with_the_id_that_the_head_looks_for(train, tmp_path, texts, own):
    """The tokenizer pads with 1, and the model's configuration has another id, or one outside the vocabulary."""
    folder = saved(tmp_path / "llama", "llama", "classification", pad_token_id=0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": own}))
    words, rows = texts(folder, pad=1)
    loss = train(*words, "eval.batch=8").record.evaluation.loss
    assert loss == pytest.approx(alone(folder, rows), rel=1e-5)


def test_a_model_that_mixes_padding_in_needs_even_rows(train, tmp_path, texts):
    words, _ = texts(saved(tmp_path / "fnet", "fnet", "classification"))
    message = train(*words, status="refused").record.error.message
    assert "FNetForSequenceClassification" in message and "2 to 9 tokens" in message and "\n" not in message
    assert "data.pad_to_multiple_of=9" in message
    train(*words, "data.pad_to_multiple_of=9")
