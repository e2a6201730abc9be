"""Two recipes, one training: held to each other, and both to a bare PyTorch loop written out here.

B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import functools
import json
import math

import pytest
import torch
import transformers
from conftest import compose, small
from torch.nn.functional import cross_entropy

from legroom.records.messages import Shown

RECIPES = ["trainer", "accelerate"]
MODELS = ["bert_tiny", "gpt2_tiny", "llama_tiny"]
SGD = ["optim=sgd", "optim.momentum=0", "train.max_grad_norm=0", "train.learning_rate=0.5"]


@pytest.fixture(scope="module")
def run(train):
    """train, but the same job only once: several tests look at it."""
    return functools.cache(train)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts of different lengths with a label each: padded for a classification, packed for a language model."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [{"text": "a word " * (1 + 3 * n % 5), "label": n % 2} for n in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["data=text", f"data.path={path}", "data.eval_fraction=0"]


# --- the two recipes -------------------------------------------------------------------------------


VARIATIONS = {
    "plain": [],
    "dropout": ["model.dropout=0.1"],
    "checkpointing": ["model.dropout=0.1", "checkpointing=full"],
    "x4, short last step": ["model.dropout=0.1", "accumulation=x4", "data.samples=11"],
    "x2, checkpointing": ["model.dropout=0.1", "accumulation=x2", "checkpointing=full"],
    "weight decay, cosine, warm-up": ["train.weight_decay=0.1", "train.schedule=cosine", "train.warmup_steps=2"],
}


@pytest.mark.slow_for(
    "bert_tiny-checkpointing",
    "bert_tiny-dropout",
    "bert_tiny-plain",
    "bert_tiny-x2, checkpointing",
    "bert_tiny-x4, short last step",
    "gpt2_tiny-x2, checkpointing",
    "gpt2_tiny-x4, short last step",
    "llama_tiny-dropout",
    "llama_tiny-plain",
    "llama_tiny-weight decay, cosine, warm-up",
    "llama_tiny-x2, checkpointing",
    "llama_tiny-x4, short last step",
)
@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_both_recipes_have_the_same_losses_and_memory(run, model, variation):
    told = [f"model={model}", *VARIATIONS[variation], "train.max_steps=5"]  # 8 samples in 2s: more than one epoch
    ours, theirs = (run(f"recipe={recipe}", *told).record for recipe in RECIPES)
    relative = 1e-4 if "x" in variation[:1] else 1e-5
    assert len(ours.training.losses) == 5
    assert ours.training.losses == pytest.approx(theirs.training.losses, rel=relative)
    assert (ours.training.samples, ours.training.tokens) == (theirs.training.samples, theirs.training.tokens)
    assert ours.memory.peak_tensor_bytes == pytest.approx(theirs.memory.peak_tensor_bytes, rel=0.01)
    assert ours.speed.model_flops_per_step == theirs.speed.model_flops_per_step
    assert ours.evaluation.loss == pytest.approx(theirs.evaluation.loss, rel=1e-4)


def test_both_recipes_log_the_same_learning_rates_norms_and_epochs(run):
    told = ["model=bert_tiny", "accumulation=x2", "data.samples=11", "train.max_steps=5", "train.learning_rate=0.01"]
    told += ["train.schedule=linear", "train.warmup_steps=2", "train.max_grad_norm=0.1"]
    ours, theirs = (steps_of(run(f"recipe={recipe}", *told)) for recipe in RECIPES)
    assert ours["epoch"] == theirs["epoch"] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3], abs=1e-6)
    assert ours["learning_rate"] == theirs["learning_rate"] == pytest.approx([0, 0.005, 0.01, 0.02 / 3, 0.01 / 3])
    assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-4)
    assert all(norm > 0.1 for norm in ours["gradient_norm"]), "before clipping"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "words, expected",
    [
        ("train.schedule=wsd train.decay_steps=2 train.warmup_steps=1", [0, 1, 1, 1, 0.5]),
        ("train.schedule=wsd train.decay_steps=2 train.floor=0.5", [1, 1, 1, 1, 0.75]),
        ("train.schedule=wsd", [1, 1, 1, 1, 1]),  # a tenth of five steps is one, which begins at the whole rate
        ("train.schedule=cosine train.floor=0.1", [0.1 + 0.45 * (1 + math.cos(math.pi * n / 5)) for n in range(5)]),
    ],
)
def test_schedules_that_fall_to_a_floor(run, recipe, words, expected):
    told = ["model=bert_tiny", "train.max_steps=5", "train.learning_rate=0.01", *words.split()]
    rates = steps_of(run(f"recipe={recipe}", *told))["learning_rate"]
    assert rates == pytest.approx([0.01 * factor for factor in expected])


@pytest.mark.parametrize("recipe", RECIPES)
def test_without_clipping_no_norm_is_computed(run, recipe):
    assert steps_of(run(f"recipe={recipe}", "train.max_grad_norm=0"))["gradient_norm"] == [None, None]


def rows_of(run) -> list[dict]:
    return [json.loads(line) for line in (run.folder / "steps.jsonl").read_text().splitlines()]


def steps_of(run) -> dict[str, list]:
    """Column -> its values in steps.jsonl."""
    rows = [row for row in rows_of(run) if "loss" in row]
    return {key: [row[key] for row in rows] for key in rows[0]}


@pytest.mark.slow_for("trainer")
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_evaluation_between_steps_changes_no_loss(run, recipe):
    told = [f"recipe={recipe}", "model=gpt2_tiny", "model.dropout=0.1", "train.schedule=constant"]
    whole, short = run(*told, "train.max_steps=5"), run(*told, "train.max_steps=2")
    curve = run(*told, "train.max_steps=5", "eval.every_steps=2")
    assert curve.record.training.losses == whole.record.training.losses
    points = [(row["step"], row["evaluation_loss"]) for row in rows_of(curve) if "evaluation_loss" in row]
    assert [step for step, _ in points] == [2, 4, 5]
    said = [each.text for each in curve.messages if isinstance(each, Shown) and each.of_one_run]
    assert [line.split(",")[0] for line in said] == [f"{n}/5  evaluation loss {loss:.4f}" for n, loss in points[:2]]
    assert points[0][1] == pytest.approx(short.record.evaluation.loss, rel=1e-6)
    assert points[2][1] == pytest.approx(whole.record.evaluation.loss, rel=1e-6)
    assert 0 < curve.record.speed.evaluation_seconds < curve.record.speed.train_seconds


def test_an_evaluation_between_steps_needs_rows_to_evaluate_on(train):
    record = train("eval.every_steps=1", "data.eval_samples=null", status="refused").record
    assert "eval.every_steps=1" in record.error.message and "data.eval_samples=32" in record.error.message


@pytest.mark.slow_for("optim=adam8bit")
@pytest.mark.parametrize(
    "options",
    [["precision=bf16"], ["precision=bf16_pure"], ["optim=adafactor"], ["optim=adamw_fused"], ["optim=adam8bit"]],
    ids=lambda o: o[0],
)
def test_every_lever_means_the_same_in_both_recipes(run, options):
    told = ["model=gpt2_tiny", "model.width=64", *options, "train.max_steps=4"]  # wide enough for 8-bit states
    ours, theirs = (run(f"recipe={recipe}", *told).record for recipe in RECIPES)
    assert ours.training.losses == pytest.approx(theirs.training.losses, rel=1e-5)
    for part in ("parameters", "gradients", "optimizer", "activations"):
        assert getattr(ours.memory, f"{part}_bytes") == pytest.approx(
            getattr(theirs.memory, f"{part}_bytes"), rel=0.01
        ), part
    assert ours.memory.peak_tensor_bytes == pytest.approx(theirs.memory.peak_tensor_bytes, rel=0.01)


@pytest.mark.slow_for("bert_tiny", "gpt2_tiny")
@pytest.mark.parametrize("model", MODELS)
def test_both_recipes_lose_the_same_on_padded_text(run, texts, model):
    told = [f"model={model}", *texts, "model.dropout=0.1", "accumulation=x2", "train.max_steps=4"]
    ours, theirs = (run(f"recipe={recipe}", *told).record for recipe in RECIPES)
    assert ours.training.losses == pytest.approx(theirs.training.losses, rel=1e-4)
    assert (ours.training.samples, ours.training.tokens) == (theirs.training.samples, theirs.training.tokens)


@pytest.mark.parametrize("model", MODELS)
def test_dropout_changes_the_losses(run, model):
    """Or the tests above would compare nothing that is random."""
    plain, dropped = (
        run("recipe=accelerate", f"model={model}", *VARIATIONS[v], "train.max_steps=5").record
        for v in ("plain", "dropout")
    )
    assert plain.training.losses != pytest.approx(dropped.training.losses, rel=1e-5)


@pytest.mark.slow_for(
    "bert_tiny-accelerate", "bert_tiny-trainer", "gpt2_tiny-accelerate", "gpt2_tiny-trainer", "llama_tiny-trainer"
)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_checkpointing_changes_memory_and_no_loss(run, model, recipe):
    told = [
        f"recipe={recipe}",
        f"model={model}",
        "model.layers=3",
        "model.dropout=0.1",
        "model.vocab=256",
        "batch.per_device=8",
        "data.seq_len=64",
    ]
    kept, recomputed = (run(*told, f"checkpointing={option}").record for option in ("none", "full"))
    assert kept.training.losses == pytest.approx(recomputed.training.losses, rel=1e-6)
    assert recomputed.memory.largest_bytes["activations"] < 0.7 * kept.memory.largest_bytes["activations"]
    assert recomputed.speed.model_flops_per_step == kept.speed.model_flops_per_step


@pytest.mark.parametrize("recipe", RECIPES)
def test_max_steps_cycles_the_data_and_keeps_a_short_last_batch(run, recipe):
    training = run(f"recipe={recipe}", "data.samples=5", "train.max_steps=7").record.training
    assert (training.steps, training.samples) == (7, 2 + 2 + 1 + 2 + 2 + 1 + 2)
    assert training.tokens == training.samples * 32


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("accumulation,steps", [("none", 6), ("x2", 4), ("x4", 2)])
def test_epochs_count_the_data_with_its_short_last_step(run, recipe, accumulation, steps):
    training = run(
        f"recipe={recipe}", "data.samples=5", "train.max_steps=null", "train.epochs=2", f"accumulation={accumulation}"
    ).record.training
    assert (training.steps, training.samples) == (steps, 10)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_same_seed_gives_the_same_run_and_another_seed_another(train, recipe):
    told = [f"recipe={recipe}", "model.dropout=0.1"]
    first, again, other = (train(*told, f"train.seed={seed}").record.training.losses for seed in (0, 0, 1))
    assert first == again and first != other


# --- the trap of the summed loss -------------------------------------------------------------------


@pytest.mark.slow_for("llama_tiny-text-accelerate")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "model,data",
    [
        ("bert_tiny", "dummy"),
        pytest.param("bert_tiny", "text", marks=pytest.mark.slow),
        pytest.param("gpt2_tiny", "text", marks=pytest.mark.slow),
        ("llama_tiny", "text"),
    ],
)
def test_four_times_one_is_one_times_four(run, texts, recipe, model, data):
    """Plain SGD without clipping: a loss that is summed, or averaged over unequal parts, takes other steps."""
    told = [f"recipe={recipe}", f"model={model}", *SGD, "train.max_steps=5", *(texts if data == "text" else [])]
    losses = [
        run(*told, f"batch.per_device={batch}", f"accumulation={option}").record.training.losses
        for batch, option in ((4, "none"), (1, "x4"))
    ]
    assert losses[0][0] != pytest.approx(losses[0][-1], rel=1e-3), "the steps change the loss"
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_effective_batch_is_an_accumulation(run, recipe):
    told = [f"recipe={recipe}", *SGD]
    derived = run(*told, "batch.effective=8").record
    assert derived.config["accumulation"]["steps"] == 4
    assert derived.training.losses == run(*told, "accumulation=x4").record.training.losses


# --- outside truth: a bare loop --------------------------------------------------------------------


def bare_model(name: str, dropout: float):
    """The tiny models from transformers' own classes, sizes as in conftest.SMALL."""
    sizes = dict(
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=512,
        max_position_embeddings=64,
    )
    if name == "bert_tiny":
        return transformers.BertForSequenceClassification(
            transformers.BertConfig(**sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        )
    if name == "gpt2_tiny":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_layer=1,
                n_embd=32,
                n_head=2,
                n_inner=64,
                vocab_size=512,
                n_positions=64,
                resid_pdrop=dropout,
                embd_pdrop=dropout,
                attn_pdrop=dropout,
            )
        )
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **sizes | {"num_attention_heads": 4},
            num_key_value_heads=2,
            attention_dropout=dropout,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        )
    )


def bare_losses(cfg, dropout: float, steps: int) -> list[float]:
    """Train on all rows at once, at every step: so neither their order nor how they are split can matter."""
    from legroom.data import dataset

    transformers.set_seed(0)
    task = "classification" if cfg.model.family == "bert" else "language_modelling"
    rows = dataset.build_data(cfg, task, 512)
    batch = rows.collate([rows.train[index] for index in range(len(rows.train))])
    labels = batch.pop("labels")
    model = bare_model(cfg.model.name, dropout).train()
    if cfg.optim.name == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    else:
        groups = [
            {"params": [w for w in model.parameters() if w.dim() > 1], "weight_decay": cfg.train.weight_decay},
            {"params": [w for w in model.parameters() if w.dim() == 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.999), eps=1e-8)
    transformers.set_seed(0)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = cfg.train.learning_rate * (1 - step / steps)
        logits = model(**batch).logits
        if labels.dim() == 1:  # logits (B, classes), labels (B,)
            loss = cross_entropy(logits, labels)
        else:  # logits (B, T, V), labels (B, T): each position predicts the next
            loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        if cfg.train.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.train.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow_for("batch.per_device=2 accumulation=x4-gpt2_tiny-accelerate")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "overrides",
    [
        ["batch.per_device=5", "train.weight_decay=0.1", "checkpointing=full"],
        ["batch.per_device=2", "accumulation=x4"],  # 2 + 2 + 1
        ["batch.per_device=1", "accumulation=x8", *SGD],  # 5 x 1
    ],
    ids=" ".join,
)
def test_a_recipe_is_the_bare_loop(run, recipe, model, overrides):
    told = [f"recipe={recipe}", f"model={model}", *overrides, "data.samples=5", "train.max_steps=4"]
    relative = 1e-4 if "accumulation" in " ".join(overrides) else 1e-5
    expected = bare_losses(compose(*small(*told)).cfg, dropout=0.0, steps=4)
    assert run(*told).record.training.losses == pytest.approx(expected, rel=relative)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_is_the_bare_loop_on_text_of_different_lengths(run, texts, recipe, model):
    told = [
        f"recipe={recipe}",
        f"model={model}",
        *texts,
        *SGD,
        "batch.per_device=2",
        "accumulation=x16",
        "train.max_steps=4",
    ]
    expected = bare_losses(compose(*small(*told)).cfg, dropout=0.0, steps=4)
    assert run(*told).record.training.losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_draws_the_dropout_of_the_bare_loop(run, recipe, model):
    """One sample, so that no order matters: the random numbers begin at the seed when the training begins."""
    told = [
        f"recipe={recipe}",
        f"model={model}",
        "data.samples=1",
        "batch.per_device=1",
        "model.dropout=0.1",
        "train.max_steps=4",
    ]
    expected = bare_losses(compose(*small(*told)).cfg, dropout=0.1, steps=4)
    assert run(*told).record.training.losses == pytest.approx(expected, rel=1e-5)


# --- learning --------------------------------------------------------------------------------------


@pytest.mark.slow_for("trainer")
@pytest.mark.parametrize("recipe", RECIPES)
def test_real_text_is_learned(train, recipe):
    """Done when, 3, at a smaller size: the loss falls by a third or more."""
    record = train(
        f"recipe={recipe}",
        "data=source",
        "model=gpt2_tiny",
        "model.layers=2",
        "model.width=64",
        "data.samples=160",
        "batch.per_device=4",
        "train.max_steps=40",
    ).record
    assert record.training.final_loss < record.training.losses[0] * 2 / 3
    assert record.evaluation.loss < record.training.losses[0] * 2 / 3
