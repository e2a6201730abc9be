"""optim: the optimizer that a name stands for, its decay groups, and what its states take."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from conftest import CONF, ROOT, compose
from transformers.training_args import OptimizerNames

from legroom.config.target import Target
from legroom.levers.optim import optimizer, rules
from legroom.machine import host
from legroom.options import menus, training_arguments

DECAY = ["train.weight_decay=0.1", "device=cpu"]


def built(model, tmp_path, *overrides):
    """The optimizer that these words give a model."""
    cfg, _, problems = compose(*DECAY, *overrides)
    assert not problems
    return optimizer.build_optimizer(cfg, training_arguments.training_arguments(cfg, str(tmp_path)), model)


def state_bytes(optimizer, weight) -> int:
    """What the states of one weight take; tables that all weights share are no state of it."""
    return sum(
        value.numel() * value.element_size()
        for name, value in optimizer.state[weight].items()
        if isinstance(value, torch.Tensor) and value.dim() > 0 and not name.startswith("qmap")
    )


def step(model, optimizer, *inputs):
    model(*inputs).sum().backward()
    optimizer.step()


# --- what a name stands for ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words,kind,settings",
    [
        (["optim=adamw"], torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8, "lr": 1e-3}),
        (
            ["optim=adamw", "optim.beta1=0.5", "optim.epsilon=0.1"],
            torch.optim.AdamW,
            {"betas": (0.5, 0.999), "eps": 0.1},
        ),
        (["optim=adamw_fused"], torch.optim.AdamW, {"fused": True}),
        (["optim=sgd"], torch.optim.SGD, {"momentum": 0.9}),
        (["optim=sgd", "optim.momentum=0"], torch.optim.SGD, {"momentum": 0}),
        (["optim=adafactor"], transformers.Adafactor, {"relative_step": False, "scale_parameter": False}),
        (["optim=rmsprop"], torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0}),
        (["optim=adagrad"], torch.optim.Adagrad, {"lr": 1e-3}),
    ],
)
def test_a_name_is_the_optimizer_of_transformers_list(tmp_path, words, kind, settings):
    optimizer = built(torch.nn.Linear(4, 4), tmp_path, *words)
    assert type(optimizer) is kind
    assert {key: optimizer.defaults[key] for key in settings} == settings


def test_8_bit_adam_is_the_one_of_bitsandbytes(tmp_path):
    import bitsandbytes

    optimizer = built(torch.nn.Linear(4, 4), tmp_path, "optim=adam8bit", "optim.beta2=0.95")
    assert isinstance(optimizer, (bitsandbytes.optim.AdamW, bitsandbytes.optim.AdamW8bit))
    assert optimizer.args.optim_bits == 8 and tuple(optimizer.defaults["betas"]) == (0.9, 0.95)


def test_ademamix_rises_to_its_slow_momentum(tmp_path):
    settings = built(
        torch.nn.Linear(4, 4), tmp_path, "optim=ademamix", "optim.args.t_alpha=9", "optim.beta1=0.8"
    ).defaults
    assert settings["betas"] == (0.8, 0.999, 0.9999)
    assert (settings["alpha"], settings["t_alpha"], settings["t_beta3"]) == (5, 9, None)


@pytest.mark.parametrize("option", ["adamw", "sgd", "adafactor", "adam8bit", "muon"])
@pytest.mark.parametrize("model", ["bert", "llama"])
def test_biases_and_norms_do_not_decay(tmp_path, option, model):
    sizes = dict(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=64)
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(model, **sizes))
    optimizer = built(network, tmp_path, f"optim={option}")
    decay = {id(w): group["weight_decay"] for group in optimizer.param_groups for w in group["params"]}
    for name, weight in network.named_parameters():
        assert decay.pop(id(weight)) == (0.0 if weight.dim() == 1 else 0.1), name
    assert not decay


@pytest.mark.parametrize("option", ["adamw", "sgd", "muon"])
def test_what_decays_is_what_the_trainer_alone_would_decay(tmp_path, option):
    """It tells norms by their names, and does not know those of some models: hyperclovax, nemotron_h and xlstm."""
    names = ("norm", "input_layernorm", "post_norm1", "norm_f", "norm_mlstm")
    network = torch.nn.ModuleDict({name: torch.nn.RMSNorm(4) for name in names})
    network["layers"] = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
    optimizer = built(network, tmp_path, f"optim={option}")
    decay = {id(w) for group in optimizer.param_groups if group["weight_decay"] for w in group["params"]}
    ours = {name for name, weight in network.named_parameters() if id(weight) in decay}
    assert ours == set(transformers.Trainer.get_decay_parameter_names(None, network))  # type: ignore[arg-type]
    assert {"post_norm1.weight", "norm_f.weight", "norm_mlstm.weight", "layers.0.weight"} == ours


def test_frozen_weights_are_left_out(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[0].requires_grad_(False)
    optimizer = built(model, tmp_path)
    optimized = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    assert optimized == {id(weight) for weight in model[1].parameters()}


# --- what the states take --------------------------------------------------------------------------


def test_what_an_earlier_model_kept_in_32_bits_says_nothing_of_this_one(tmp_path):
    from bitsandbytes.optim import GlobalOptimManager

    model = torch.nn.Linear(64, 128)
    GlobalOptimManager.get_instance().pid2config[id(model.weight)] = {"optim_bits": 32}  # of an embedding that is gone
    optimizer = built(model, tmp_path, "optim=adam8bit")
    step(model, optimizer, torch.ones(1, 64))
    assert optimizer.state[model.weight]["state1"].dtype == torch.uint8


def test_8_bit_states_take_2_bytes_a_parameter(tmp_path):
    """And a 32-bit scale for each state of each block of 256: 2 x 4 / 256 bytes more."""
    model = torch.nn.Linear(256, 256, bias=False)
    optimizer = built(model, tmp_path, "optim=adam8bit")
    step(model, optimizer, torch.randn(2, 256))
    assert state_bytes(optimizer, model.weight) / model.weight.numel() == pytest.approx(2 + 8 / 256)


def test_8_bit_adam_keeps_embeddings_in_32_bits(tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(256, 256), torch.nn.Linear(256, 256, bias=False))
    optimizer = built(model, tmp_path, "optim=adam8bit")
    step(model, optimizer, torch.arange(256))
    embedding, linear = (state_bytes(optimizer, module.weight) / 256**2 for module in model)
    assert embedding == 8 and linear == pytest.approx(2 + 8 / 256)


@pytest.mark.parametrize(
    "option,bytes_a_parameter",
    [
        ("rmsprop", 4),
        ("adagrad", 4),
        ("muon", 4),
        ("lion", 4),
        ("ademamix", 12),
        ("ademamix8bit", 3 + 12 / 256),  # a 32-bit scale for each of three states of each block of 256
    ],
)
def test_bytes_of_state_of_a_matrix(tmp_path, option, bytes_a_parameter):
    model = torch.nn.ModuleList([torch.nn.Linear(256, 256, bias=False)])
    optimizer = built(model, tmp_path, f"optim={option}")
    step(model[0], optimizer, torch.randn(2, 256))
    assert state_bytes(optimizer, model[0].weight) / 256**2 == pytest.approx(bytes_a_parameter)


# Large matrices, so that step counters and norms do not show.
WIDE = [
    "model=llama_tiny",
    "model.layers=2",
    "model.width=128",
    "model.feed_forward=512",
    "model.vocab=512",
    "model.tied=true",
]


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
@pytest.mark.parametrize(
    "words,low,high",
    [
        (["optim=adamw"], 8, 8.01),
        (["optim=adamw_fused"], 8, 8.01),
        (["optim=sgd"], 4, 4.01),
        (["optim=sgd", "optim.momentum=0"], 0, 0),
        (["optim=adafactor"], 0.01, 0.2),
    ],
    ids=str,
)
def test_bytes_of_state_a_parameter(train, recipe, words, low, high):
    memory = train(f"recipe={recipe}", *WIDE, *words).record.memory
    assert low <= memory.largest_bytes["optimizer"] / memory.parameter_count <= high


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_bytes_of_8_bit_state_in_a_whole_run(train, recipe):
    """8 bytes for the embedding and for weights below 4096 (norms), 2 + 8/256 for the rest."""
    memory = train(f"recipe={recipe}", *WIDE, "optim=adam8bit").record.memory
    in_full = 512 * 128 + 5 * 128
    expected = 8 * in_full + (2 + 8 / 256) * (memory.parameter_count - in_full)
    assert memory.largest_bytes["optimizer"] == pytest.approx(expected, rel=0.01)


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["adam8bit", "paged_adam8bit"])
def test_8_bit_without_bitsandbytes_is_refused(monkeypatch, option):
    monkeypatch.setattr(host, "has", lambda module: module != "bitsandbytes")
    (line,) = [
        line for line in compose("recipe=estimate", "gpu=l4_24gb", f"optim={option}").problems if "bitsandbytes" in line
    ]
    assert f"optim={option}" in line and "pip install bitsandbytes" in line and "optim=adafactor" in line


@pytest.mark.parametrize(
    "paged,plain", [("paged_adam8bit", "adam8bit"), ("paged_adamw", "adamw"), ("paged_lion8bit", "lion8bit")]
)
def test_paging_needs_a_gpu(pretend_gpu, paged, plain):
    (line,) = compose("device=cpu", f"optim={paged}").problems
    assert f"optim={paged}" in line and f"optim={plain}." in line
    pretend_gpu((7, 5))
    assert compose(f"optim={paged}").problems == []


def test_muon_is_refused_before_ampere(pretend_gpu):
    pretend_gpu((7, 5))
    (line,) = compose("optim=muon").problems
    assert "optim=muon needs compute capability 8.0" in line and "optim=adamw" in line


def test_schedule_free_takes_the_place_of_a_schedule():
    pytest.importorskip("schedulefree")
    alone = compose("optim=schedule_free", "device=cpu")
    assert not alone.problems and alone.cfg.train.schedule == "constant"
    assert compose("device=cpu").cfg.train.schedule == "linear"
    (line,) = compose("optim=schedule_free", "device=cpu", "train.schedule=linear").problems
    assert "train.schedule=linear" in line and "Leave it out" in line
    assert not compose("optim=schedule_free", "device=cpu", "train.schedule=constant", "train.warmup_steps=5").problems
    assert compose("optim=adamw", "device=cpu", "train.schedule=constant", "train.warmup_steps=5").problems


@pytest.mark.parametrize("option", ["adamw8bit_ao", "adamw4bit", "adamw_fp8"])
def test_compiled_optimizers_need_a_compiler(pretend_gpu, monkeypatch, option):
    pytest.importorskip("torchao")
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: module != "triton")
    (line,) = compose(f"optim={option}").problems
    assert f"optim={option} needs the package triton" in line and "optim=adam8bit" in line
    monkeypatch.setattr(host, "has", lambda module: True)
    assert not compose(f"optim={option}").problems
    (line,) = compose(f"optim={option}", "recipe=estimate", "gpu=l4_24gb").problems
    assert f"recipe=estimate does not support optim={option} on a GPU" in line
    assert not compose(f"optim={option}", "recipe=estimate", "device=cpu").problems


def test_states_in_float8_are_refused_where_triton_cannot_cast_to_it(pretend_gpu, monkeypatch):
    pytest.importorskip("torchao")
    pretend_gpu((8, 6))
    monkeypatch.setattr(host, "has", lambda module: True)
    (line,) = compose("optim=adamw_fp8").problems
    assert "optim=adamw_fp8 needs compute capability 8.9" in line and "Choose optim=adam8bit." in line
    assert not compose("optim=adamw8bit_ao").problems
    pretend_gpu((8, 9))
    assert not compose("optim=adamw_fp8").problems


# --- transformers' list ----------------------------------------------------------------------------


def test_every_optimizer_of_transformers_is_answered():
    """A name that a new transformers brings is noticed here."""
    options = [menus.option_values("optim", name, [CONF]) for name in menus.options("optim", [CONF])]
    named = {values["transformers_name"] for values in options if "transformers_name" in values}
    page = (ROOT / "docs/levers.md").read_text().split("## Optimizers of transformers that are no option")[1]
    rows = [row.split("|") for row in page.split("\n## ")[0].splitlines() if row.startswith("| `")]
    told = {name for row in rows for name in re.findall("`([^`]+)`", row[1])}
    assert all(row[2].strip() for row in rows)
    assert {name.value for name in OptimizerNames} == named | told and not named & told


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("option", ["adamw", "adamw_fused", "sgd", "adafactor", "adam8bit", "paged_adam8bit"])
def test_every_optimizer_trains_on_a_gpu_the_same_in_both_recipes(train, option):
    told = [*WIDE, f"optim={option}", "device=cuda", "train.max_steps=4"]
    ours, theirs = (train(*told, f"recipe={recipe}").record for recipe in ("trainer", "accelerate"))
    assert ours.training.losses == pytest.approx(theirs.training.losses, rel=1e-3)
    assert ours.memory.peak_tensor_bytes == pytest.approx(theirs.memory.peak_tensor_bytes, rel=0.01)


@pytest.mark.parametrize("name, leaps", [("adamw8bit_ao", True), ("adamw_fp8", True), ("adamw4bit", False)])
def test_states_whose_rounding_lets_weights_leap_are_warned_of(name, leaps):
    cfg = compose("device=cpu", f"optim={name}").cfg
    assert any("learning rates" in line for line in rules.warnings(cfg)) == leaps


def test_a_compiled_optimizer_is_not_estimated_on_a_gpu():
    estimate = compose("recipe=estimate", "gpu=a100_80gb", "optim=adamw4bit")
    assert any("its step is compiled there" in line for line in estimate.problems)
    cfg = compose("device=cpu", "optim=adamw4bit").cfg
    on_cpu = rules.warnings(cfg)
    cfg.target = Target("cuda", None)
    (more,) = set(rules.warnings(cfg)) - set(on_cpu)
    assert "the training compiles it" in more
