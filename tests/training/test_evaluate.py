"""eval: after training, the same numbers whatever the batch, and in 16 bits if asked."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import compose

from legroom.records import record
from legroom.training import evaluate

RECIPES = ["trainer", "accelerate"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [{"text": "word " * (1 + n % 6), "label": n % 2} for n in range(14)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["data=text", f"data.path={path}", "data.eval_fraction=0.5"]


@pytest.mark.slow_for("bert_tiny")
@pytest.mark.parametrize("model", ["bert_tiny", "gpt2_tiny"])
def test_the_evaluation_is_a_mean_over_labels_whatever_the_batch(train, texts, model):
    """Seven texts of different lengths: a mean of batches' means would depend on how they fall."""
    found = [train(f"model={model}", *texts, f"eval.batch={batch}").record.evaluation for batch in (1, 2, 7)]
    assert found[0].samples >= 7 or model == "gpt2_tiny"
    for other in found[1:]:
        assert other.loss == pytest.approx(found[0].loss, rel=1e-5)
        assert (other.samples, other.accuracy) == (found[0].samples, found[0].accuracy)


def test_a_classification_has_an_accuracy(train):
    evaluation = train("data.eval_samples=7", "eval.batch=2").record.evaluation
    assert evaluation.samples == 7 and evaluation.perplexity is None and evaluation.seconds > 0
    assert evaluation.accuracy * 7 == pytest.approx(round(evaluation.accuracy * 7)) and 0 <= evaluation.accuracy <= 1


def test_a_language_model_has_a_perplexity(train):
    evaluation = train("model=gpt2_tiny").record.evaluation
    assert evaluation.accuracy is None
    assert evaluation.perplexity == pytest.approx(math.exp(evaluation.loss))


@pytest.mark.parametrize("model", ["bert_tiny", "gpt2_tiny"])
def test_a_loss_that_is_no_number_has_no_score(train, model):
    words = ["train.learning_rate=1e15", "train.on_nan=continue", "train.max_steps=3", "data.eval_samples=4"]
    outcome = train(f"model={model}", *words).record
    assert outcome.evaluation.loss is None and record.quality(outcome.evaluation) == "no score"
    assert (outcome.evaluation.accuracy, outcome.evaluation.perplexity) == (None, None)


@pytest.mark.slow_for(
    "bf16-bf16-accelerate", "bf16-bf16-trainer", "fp16-bf16-accelerate", "fp16-bf16-trainer", "fp16-fp32-trainer"
)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("trained_in", ["fp32", "bf16"])
@pytest.mark.parametrize("option", ["bf16", "fp16"])
def test_a_whole_evaluation_in_16_bits(train, recipe, trained_in, option):
    words = [f"recipe={recipe}", f"precision={trained_in}", "model=gpt2_tiny"]
    plain, short = (train(*words, f"eval.precision={value}").record for value in ("null", option))
    assert short.evaluation.loss == pytest.approx(plain.evaluation.loss, rel=0.02)
    assert short.evaluation.loss != plain.evaluation.loss
    assert short.training.losses == plain.training.losses
    assert short.memory.weights_bytes == 4 * short.memory.parameter_count, "the weights come back in 32 bits"


TINY = {"vocab_size": 40, "pad_token_id": 0}
WIDE = TINY | {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
BUFFERS = {
    "llama": WIDE,
    "gemma3_text": WIDE | {"num_hidden_layers": 6},
    "gptj": TINY | {"n_embd": 32, "n_layer": 1, "n_head": 2, "rotary_dim": 8},
    "ctrl": TINY | {"n_embd": 32, "n_layer": 1, "n_head": 2, "dff": 32},
    "xglm": TINY | {"d_model": 32, "num_layers": 1, "attention_heads": 2, "ffn_dim": 32},
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_evaluation_in_16_bits_rounds_no_buffer(kind):
    """Rotary frequencies stay in 32 bits, where from_pretrained(dtype=torch.bfloat16) has them so."""
    config = transformers.AutoConfig.for_model(kind, **BUFFERS[kind])
    model, loaded = (
        transformers.AutoModelForCausalLM.from_config(config, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    next(reversed(list(model.parameters()))).data = torch.zeros(2, dtype=torch.float16)
    types = [weight.dtype for weight in model.parameters()]
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert any(buffer.is_floating_point() for buffer in before.values())
    accelerator = SimpleNamespace(unwrap_model=lambda model, **_: model)  # the process may have another one's state
    loop = SimpleNamespace(accelerator=accelerator, model=model, optimizer=object())
    with evaluate.evaluating(compose("eval.precision=bf16").cfg, loop):
        inside = dict(model.named_buffers())
        assert {name: each.dtype for name, each in inside.items()} == {
            name: each.dtype for name, each in loaded.named_buffers()
        }
        assert all(torch.equal(each, before[name]) for name, each in inside.items() if each.dtype == torch.float32)
        assert all(weight.dtype == torch.bfloat16 for weight in model.parameters())
    after = dict(model.named_buffers())
    assert all(torch.equal(each, after[name]) and each.dtype == after[name].dtype for name, each in before.items())
    assert [weight.dtype for weight in model.parameters()] == types


def test_an_evaluation_leaves_the_routers_loss_out():
    """A perplexity is of the labels alone; the training goes on with the loss that balances the experts."""
    sizes = WIDE | {"num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 4}
    sizes |= {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("mixtral", **sizes))
    accelerator = SimpleNamespace(unwrap_model=lambda model, **_: model)
    loop = SimpleNamespace(accelerator=accelerator, model=model, optimizer=object())
    ids = torch.arange(16).view(2, 8)
    with evaluate.evaluating(compose().cfg, loop) as forward:
        output = forward(input_ids=ids, labels=ids)
    rows = output.logits[:, :-1].flatten(0, 1)
    assert output.loss.item() == pytest.approx(torch.nn.functional.cross_entropy(rows, ids[:, 1:].flatten()).item())
    assert model.config.output_router_logits and model(input_ids=ids, labels=ids).loss > output.loss + 0.5


def test_evaluation_in_16_bits_with_schedule_free(train):
    words = ["model=gpt2_tiny", "optim=schedule_free"]
    plain, short = (train(*words, f"eval.precision={value}").record for value in ("null", "bf16"))
    assert short.evaluation.loss == pytest.approx(plain.evaluation.loss, rel=0.02)
    assert short.evaluation.loss != plain.evaluation.loss


def test_an_evaluation_in_16_bits_computes_a_chunked_loss_too(train):
    words = ["model=gpt2_tiny", "precision=bf16", "eval.precision=bf16"]
    standard, chunked = (train(*words, f"loss={name}").record for name in ("standard", "chunked"))
    assert chunked.evaluation.loss == pytest.approx(standard.evaluation.loss, rel=1e-3)


def test_there_is_none_without_a_split_or_when_switched_off(train):
    assert train("data.eval_samples=null").record.evaluation is None
    assert train("eval.enabled=false").record.evaluation is None


@pytest.mark.slow_for("trainer")
@pytest.mark.parametrize("recipe", RECIPES)
def test_dropout_is_off_in_the_evaluation(train, recipe):
    """An untrained model with heavy dropout evaluates as one without: nothing was learned."""
    words = [f"recipe={recipe}", "train.learning_rate=0"]
    plain, dropped = (train(*words, f"model.dropout={rate}").record for rate in (0, 0.9))
    assert dropped.evaluation.loss == pytest.approx(plain.evaluation.loss, rel=1e-6)
    assert dropped.training.losses != plain.training.losses
