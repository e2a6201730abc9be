"""What each lever does to a model, an optimizer or a step: small tensors and made-up modules, without a training."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import compose, small
from torch import nn

from legroom.errors import Refusal
from legroom.levers.adapter import apply as adapter
from legroom.levers.attention import apply as attention
from legroom.levers.checkpointing import apply as checkpointing
from legroom.levers.loss import apply as loss
from legroom.levers.optim import apply as in_backward
from legroom.levers.optim import optimizer
from legroom.levers.packing import apply as packing
from legroom.levers.parallelism import apply as parallelism
from legroom.levers.precision import apply as precision
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


def layer():
    from transformers.modeling_layers import GradientCheckpointingLayer

    return GradientCheckpointingLayer()


@pytest.mark.parametrize(
    "kind,every,wrapped", list(itertools.product(("full", "selective", "offload"), (1, 2, 3), (True, False)))
)
def test_which_layers_are_checkpointed_and_how(monkeypatch, kind, every, wrapped):
    given, inside = [], []
    model = nn.ModuleList([layer() for _ in range(5)])
    name = "activation_checkpointing_enable" if wrapped else "gradient_checkpointing_enable"
    vars(model)["gradient_checkpointing_enable"] = lambda settings: given.append("the inner one")
    vars(model)[name] = given.append
    monkeypatch.setattr(
        checkpointing.transformers_models_private, "checkpoint_inside", lambda *each: inside.append(each)
    )
    for each in model:
        each.gradient_checkpointing = True
    checkpointing.enable(model, kind, every)
    (settings,) = given
    assert settings["use_reentrant"] is False and ("context_fn" in settings) == (kind == "selective")
    assert len(inside) == (kind == "offload")
    assert [each.gradient_checkpointing for each in model] == [index % every == 0 for index in range(5)]
    bare = nn.Linear(1, 1)
    bare.gradient_checkpointing_enable = lambda settings: None
    if every > 1:
        with pytest.raises(Refusal, match=f"every_n_layers={every}: Linear does not say which of its modules"):
            checkpointing.enable(bare, kind, every)
    else:
        checkpointing.enable(bare, kind, every)


def test_what_is_kept_of_a_layer_on_the_host():
    weight = torch.ones(2, requires_grad=True)
    place, kept = checkpointing._to_host(weight * 2)
    assert place == torch.device("cpu") and not kept.requires_grad and kept.tolist() == [2.0, 2.0]
    back = checkpointing._to_device((place, kept))
    assert torch.equal(back, kept) and not back.requires_grad
    mask = torch.ones(2)
    assert checkpointing._to_host(mask) == (None, mask) and checkpointing._to_device((None, mask)) is mask


def test_the_policy_of_a_selective_checkpoint(monkeypatch):
    kept = []
    monkeypatch.setattr(checkpointing.outside_autograd, "keeps", kept.append)
    policy = checkpointing.CheckpointPolicy
    made = torch.ones(1)
    assert checkpointing._policy(SimpleNamespace(op_output=made), ATEN.add.Tensor, 1, 2) == policy.PREFER_RECOMPUTE
    assert kept == []
    for output, expected in ((made, [made]), ((made, 3, made), [made, made]), ([made], [made]), (None, [])):
        kept.clear()
        assert checkpointing._policy(SimpleNamespace(op_output=output), ATEN.mm.default, 1, 2) == policy.MUST_SAVE
        assert all(one is other for one, other in zip(kept, expected, strict=True))
    assert checkpointing._policy(SimpleNamespace(), ATEN.mm.default, 1, 2) == policy.MUST_SAVE


@pytest.mark.parametrize("supports", [None, True, False])
def test_a_class_without_checkpoints_is_refused(monkeypatch, supports):
    cfg = SimpleNamespace(checkpointing=SimpleNamespace(name="full", every_n_layers=None))
    kind = None if supports is None else type("Made", (), {"supports_gradient_checkpointing": supports})
    monkeypatch.setattr(checkpointing.architectures, "model_class", lambda *_: kind)
    if supports is False:
        with pytest.raises(Refusal, match="checkpointing=full is not supported by Made"):
            checkpointing.Apply(cfg).check_model("a/b", None, "x")
    else:
        checkpointing.Apply(cfg).check_model("a/b", None, "x")
    enabled = []
    monkeypatch.setattr(checkpointing, "enable", lambda *given: enabled.append(given))
    checkpointing.Apply(cfg).model_on_device("model")
    cfg.checkpointing.every_n_layers = 3
    checkpointing.Apply(cfg).model_on_device("model")
    assert enabled == [("model", "full", 1), ("model", "full", 3)]


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


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flash_attention_2", "flex_attention", "other", None])
def test_what_attention_is_given_of_packed_rows(monkeypatch, implementation):
    monkeypatch.setattr(packing.transformers_models_private, "attention_of", lambda _: implementation)
    seen = {}

    class Base(nn.Module):
        dtype = torch.bfloat16

        def forward(self, **given):
            seen.update(given)

    model = SimpleNamespace(base_model=Base())
    if implementation in ("other", None):
        with pytest.raises(Refusal, match="data.packing=true needs a mask, which"):
            packing.keep_samples_apart(model)
        return
    packing.keep_samples_apart(model)
    model.base_model(attention_mask="own")
    assert seen == {"attention_mask": "own"}
    model.base_model(position_ids=POSITIONS)
    if implementation in ("sdpa", "eager"):
        assert seen["attention_mask"].dtype == torch.bfloat16 and "cu_seq_lens_q" not in seen
        with torch.autocast("cpu", torch.float16):
            model.base_model(position_ids=POSITIONS)
        assert seen["attention_mask"].dtype == torch.float16
    else:
        assert seen["attention_mask"] is None and ("cu_seq_lens_q" in seen) == (implementation == "flash_attention_2")
    if implementation == "flash_attention_2":
        assert seen["cu_seq_lens_q"].tolist() == seen["cu_seq_lens_k"].tolist() == [0, 2, 4, 7, 8]
        assert seen["max_length_q"] == seen["max_length_k"] == 4


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


@pytest.mark.parametrize("total,one", itertools.product((torch.float32, torch.float16, torch.bfloat16), repeat=2))
def test_products_are_added_in_place_whatever_their_types(total, one):
    sums = torch.ones(2, 2, dtype=total)
    left, right = torch.full((2, 3), 2.0, dtype=one), torch.full((3, 2), 4.0, dtype=one)
    loss._add_product(sums, left, right)
    assert sums.dtype == total and sums.tolist() == [[25.0, 25.0], [25.0, 25.0]]


def test_products_in_fp16_do_not_overflow_before_they_are_summed():
    sums = torch.zeros(1, 1)
    loss._add_product(sums, torch.full((1, 32), 200.0).half(), torch.full((32, 1), 100.0).half())
    assert sums.item() == pytest.approx(640_000, rel=1e-3)


@pytest.mark.parametrize("wants", [True, False])
def test_the_cross_entropy_of_a_chunk(wants):
    logits = torch.tensor([[1.0, 2.0, 0.5], [3.0, 0.0, 1.0], [0.0, 0.0, 9.0]], requires_grad=True)
    targets, operations = torch.tensor([1, 0, -7]), (loss.Operation("scale", 2.0), loss.Operation("tanh"))
    expected = nn.functional.cross_entropy((logits * 2).tanh(), targets, ignore_index=-7, reduction="sum")
    expected.backward()
    found, gradient = loss._cross_entropy(logits.detach(), operations, targets, -7, wants)
    torch.testing.assert_close(found, expected.detach())
    if wants:
        torch.testing.assert_close(gradient, logits.grad)
    else:
        assert gradient is None


@pytest.mark.parametrize("labels", [1, 2, 6])
@pytest.mark.parametrize("frozen", ["", "weight", "hidden", "weight bias", "hidden bias", "hidden weight"])
def test_a_loss_in_chunks_is_the_mean_over_few_labels_too(labels, frozen):
    torch.manual_seed(0)
    hidden, layer = torch.randn(1, 7, 4), nn.Linear(4, 9)
    hidden.requires_grad_("hidden" not in frozen)
    layer.weight.requires_grad_("weight" not in frozen)
    layer.bias.requires_grad_("bias" not in frozen)
    targets = torch.full((1, 7), loss.IGNORE_INDEX)
    targets[0, 1 : 1 + labels] = torch.arange(labels)
    expected = nn.functional.cross_entropy(layer(hidden)[0, :-1], targets[0, 1:])
    trained = [each for each in (hidden, layer.weight, layer.bias) if each.requires_grad]
    gradients = torch.autograd.grad(expected, trained)
    found = loss._loss(2, loss.DeferredLogits(hidden, layer), targets)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, trained), gradients)
    by_count = loss._loss(2, loss.DeferredLogits(hidden, layer), targets, num_items_in_batch=3)
    torch.testing.assert_close(by_count, expected * labels / 3)
    bare = nn.Linear(4, 9, bias=False).requires_grad_(False)
    with torch.no_grad():
        assert not loss._loss(None, loss.DeferredLogits(hidden, bare), targets).requires_grad


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
    cfg = SimpleNamespace(optim=SimpleNamespace(name="muon"))
    (line,) = optimizer.warnings(cfg, model)
    inside = 6 + 3 + 3 + 3 + 24 + 3 + 3
    assert f"AdamW trains 24 of the {inside} parameters of the layers" in line
    del model["layers"][0]["conv"]
    assert optimizer.warnings(cfg, model) == []
    cfg.optim.name = "adamw"
    assert optimizer.warnings(cfg, stacked()) == []


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


def test_groups_are_divided_by_the_ranks_that_share_a_weight():
    whole, first, second = (SimpleNamespace(), SimpleNamespace(device_mesh="a"), SimpleNamespace(device_mesh="b"))
    group = {"params": [first, whole, second, first], "lr": 1.0}
    assert optimizer._by_mesh(group) == [
        {"params": [first, first], "lr": 1.0}, {"params": [whole], "lr": 1.0}, {"params": [second], "lr": 1.0}
    ]  # fmt: skip
    assert optimizer._by_mesh({"params": []}) == []


# --- adapters, attention, precision and modes ----------------------------------------------------


def tiny(kind: str, **values):
    sizes = {"llama": dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2),
             "gpt2": dict(n_embd=8, n_layer=1, n_head=2)}[kind]  # fmt: skip
    return transformers.AutoConfig.for_model(kind, vocab_size=16, pad_token_id=0, **sizes | values)


ADAPTERS = [
    ("llama", transformers.LlamaForCausalLM, {"targets": ["q_proj"]}, "fp32"),
    ("llama", transformers.LlamaForSequenceClassification, {"dora": True, "modules_to_save": ["norm"]}, "bf16_pure"),
    ("gpt2", transformers.GPT2LMHeadModel, {"targets": ["c_attn"], "rslora": True}, "fp32"),
]


@pytest.mark.parametrize("kind,made,values,name", ADAPTERS)
def test_what_an_adapter_is_made_with(kind, made, values, name):
    pytest.importorskip("peft")
    cfg = compose(*small("adapter=lora", "adapter.rank=3", "adapter.alpha=5", "adapter.dropout=0.25")).cfg
    cfg.precision.name = name
    for key, value in values.items():
        setattr(cfg.adapter, key, value)
    model = adapter.with_adapter(cfg, made(tiny(kind)))
    settings, classifies = model.peft_config["default"], "Classification" in made.__name__
    assert (settings.r, settings.lora_alpha, settings.lora_dropout) == (3, 5, 0.25)
    assert settings.fan_in_fan_out == (kind == "gpt2") and settings.use_rslora == bool(values.get("rslora"))
    assert settings.use_dora == bool(values.get("dora"))
    assert settings.task_type == ("SEQ_CLS" if classifies else "CAUSAL_LM")
    assert (settings.modules_to_save or [])[:2] == (["norm", "score"] if classifies else [])  # peft adds its own
    dtype = torch.bfloat16 if name == "bf16_pure" else torch.float32
    trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    assert trained and all(weight.dtype == dtype for weight in trained.values())
    assert all("lora_" in key or "modules_to_save" in key for key in trained)


@pytest.mark.parametrize(
    "targets,saved,refused",
    [
        (["q_proj"], None, None),
        (["layers.0.self_attn.q_proj"], None, None),
        ("all-linear", ["embed_tokens"], None),
        (["proj"], None, "adapter.targets: the model has no layer proj"),
        (["q_proj", "x"], None, "adapter.targets: the model has no layer x"),
        ("all-linear", ["embed_tokns"], "adapter.modules_to_save: the model has no layer embed_tokns"),
    ],
)
def test_names_of_layers_that_are_not_there(targets, saved, refused):
    cfg = SimpleNamespace(adapter=SimpleNamespace(targets=targets, modules_to_save=saved))
    model = transformers.LlamaForCausalLM(tiny("llama"))
    if refused:
        linear = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head"
        with pytest.raises(Refusal, match=f"{refused}. Its linear layers are {linear}."):
            adapter._check_targets(cfg, model)
    else:
        adapter._check_targets(cfg, model)


@pytest.mark.parametrize(
    "name,supports,dropout,predicts,said",
    [
        ("sdpa", True, 0.1, False, None),
        ("sdpa", False, 0.0, False, "is not supported by Made"),
        ("flex_attention", True, 0.0, False, None),
        ("flex_attention", True, 0.1, False, "has no dropout, which x has"),
        ("flash_attention_2", True, 0.1, False, None),
        ("kernels-community/flash-attn2", True, 0.1, False, "downloaded"),
        ("kernels-community/flash-attn2", True, 0.1, True, None),
        ("kernels-community/flash-attn3", True, 0.1, True, "has no dropout"),
    ],
)
@pytest.mark.parametrize("key", ["attention_dropout", "attention_probs_dropout_prob", "attn_pdrop"])
def test_an_attention_that_a_model_cannot_have(monkeypatch, name, supports, dropout, predicts, said, key):
    def load(_):
        raise Refusal("downloaded")

    monkeypatch.setattr(attention, "_load_from_hub", load)
    monkeypatch.setattr(attention.architectures, "model_class", lambda *_: type("Made", (), {}))
    monkeypatch.setattr(attention.transformers_models_private, "has_attention", lambda kind, asked: supports)
    cfg = SimpleNamespace(model=SimpleNamespace(attention=name), predicts=predicts)
    text = SimpleNamespace(**{key: dropout})
    config = SimpleNamespace(get_text_config=lambda: text)
    lever = attention.Apply(cfg)
    if said:
        with pytest.raises(Refusal, match=said):
            lever.check_model("x", config, "language_modelling")
    else:
        lever.check_model("x", config, "language_modelling")
    monkeypatch.setattr(attention.architectures, "model_class", lambda *_: None)
    if not supports:
        lever.check_model("x", config, "language_modelling")
    construction = SimpleNamespace(settings={})
    lever.configure_model(construction)
    assert construction.settings == {"attn_implementation": name}


@pytest.mark.parametrize("wanted,error,said", [
    ("kernels>=1,<2", None, "needs kernels>=1,<2 with this transformers"),
    (None, ValueError("no network.\nmore"), "cannot be loaded: no network. Choose"),
    (None, OSError(), "cannot be loaded: OSError. Choose"),
    (None, None, None),
])  # fmt: skip
def test_a_kernel_of_the_hub_that_cannot_be_loaded(monkeypatch, wanted, error, said):
    def load(_):
        if error is not None:
            raise error

    monkeypatch.setattr(attention.transformers_models_private, "wanted_kernels", lambda: wanted)
    monkeypatch.setattr(attention.transformers_models_private, "load_hub_attention", load)
    if said:
        with pytest.raises(Refusal, match=said):
            attention._load_from_hub("a/b")
    else:
        attention._load_from_hub("a/b")


@pytest.mark.parametrize("device,name", list(itertools.product(("cpu", "cuda"), ("fp32", "tf32"))))
def test_tf32_is_used_where_it_was_chosen(device, name):
    before = torch.backends.cuda.matmul.allow_tf32
    lever = precision.Apply(SimpleNamespace(precision=SimpleNamespace(name=name)))
    try:
        torch.backends.cuda.matmul.allow_tf32 = name != "tf32"
        lever.after_prepare(SimpleNamespace(accelerator=SimpleNamespace(device=torch.device(device))))
        assert torch.backends.cuda.matmul.allow_tf32 == ((name == "tf32") == (device == "cuda"))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert lever.transform_model("model") == "model"


@pytest.mark.parametrize("mode,sharded,stages,context,sync", [
    ("single", False, None, None, None), ("fsdp", True, None, None, True), ("pipeline", False, 2, None, None),
    ("zero", False, None, None, None), ("ddp", False, None, 2, False),
])  # fmt: skip
def test_what_a_mode_does_to_a_model(monkeypatch, mode, sharded, stages, context, sync):
    log: list = []

    def note(name, answer=None):
        return lambda *given, **_: log.append(name) or answer

    functions = [
        (parallelism.fsdp, "build_sharded"),
        (parallelism.pipeline, "split"),
        (parallelism.pipeline, "check"),
        (parallelism.context, "check"),
        (parallelism.context, "share_out"),
        (parallelism.zero, "to_device"),
        (parallelism.accelerate_private, "never_postpone_reduction"),
    ]
    for module, name in functions:
        monkeypatch.setattr(module, name, note(f"{module.__name__.rpartition('.')[2]} {name}", "sharded"))
    own = SimpleNamespace(name=mode, sharded=sharded, stages=stages, context=context, sync_each_batch=sync)
    cfg = SimpleNamespace(parallelism=own, target=SimpleNamespace(device="cpu"))
    model = SimpleNamespace(to=lambda device: log.append(f"to {device}"))
    found = parallelism.model_on_device(cfg, lambda: log.append("built") or model)
    lever = parallelism.Apply(cfg)
    lever.check_model("x", None, "y")
    lever.model_on_device(model)
    lever.after_prepare(SimpleNamespace(accelerator=None))
    place = ["zero to_device"] if mode == "zero" else ["to cpu"]
    expected = ["fsdp build_sharded"] if sharded else ["built", *["pipeline split"] * bool(stages), *place]
    expected += (
        ["context check"] * bool(context) + ["pipeline check"] * bool(stages) + ["context share_out"] * bool(context)
    )
    expected += ["accelerate_private never_postpone_reduction"] * bool(sync)
    assert log == expected and found == ("sharded" if sharded else model)
