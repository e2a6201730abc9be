"""What each lever does to a model, an optimizer or a step: small tensors and made-up modules, without a training."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from conftest import compose
from torch import nn

from legroom.errors import Refusal
from legroom.levers.checkpointing import apply as checkpointing
from legroom.levers.loss import apply as loss
from legroom.levers.optim import apply as in_backward
from legroom.levers.optim import optimizer
from legroom.levers.packing import apply as packing
from legroom.levers.precision import apply as precision
from legroom.machine import host
from legroom.options import model_families

ATEN = torch.ops.aten

# --- checkpointing -------------------------------------------------------------------------------

FLASH = ATEN._scaled_dot_product_flash_attention_for_cpu.default
EFFICIENT = ATEN._scaled_dot_product_efficient_attention.default


@pytest.mark.parametrize(
    "operation,args,kwargs,kept",
    [
        (ATEN.mm.default, (1, 2), {}, True),
        (ATEN.addmm.default, (1, 2, 3), {}, True),
        (ATEN.bmm.default, (1, 2), {}, True),
        (ATEN.add.Tensor, (1, 2), {}, False),
        (ATEN.native_dropout.default, (1, 0.5, True), {}, False),
        (FLASH, (1, 2, 3), {}, True),
        (FLASH, (1, 2, 3, 0.0), {}, True),
        (FLASH, (1, 2, 3, 0.1), {}, False),
        (FLASH, (1, 2, 3), {"dropout_p": 0.1}, False),
        (FLASH, (1, 2, 3), {"dropout_p": 0.0}, True),
        (EFFICIENT, (1, 2, 3, None, True), {}, True),
        (EFFICIENT, (1, 2, 3, None, True, 0.0), {}, True),
        (EFFICIENT, (1, 2, 3, None, True, 0.1), {}, False),
        (ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default, tuple(range(10)), {}, False),
    ],
)
def test_which_results_a_selective_checkpoint_keeps(operation, args, kwargs, kept):
    assert checkpointing.keeps(operation, args, kwargs) == kept


# --- packing -------------------------------------------------------------------------------------

POSITIONS = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 0]])


def test_the_mask_and_the_beginnings_of_packed_rows():
    least = torch.finfo(torch.float32).min
    found = packing.mask(POSITIONS, torch.float32)
    assert found.shape == (2, 1, 4, 4) and set(found.unique().tolist()) == {0.0, least}
    seen = [[[int(number == 0) for number in row] for row in each[0]] for each in found]
    assert seen == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]],
    ]
    begins = packing.beginnings(POSITIONS)
    assert begins.tolist() == [0, 2, 4, 7, 8] and begins.dtype == torch.int32


@pytest.mark.parametrize(
    "values,task,kind,refused",
    [
        ({}, "language_modelling", "llama", None),
        ({}, "classification", "llama", "is for causal language models"),
        ({}, "language_modelling", "unknown", "is not supported for x"),
        ({"sliding_window": 32}, "language_modelling", "llama", None),
        ({"sliding_window": 31}, "language_modelling", "llama", "attention within a window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "language_modelling", "llama", None),
        ({"layer_types": ["full_attention", "chunked"]}, "language_modelling", "llama", "attention within a window"),
        ({"output_router_logits": True}, "language_modelling", "llama", "routers' loss of x"),
    ],
)
def test_models_whose_rows_cannot_be_packed(values, task, kind, refused):
    text = SimpleNamespace(**values)
    config = SimpleNamespace(model_type=kind, get_text_config=lambda: text)
    cfg = SimpleNamespace(data=SimpleNamespace(seq_len=32))
    assert kind in model_families.PACKED or kind == "unknown"
    if refused:
        with pytest.raises(Refusal, match=refused):
            packing.check(cfg, "x", config, task)
    else:
        packing.check(cfg, "x", config, task)


# --- the loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation,forward,backward",
    [
        (loss.Operation("scale", 0.5), [1.0, 2.0], [0.5, 1.0]),
        (loss.Operation("tanh"), [0.9640275801, 0.9993292997], [0.0706508249, 0.0026819]),
        (loss.Operation("cast", torch.bfloat16), [2.0, 4.0], [1.0, 2.0]),
    ],
)
def test_what_a_model_does_to_logits_and_its_gradient(operation, forward, backward):
    result = operation.forward(torch.tensor([2.0, 4.0]))
    assert result.tolist() == pytest.approx(forward)
    assert operation.backward(torch.tensor([1.0, 2.0]), result).tolist() == pytest.approx(backward, rel=1e-3)


@pytest.mark.parametrize(
    "tokens,width,rows",
    [(1, 4, 256), (4096, 1024, 256), (4096, 1027, 256), (4097, 1024, 257), (8192, 1024, 512), (1, 2052, 513)],
)
def test_the_rows_of_a_chunk(tokens, width, rows):
    assert loss.chunk_rows(tokens, width) == rows


# --- optimizers ----------------------------------------------------------------------------------


def stacked():
    """Two layers, of which one has a convolution and experts, beside embeddings and a head."""
    inner = nn.ModuleDict({"up": nn.Linear(2, 3), "norm": nn.LayerNorm(3), "conv": nn.Conv1d(2, 3, 4)})
    model = nn.ModuleDict(
        {"words": nn.Embedding(4, 2), "layers": nn.ModuleList([inner, nn.Linear(3, 3)]), "head": nn.Linear(3, 2)}
    )
    model["layers"][1].weight.requires_grad_(False)
    return model


def test_what_muon_trains_and_what_it_says_of_the_rest():
    model = stacked()
    found = optimizer.hidden_matrices(model)
    assert len(found) == 1 and found[0] is model["layers"][0]["up"].weight
    cfg = compose("device=cpu", "optim=muon").cfg
    (line,) = optimizer.warnings(cfg, model)
    inside = 6 + 3 + 3 + 3 + 24 + 3 + 3
    assert f"AdamW trains 24 of the {inside} parameters of the layers" in line
    del model["layers"][0]["conv"]
    assert optimizer.warnings(cfg, model) == []
    assert optimizer.warnings(compose("device=cpu", "optim=adamw").cfg, stacked()) == []


@pytest.mark.parametrize("optim", ["adamw8bit_ao", "adamw4bit", "adamw_fp8"])
def test_a_worker_says_which_shards_keep_states_in_32_bits(optim):
    """It has its configuration from the record, without the facts of options."""
    pytest.importorskip("torchao", reason="torchao is not installed")
    words = ["device=cpu", f"optim={optim}"]
    sharded = [*words, "parallelism=fsdp", "parallelism.num_processes=2"]
    alone, cfg = (host.configuration(compose(*each).record.config) for each in (words, sharded))
    (line,) = optimizer.warnings(cfg, nn.Linear(4, 2))
    assert line.startswith(f"optim={optim}: 10 of this rank's 10 trained parameters")
    assert optimizer.warnings(cfg, nn.Linear(64, 64, bias=False)) == []
    assert optimizer.warnings(alone, nn.Linear(4, 2)) == []


def test_a_combined_optimizer_shares_groups_and_states():
    one, other, third = (nn.Parameter(torch.tensor([float(n)])) for n in range(3))
    inner = [
        torch.optim.SGD([one], lr=0.5, momentum=0.9),
        torch.optim.SGD([{"params": [other]}, {"params": [third]}], lr=0.25),
    ]
    combined = optimizer.CombinedOptimizer(inner)
    assert combined.defaults["lr"] == 0.5 and len(combined.param_groups) == 3
    assert inner[1].param_groups == combined.param_groups[1:] and inner[0].state is combined.state
    for weight in (one, other, third):
        weight.grad = torch.ones(1)
    assert combined.step() is None and [w.item() for w in (one, other, third)] == [-0.5, 0.75, 1.75]
    for weight in (one, other, third):
        weight.grad = torch.ones(1)
    combined.load_state_dict(combined.state_dict())
    assert inner[0].state is combined.state and inner[0].param_groups[0] is combined.param_groups[0]
    combined.step()
    assert one.item() == pytest.approx(-0.5 - 0.5 * 1.9)
    with pytest.raises(AssertionError, match="takes no closure"):
        combined.step(lambda: 0.0)


@pytest.mark.parametrize("combined", [True, False])
def test_each_weight_is_updated_when_its_gradient_is_there(combined):
    weights = [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0, 4.0]))]
    plain = torch.optim.SGD([{"params": [weights[0]], "lr": 0.5}, {"params": [weights[1]], "lr": 0.25}])
    inner = [torch.optim.SGD([weights[0]], lr=0.5), torch.optim.SGD([weights[1]], lr=0.25)]
    owner = optimizer.CombinedOptimizer(inner) if combined else plain
    in_backward.StepsInBackward(owner)
    groups = [group["params"] for group in owner.param_groups]
    for _ in range(2):
        (weights[0].sum() + 2 * weights[1].sum()).backward()
        assert weights[0].grad is None and weights[1].grad is None
        assert [group["params"] for group in owner.param_groups] == groups
        owner.load_state_dict(owner.state_dict())
    assert weights[0].tolist() == [0.0, 1.0] and weights[1].tolist() == [2.0, 3.0]
    owner.step()
    assert weights[0].tolist() == [0.0, 1.0], "no gradient is left for it"


# --- adapters, attention, precision and modes ----------------------------------------------------


@pytest.mark.parametrize("device,name", list(itertools.product(("cpu", "cuda"), ("fp32", "tf32"))))
def test_tf32_is_used_where_it_was_chosen(device, name):
    before = torch.backends.cuda.matmul.allow_tf32
    lever = precision.Apply(SimpleNamespace(precision=SimpleNamespace(kind=name)))
    try:
        torch.backends.cuda.matmul.allow_tf32 = name != "tf32"
        lever.after_prepare(SimpleNamespace(accelerator=SimpleNamespace(device=torch.device(device))))
        assert torch.backends.cuda.matmul.allow_tf32 == ((name == "tf32") == (device == "cuda"))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert lever.transform_model("model") == "model"
