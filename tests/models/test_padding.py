"""Rows of different lengths: what the loss and the gradients are does not depend on how much padding stands behind."""

from __future__ import annotations

import functools

import pytest
import tiny
import torch

from legroom.compat import transformers_models_private
from legroom.data import collate
from legroom.data.dataset import Data
from legroom.models import architectures, behaviour

TASK = "language_modelling"
LENGTHS = (24, 6, 9, 3)
QUICK = {
    *("deepseek_v3", "falcon", "gemma2", "gpt2", "gpt_oss", "granitemoe", "llama", "mamba", "mixtral", "olmoe"),
    *("opt", "phimoe", "qwen2_moe", "qwen3_5_text", "qwen3_moe"),
}
ROUTED = ("gpt_oss", "granitemoe", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe")  # with a balancing loss
NOT_TRAINED = {  # with rows of these lengths, by transformers itself
    "git": "its loss leaves out as many positions as an image has",
    "hrm_text": "its tiny model has too few levels",
    "reformer": "it trains on rows of one length alone",
    "xlstm": "its chunks have lengths of their own",
}
KINDS = sorted(tiny.NAMES[TASK])


def model_of(kind: str, **values):
    """A tiny model that trains without dropout and noise."""
    config = tiny.tiny_model(kind, TASK).config
    for part in (config, config.get_text_config()):
        random = [name for name in vars(part) if any(word in name for word in ("drop", "jitter", "noise"))]
        for name in random:
            if isinstance(getattr(part, name), float):
                setattr(part, name, 0.0)
        part.use_cache = False
    for name, value in values.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = architectures.AUTO_CLASSES[TASK].from_config(config)
    architectures.set_special_ids(model.config, 0, TASK)
    return model.train()


@functools.cache
def token_ids() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(8, 60, (length,), generator=generator) for length in LENGTHS]


def batch_of(model, columns: int, mask: bool | None = None) -> dict[str, torch.Tensor]:
    """The rows as Legroom gives them to this model, with so many columns. mask: typed here instead."""
    padding = collate.Padding(columns, columns, 0, with_mask=bool(mask))
    data = Data(TASK, None, None, padding, vocab=64)
    if mask is None:
        behaviour.pad("model", model.config, data, behaviour.of(model.config, TASK))
    return data.collate([{"input_ids": row, "labels": row} for row in token_ids()])


def loss_and_gradients(model, batch):
    model.zero_grad()
    torch.manual_seed(2)  # of what a model draws itself
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def close(one, other) -> bool:
    return bool((one - other).norm() <= 2e-4 * one.norm().clamp(min=1e-6))


@pytest.mark.parametrize("kind", ROUTED)
def test_a_loss_that_balances_experts_counts_no_padding(kind):
    """As transformers computes it with the mask; without one the router's gradient is a third off."""
    model = model_of(kind, output_router_logits=True, router_aux_loss_coef=0.5)
    ours = loss_and_gradients(model, batch_of(model, 24))
    masked = loss_and_gradients(model, batch_of(model, 24, mask=True))
    without = loss_and_gradients(model, batch_of(model, 24, mask=False))
    assert torch.equal(ours[0], masked[0]) and torch.equal(ours[1], masked[1])
    assert not close(masked[1], without[1])


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_padding_changes_neither_loss_nor_gradients(kind):
    if kind in NOT_TRAINED:
        pytest.skip(NOT_TRAINED[kind])
    try:
        model = model_of(kind)
    except Exception as error:
        pytest.skip(f"no tiny model: {type(error).__name__}")
    if architectures.model_class(model.config, TASK) is None:
        pytest.skip("architectures.check refuses it")
    found = behaviour.of(model.config, TASK)
    if transformers_models_private.is_encoder(model.config) or not found.is_causal or found.padding != "right":
        pytest.skip("is not trained on padded rows")
    few, many = (loss_and_gradients(model, batch_of(model, columns)) for columns in (24, 40))
    assert close(few[0], many[0]) and close(few[1], many[1])


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_both_recipes_train_with_the_mask(train, tmp_path, recipe):
    """The first loss is that of transformers with the mask of the same rows."""
    from chat import talk, write

    model = model_of("mixtral", output_router_logits=True, router_aux_loss_coef=0.5, vocab_size=264)
    model.save_pretrained(tmp_path / "model")
    path = write(tmp_path / "talks.jsonl", [talk("q" * n, "answer") for n in (1, 9, 20, 33)])
    words = [f"model.pretrained={tmp_path / 'model'}", "data=chat", f"data.path={path}", "data.tokenizer=bytes"]
    words += ["data.eval_fraction=0", "batch.per_device=4", "train.max_steps=1", "data.seq_len=64"]
    run = train(f"recipe={recipe}", *words, "data.train_on=all", "data.samples=null")
    texts = [f"user:\n{'q' * n}\n\nassistant:\nanswer\0\n\n" for n in (1, 9, 20, 33)]
    rows = [torch.tensor([0 if byte == 0 else byte + 1 for byte in text.encode()]) for text in texts]
    batch = collate.Padding(8, 64, 0, with_mask=True)([{"input_ids": row, "labels": row} for row in rows])
    expected = float(model(**batch).loss.detach())  # as in training
    assert run.record.training.losses[0] == pytest.approx(expected, rel=1e-5)
