"""loss=chunked: the numbers of the standard loss, without whole logits."""

from __future__ import annotations

import types

import pytest
import torch
from conftest import compose, small
from transformers import AutoConfig, AutoModelForCausalLM

from legroom.errors import Refusal
from legroom.levers.loss import apply as chunked_loss

RECIPES = ["trainer", "accelerate"]
SIZES = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=97)
FAMILIES = {
    "llama": dict(SIZES, num_key_value_heads=2),
    "gpt2": dict(n_embd=16, n_layer=2, n_head=4, vocab_size=97, n_positions=32),  # weights tied
    "gemma2": dict(SIZES, num_key_value_heads=2, head_dim=4, final_logit_softcapping=0.3, query_pre_attn_scalar=4),
    "granite": dict(SIZES, num_key_value_heads=2, logits_scaling=3.0),
    "cohere": dict(SIZES, num_key_value_heads=2, logit_scale=0.25),
    "phi": dict(SIZES),  # an output layer with a bias
    "mixtral": dict(SIZES, num_key_value_heads=2, num_local_experts=4, output_router_logits=True),
    "bert": dict(SIZES, is_decoder=True, max_position_embeddings=32),
}


def tiny(family: str):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{"attn_implementation": "eager", **FAMILIES[family]})
    return AutoModelForCausalLM.from_config(config).eval()


def batch() -> dict[str, torch.Tensor]:
    """Two rows of 11 tokens, some of them not to be learned."""
    torch.manual_seed(1)
    ids = torch.randint(5, 97, (2, 11))
    labels = ids.clone()
    labels[0, 7:] = labels[1, :3] = -100
    return {"input_ids": ids, "labels": labels}


def gradients(model, scale: float = 1.0) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss = model(**batch()).loss
    (loss * scale).backward()
    named = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {"loss": loss.detach()} | named


@pytest.mark.parametrize("family, rows", [(family, None) for family in FAMILIES] + [("llama", n) for n in (1, 5, 1000)])
def test_losses_and_gradients_are_those_of_the_standard_loss(family, rows):
    model = tiny(family)
    expected = gradients(model, 3.0)
    logits = model(input_ids=batch()["input_ids"]).logits
    chunked_loss.use_chunked_loss(model, rows)
    found = gradients(model, 3.0)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model(**batch()).loss, expected["loss"], rtol=1e-5, atol=1e-6)
    output = model(**batch())
    assert output.logits is None and "logits" not in output
    torch.testing.assert_close(model(input_ids=batch()["input_ids"]).logits, logits)


def test_frozen_weights_get_no_gradient_and_the_layers_before_them_do():
    model = tiny("llama")
    model.lm_head.weight.requires_grad_(False)
    expected = gradients(model)
    chunked_loss.use_chunked_loss(model, 4)
    found = gradients(model)
    assert "lm_head.weight" not in found and found.keys() == expected.keys()
    torch.testing.assert_close(found["model.norm.weight"], expected["model.norm.weight"], rtol=1e-5, atol=1e-6)


def test_under_autocast_the_cross_entropy_stays_in_32_bits():
    model = tiny("llama")
    with torch.autocast("cpu", torch.bfloat16):
        expected = gradients(model)
        chunked_loss.use_chunked_loss(model, 4)
        found = gradients(model)
    assert found["loss"].dtype == torch.float32
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-5, atol=1e-6)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0.05, atol=2e-3)


def test_no_label_at_all_is_no_number_as_in_the_standard_loss():
    model, empty = tiny("llama"), batch()
    empty["labels"][:] = -100
    chunked_loss.use_chunked_loss(model, None)
    model(**empty).loss.backward()
    assert model(**empty).loss.isnan()
    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())


def test_a_loss_can_be_used_once_and_takes_as_many_labels_as_tokens():
    model = tiny("llama")
    chunked_loss.use_chunked_loss(model, None)
    loss = model(**batch()).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward"):
        loss.backward()
    with pytest.raises(Refusal, match="loss=standard"):
        model(**batch(), logits_to_keep=3)
    with pytest.raises(RuntimeError):
        model(input_ids=batch()["input_ids"], labels=batch()["labels"].fill_(-1))


def test_fp16_does_not_overflow_in_chunks():
    model = tiny("llama")
    model.model.forward = lambda **_: types.SimpleNamespace(
        last_hidden_state=torch.full((2, 11, 16), 9e3),
        **dict.fromkeys(
            ("past_key_values", "cache", "hidden_states", "attentions")
        ),  # cache: from transformers 5.24 on
    )
    chunked_loss.use_chunked_loss(model, None)
    with torch.autocast("cpu", torch.float16):
        model(input_ids=batch()["input_ids"], labels=torch.full((2, 11), 7)).loss.backward()
    assert model.lm_head.weight.grad.isfinite().all() and model.lm_head.weight.grad.abs().max() > 1e3


def test_a_model_that_does_more_with_its_logits_is_refused():
    class Odd(type(tiny("llama"))):
        def forward(self, labels=None, **inputs):
            logits = self.lm_head(self.model(**inputs).last_hidden_state)
            return self.loss_function(logits=logits.softmax(-1), labels=labels)

    model = Odd(tiny("llama").config)
    chunked_loss.use_chunked_loss(model, None)
    with pytest.raises(Refusal, match="softmax.*loss=standard"):
        model(**batch())
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(Refusal, match="Sequential"):
        chunked_loss.use_chunked_loss(model, None)


@pytest.mark.slow_for(
    "model=llama_tiny parallelism=fsdp parallelism.num_processes=2 precision=bf16-accelerate",
    "model=llama_tiny parallelism=fsdp parallelism.num_processes=2 precision=bf16-trainer",
    "model=mixtral_tiny parallelism=ddp parallelism.num_processes=2-accelerate",
    "model=mixtral_tiny parallelism=ddp parallelism.num_processes=2-trainer",
)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "words",
    [
        ["model=llama_tiny", "accumulation=x2"],
        ["model=gpt2_tiny", "checkpointing=full"],
        ["model=mixtral_tiny", "parallelism=ddp", "parallelism.num_processes=2"],
        ["model=llama_tiny", "parallelism=fsdp", "parallelism.num_processes=2", "precision=bf16"],
    ],
    ids=" ".join,
)
def test_a_training_loses_the_same_and_whole_logits_are_gone(train, recipe, words):
    big = ["model.vocab=4096", "train.max_steps=3", "train.schedule=constant"]
    standard, chunked = (
        train(f"recipe={recipe}", *words, *big, *loss).record for loss in ([], ["loss=chunked", "loss.rows=8"])
    )
    tolerance = 2e-3 if "precision=bf16" in words else 1e-5
    assert chunked.training.losses == pytest.approx(standard.training.losses, rel=tolerance)
    assert chunked.evaluation.loss == pytest.approx(standard.evaluation.loss, rel=tolerance)
    if "parallelism=fsdp" not in words:
        assert chunked.memory.peak_tensor_bytes < 0.8 * standard.memory.peak_tensor_bytes
    assert chunked.speed.model_flops_per_step == standard.speed.model_flops_per_step


@pytest.mark.parametrize(
    "words, says",
    [
        (["model=bert_tiny"], "no such model"),
        (["model=llama_tiny", "parallelism=fsdp_tp", "parallelism.num_processes=4"], "parallelism=fsdp,"),
        (["model=llama_tiny", "compile=true"], "compile"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_starts(words, says):
    problems = compose("loss=chunked", *small(*words)).problems
    assert any("loss=chunked" in line and says in line for line in problems), problems


@pytest.mark.parametrize(
    "tokens,width,rows", [(100, 64, 256), (16 * 300, 64, 300), (16 * 300 + 1, 64, 301), (100, 4096, 1024)]
)
def test_a_chunk_has_a_quarter_of_the_width_and_there_are_16_at_most(tokens, width, rows):
    assert chunked_loss.chunk_rows(tokens, width) == rows


def test_logits_that_are_not_computed_have_their_shape():
    deferred = chunked_loss.DeferredLogits(torch.zeros(2, 3, 4), torch.nn.Linear(4, 7))
    assert deferred.shape == (2, 3, 7) and deferred.dtype == torch.float32


@pytest.mark.parametrize(
    "use, named",
    [
        (lambda logits: torch.softmax(logits, -1), "softmax"),
        (lambda logits: logits * torch.ones(7), "a product with a tensor"),
        (lambda logits: torch.ones(7) * logits, "mul"),
        (lambda logits: logits / torch.ones(7), "a division by a tensor"),
        (lambda logits: logits + 1, "a sum"),
        (lambda logits: -logits, "a sum"),
        (lambda logits: logits[:, -1], "indexing"),
        (lambda logits: logits.log_softmax(-1), "log_softmax"),
    ],
)
def test_every_other_use_of_logits_is_refused_by_its_name(use, named):
    with pytest.raises(Refusal, match=f"{named}.*Type loss=standard"):
        use(chunked_loss.DeferredLogits(torch.zeros(2, 3, 4), torch.nn.Linear(4, 7)))


def test_scales_caps_and_casts_of_logits_are_kept_in_their_order():
    deferred = chunked_loss.DeferredLogits(torch.zeros(2, 3, 4), torch.nn.Linear(4, 7))
    after = torch.tanh(2 * deferred / 4).float().to("cpu").to(torch.float16).contiguous().to(dtype=torch.float64)
    made = [(each.name, each.value) for each in after.operations]
    casts = [("cast", dtype) for dtype in (torch.float32, torch.float16, torch.float64)]
    assert made == [("scale", 2), ("scale", 0.25), ("tanh", None), *casts]
    assert deferred.operations == () and not hasattr(after, "nothing_of_a_tensor")
