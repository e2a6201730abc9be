"""Models that ranks cannot share out: refused in words, each where it is first known."""

from __future__ import annotations

import types

import pytest
import torch
import transformers
from torch import nn

from legroom.errors import Refusal
from legroom.parallelism import context, experts, four_bits, fsdp, pipeline

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


def test_more_parts_than_layers_are_refused():
    """Of pretrained weights nothing was known before."""
    part = object.__new__(pipeline.Pipeline)
    part.count = 3
    with pytest.raises(Refusal, match="^2 layers cannot be split into 3 parts. Type parallelism.stages=2 or fewer"):
        part._split(llama(num_hidden_layers=2))


def test_micro_batches_are_padded_alike_and_what_cannot_be_sent_is_refused():
    rows = [{"input_ids": torch.ones(n, t).long(), "labels": torch.ones(n, t).long()} for n, t in ((2, 3), (1, 5))]
    joined = pipeline._joined(rows)
    assert joined["input_ids"].shape == joined["labels"].shape == (4, 5)
    assert [int((row != -100).sum()) for row in joined["labels"]] == [3, 3, 5, 0], "a row is repeated without labels"
    with pytest.raises(Refusal, match="it is not known how to send pixels, token_type_ids.$"):
        pipeline._joined([rows[0] | {"token_type_ids": rows[0]["labels"], "pixels": rows[0]["labels"]}])


# --- context ---------------------------------------------------------------------------------------


@pytest.fixture
def cut():
    """cut(model) -> what the parts of a model know of whole rows, on the second of two ranks that are not there."""
    made = []

    def cut(model, layers: int = 1):
        group = types.SimpleNamespace(size=lambda: 2, rank=lambda: 1)
        made.append(context.Cut(group, layers))  # type: ignore[arg-type]
        context._CUTS.update(dict.fromkeys(model.modules(), made[-1]))
        return made[-1]

    yield cut
    context._running.clear()


def test_an_attention_that_makes_a_whole_mask_is_refused_before_any_group_is_made():
    with pytest.raises(Refusal, match="model.attention=eager, the one that LlamaForCausalLM has here"):
        context.share_out(llama(attn_implementation="eager"), 2)


def test_the_second_rank_has_the_second_half_of_rows_and_of_shifted_labels(cut):
    model, ids = llama(), torch.arange(10).reshape(2, 5)
    own = cut(model)
    _, given = context._before_forward(model, (), {"input_ids": ids, "labels": ids, "attention_mask": ids >= 0})
    assert given["input_ids"].tolist() == [[3, 4, 0], [8, 9, 0]] and given["position_ids"].tolist() == [[3, 4, 5]]
    assert given["labels"].tolist() == [[4, -100, -100], [9, -100, -100]] and given["attention_mask"] is None
    assert float(own.labels) == 8 / 2 and own.tokens == 6 and own.mask.tolist() == [[True] * 5 + [False]] * 2
    assert context._before_forward(model, (), {"input_ids": ids}) is None and not own.active


def test_tensors_that_are_not_of_rows_are_refused(cut):
    model, ids = llama(), torch.ones(1, 4).long()
    cut(model)
    with pytest.raises(Refusal, match="it is not known how to share out token_type_ids. Leave it out"):
        context._before_forward(model, (), {"input_ids": ids, "labels": ids, "token_type_ids": ids})


def test_a_model_that_computes_something_in_its_own_way_is_refused_after_the_first_pass(cut):
    model, ids = llama(), torch.ones(1, 4).long()
    own = cut(model, layers=3)
    context._before_forward(model, (), {"input_ids": ids, "labels": ids})
    own.attended = 3
    with pytest.raises(Refusal, match="LlamaForCausalLM computes the loss in its own way"):
        context._after_forward(model, (), "output")
    own.labels, own.attended = None, 1
    with pytest.raises(Refusal, match="LlamaForCausalLM computes attention of 2 layers in its own way"):
        context._after_forward(model, (), "output")
    context._after_forward(model, (), None)  # an error is on its way
    own.attended = 3
    context._after_forward(model, (), "output")


def test_without_labels_loss_and_attention_are_what_they_were(cut):
    model = llama()
    own, seen = cut(model), []
    loss = context._loss_of(own, lambda *given, **more: seen.append((given, more)))
    loss("logits", "labels", vocab_size=7)
    assert seen == [(("logits", "labels"), {"vocab_size": 7})]
    own.active, own.labels = True, "a count"
    loss("logits", "labels", vocab_size=7)
    own_labels = {"vocab_size": 7, "shift_labels": "labels", "num_items_in_batch": "a count"}
    assert seen[1:] == [(("logits", "labels"), own_labels)] and own.labels is None
    with pytest.raises(Refusal, match="s_aux, which this model gives to attention, is not shared out"):
        heads = torch.ones(1, 2, 3, 4)
        context._attention(None, model, heads, heads, heads, None, position_ids=heads, s_aux=heads, scaling=1.0)


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


@pytest.mark.parametrize("rows,refused", [(6, False), (7, True)])
def test_weights_in_4_bits_are_read_as_numbers_of_two_bytes_or_refused(rows, refused):
    """Two weights are a byte: 2 x 7 of them are seven bytes."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install legroom[8bit]")
    from legroom.models import quantized

    model = nn.Sequential(quantized._quantised(nn.Linear(2, rows), 4, torch.bfloat16, None))
    if refused:
        with pytest.raises(Refusal, match="a layer of 7 x 2 has an odd number of bytes in 4 bits"):
            four_bits.as_floats(model, torch.bfloat16)
        return
    before = model[0].weight.data.clone()
    four_bits.as_floats(model, torch.bfloat16)
    assert model[0].weight.dtype == torch.bfloat16 and model[0].weight.numel() == 3
    assert torch.equal(model[0].weight.data.view(torch.uint8).flatten(), before.flatten())
