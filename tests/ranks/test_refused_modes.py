"""Models that ranks cannot share out: refused in words, each where it is first known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers

from legroom.errors import Refusal
from legroom.parallelism import context, experts, fsdp, pipeline

LM = "language_modelling"
SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4)
LLAMA = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
MIXTRAL = transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4)


def changed(config, **values):
    return type(config)(**(config.to_dict() | values))


ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    "size,config,task,said",
    [
        (2, LLAMA, LM, None),
        (4, changed(LLAMA, num_key_value_heads=4), LM, None),
        (4, LLAMA, LM, "parallelism.context=4 does not divide the 2 key and value heads of x. Change it."),
        (3, LLAMA, LM, "does not divide the 4 heads of x"),
        (2, LLAMA, "classification", "the task here is classification. Leave it out."),
        (2, changed(LLAMA, rope_parameters=ROPE), LM, r"rotary positions by a row's length (dynamic), which no rank"),
        (2, transformers.BloomConfig(), LM, "models of type bloom were not seen to compute the same"),
        (2, changed(MIXTRAL, output_router_logits=True), LM, "routers' loss of x (output_router_logits) is of whole"),
    ],
)
def test_a_model_whose_rows_cannot_be_shared_out_is_refused(size, config, task, said):
    if said is None:
        return context.check(size, "x", config, task)
    with pytest.raises(Refusal) as caught:
        context.check(size, "x", config, task)
    assert str(caught.value).startswith(f"parallelism.context={size}") and said in str(caught.value)


@pytest.mark.parametrize(
    "config,task,said",
    [
        (LLAMA, LM, None),
        (MIXTRAL, LM, None),
        (LLAMA, "classification", "the task here is classification. Type parallelism=fsdp."),
        (changed(MIXTRAL, output_router_logits=True), LM, "the routers' loss of x (output_router_logits) is of all"),
        (transformers.BloomConfig(), LM, "models of type bloom were not seen"),
    ],
)
def test_a_model_that_cannot_be_split_into_parts_is_refused(config, task, said):
    if said is None:
        return pipeline.check("x", config, task)
    with pytest.raises(Refusal) as caught:
        pipeline.check("x", config, task)
    assert str(caught.value).startswith("parallelism=pipeline") and said in str(caught.value)


def llama(**values):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(changed(LLAMA, **values))


# --- context ---------------------------------------------------------------------------------------


def test_attention_with_whole_masks_is_refused():
    with pytest.raises(Refusal, match="model.attention=eager, the one that LlamaForCausalLM has here"):
        context.share_out(llama(attn_implementation="eager"), SimpleNamespace())


# --- weights ---------------------------------------------------------------------------------------


def test_experts_are_shared_out_evenly_or_not_at_all():
    model = transformers.MixtralForCausalLM(MIXTRAL)
    with pytest.raises(Refusal, match="parallelism.experts=3 does not divide the 4 experts of a layer. Change it."):
        experts.split(model, 3, 6, "cpu", {})
    with pytest.raises(Refusal, match="experts=2: transformers has no plan for experts of LlamaForCausalLM"):
        experts.split(llama(), 2, 4, "cpu", {})


def test_a_model_without_a_plan_is_not_split():
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2))
    for what, model in (("all", bloom), ("experts", llama())):
        with pytest.raises(Refusal, match=f"no plan for parallelism.split={what} of {type(model).__name__}. Choose"):
            fsdp.split(model, None, what)
