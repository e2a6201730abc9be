"""checkpointing: the same losses, less memory, and what each option computes a second time."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter

import pytest
import torch
import transformers
from conftest import compose, small
from torch.utils._python_dispatch import TorchDispatchMode

from legroom import config
from legroom.errors import Refusal
from legroom.estimator.ledger.memory_ledger import MemoryLedger
from legroom.estimator.speed import links
from legroom.foresight import advice, simulation
from legroom.levers.checkpointing import apply as checkpointing
from legroom.options import hooks, validate
from legroom.parallelism import unwrap
from legroom.training import accelerate_loop, setup

LAYERS = 4
SIZES = [f"model.layers={LAYERS}", "data.seq_len=64", "batch.per_device=4", "eval.enabled=false"]
STEPS = ["train.max_steps=3", "train.schedule=constant", "eval.enabled=false", "model.layers=2"]
TWO = "parallelism.num_processes=2"
aten = torch.ops.aten


# --- the same training --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(train):
    """kept(*words) -> the losses with all activations kept, in the raw loop."""
    found: dict[tuple, list] = {}

    def kept(*words: str) -> list:
        if words not in found:
            found[words] = train("recipe=accelerate", *words, *STEPS).record.training.losses
        return found[words]

    return kept


@pytest.mark.slow_for(
    *(f"{model}_tiny-{name}-trainer" for model in ("bert", "gpt2", "llama") for name in ("selective", "selective_half"))
)
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
@pytest.mark.parametrize("name", ["selective", "selective_half", "offload"])
@pytest.mark.parametrize("model", ["llama_tiny", "bert_tiny", "gpt2_tiny"])
def test_both_recipes_lose_the_same_with_dropout(train, kept, recipe, name, model):
    words = [f"model={model}", "model.dropout=0.1"]
    record = train(f"recipe={recipe}", f"checkpointing={name}", *words, *STEPS).record
    assert record.training.losses == pytest.approx(kept(*words), rel=1e-6)


@pytest.mark.slow
def test_with_a_chunked_loss_and_an_adapter(train, kept):
    words = ["model=llama_tiny", "loss=chunked", "loss.rows=8", "adapter=lora"]
    record = train("checkpointing=selective", "checkpointing.every_n_layers=2", *words, *STEPS).record
    assert record.training.losses == pytest.approx(kept(*words), rel=1e-6)


@pytest.mark.slow_for("parallelism=fsdp precision=bf16 parallelism.wrap=size parallelism.wrap_min_parameters=1000")
@pytest.mark.parametrize(
    "words",
    ["parallelism=ddp", "parallelism=fsdp precision=bf16 parallelism.wrap=size parallelism.wrap_min_parameters=1000"],
)
def test_with_two_ranks(train, kept, words):
    words = ["model=llama_tiny", TWO, *words.split()]
    record = train("checkpointing=selective", *words, *STEPS).record
    assert record.training.losses == pytest.approx(kept(*words), rel=1e-6)


# --- memory and operations -----------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count["products"] += func in (aten.mm.default, aten.addmm.default, aten.bmm.default)
        self.count["attention"] += func is aten._scaled_dot_product_flash_attention_for_cpu.default
        return func(*args, **(kwargs or {}))


def counted(*words: str) -> tuple[dict, Counter]:
    """(the ledger's parts, the products) of a second step on the CPU."""
    cfg, _, problems = compose(*small("recipe=accelerate", *SIZES, *words))
    assert not problems, problems
    training = setup.build(cfg, tempfile.mkdtemp())
    loop = training.loop
    assert isinstance(loop, accelerate_loop.Loop)
    loop.model.train()
    with Products() as products:
        loop.step(next(accelerate_loop.chunks(loop.loader, 1)))
    ledger = MemoryLedger(training.model, unwrap.inner_optimizer(loop.optimizer), torch.device("cpu"))
    loop.one_more_step(ledger)
    return ledger.parts() | {"flops": ledger.model_flops}, products.count


@pytest.mark.slow_for("gpt2_tiny")
@pytest.mark.parametrize("model", ["llama_tiny", "gpt2_tiny"])
def test_what_is_kept_and_what_is_computed_again(model):
    every = "checkpointing.every_n_layers=2"
    told = {
        "none": ["checkpointing=none"],
        "selective": ["checkpointing=selective"],
        "every second product": ["checkpointing=selective_half"],
        "full": ["checkpointing=full"],
        "half selective": ["checkpointing=selective", every],
        "half full": ["checkpointing=full", every],
    }
    parts, products = {}, {}
    for name, words in told.items():
        parts[name], products[name] = counted(f"model={model}", *words)
    bytes_of = {name: each["activations_bytes"] for name, each in parts.items()}
    assert bytes_of["none"] > 1.2 * bytes_of["selective"] > 1.5 * bytes_of["full"]
    assert bytes_of["selective"] > bytes_of["every second product"] > 1.1 * bytes_of["full"]
    assert bytes_of["none"] > 1.1 * bytes_of["half selective"] > 1.2 * bytes_of["selective"]
    assert bytes_of["none"] > 1.1 * bytes_of["half full"] > 1.2 * bytes_of["full"]
    assert products["selective"] == products["half selective"] == products["none"]
    second = products["every second product"]
    again = products["full"]["products"] - products["none"]["products"]
    assert 0.3 * again < second["products"] - products["none"]["products"] <= again / 2
    assert second["attention"] == products["none"]["attention"], "attention is kept"
    assert again > 0 and products["half full"]["products"] - products["none"]["products"] == again / 2
    assert products["full"]["attention"] == products["none"]["attention"] + LAYERS
    assert len({each["flops"] for each in parts.values()}) == 1, "model FLOPs do not count a recomputation"


def test_attention_with_dropout_is_recomputed():
    """On a GPU only: on a CPU attention with dropout is no single operation."""
    flash, efficient = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_efficient_attention
    for operation, before in ((flash.default, 3 * (None,)), (efficient.default, (None, None, None, None, True))):
        assert checkpointing.keeps(operation, before, {})
        assert checkpointing.keeps(operation, (*before, 0.0), {})
        assert not checkpointing.keeps(operation, (*before, 0.1), {})
        assert not checkpointing.keeps(operation, before, {"dropout_p": 0.1})
    assert not checkpointing.keeps(aten._scaled_dot_product_flash_attention_backward.default, (), {})
    assert checkpointing.keeps(aten.mm.default, (), {}) and not checkpointing.keeps(aten.mul.Tensor, (), {})


def test_offload_keeps_nothing_of_a_layer_but_a_copy_of_its_hidden_states(monkeypatch):
    """On a CPU nothing is copied; here it is, and what the copies replace is freed."""
    copies = []

    def copied(tensor):
        if not tensor.requires_grad:
            return None, tensor
        copies.append(tensor.detach().clone())
        return tensor.device, copies[-1]

    monkeypatch.setattr(checkpointing, "_to_host", copied)
    cfg, _, _ = compose(*small("recipe=accelerate", *SIZES, "model=llama_tiny", "checkpointing=offload"))
    training = setup.build(cfg, tempfile.mkdtemp())
    assert isinstance(training.loop, accelerate_loop.Loop)
    batch = next(iter(training.loop.loader))
    training.model.train()
    training.model(**batch).loss.backward()
    assert [tuple(copy.shape) for copy in copies] == LAYERS * [(4, 64, 32)]
    gradients = [weight.grad for weight in training.model.parameters()]
    training.model.zero_grad()
    training.model.gradient_checkpointing_disable()
    training.model(**batch).loss.backward()
    for one, weight in zip(gradients, training.model.parameters()):
        assert one is not None and weight.grad is not None and torch.equal(one, weight.grad)


# --- tiles ---------------------------------------------------------------------------------------------

LONG = ["model=llama_tiny", "model.feed_forward=256", "model.layers=2"]


@pytest.mark.parametrize("words", [LONG, ["model=gpt2_tiny", "model.layers=2"]], ids=lambda words: words[0])
@pytest.mark.parametrize("name", ["none", "full"])
def test_tiles_have_the_loss_and_the_gradients_of_the_whole(words, name):
    found = []
    for tiles in ("null", "3"):  # of 32 tokens: the last part is shorter
        asked = small("recipe=accelerate", *words, f"checkpointing={name}", f"checkpointing.mlp_tiles={tiles}")
        training = setup.build(compose(*asked).cfg, tempfile.mkdtemp())
        assert isinstance(training.loop, accelerate_loop.Loop)
        training.model.train()
        loss = training.model(**next(iter(training.loop.loader))).loss
        loss.backward()
        found.append((loss, [weight.grad for weight in training.model.parameters()]))
    (loss, gradients), (tiled_loss, tiled_gradients) = found
    torch.testing.assert_close(tiled_loss, loss, rtol=1e-6, atol=0)
    for one, other in zip(gradients, tiled_gradients):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-7)


def test_tiles_keep_no_inner_activations_and_compute_products_again():
    inner = 4 * 64 * 256 * 4  # bytes of one inner activation of a layer, of which there are several
    for name in ("none", "full"):
        whole, products = counted(*LONG, f"checkpointing={name}")
        tiled, tiled_products = counted(*LONG, f"checkpointing={name}", "checkpointing.mlp_tiles=4")
        assert whole["peak_tensor_bytes"] - tiled["peak_tensor_bytes"] > inner
        assert tiled["flops"] == whole["flops"], "model FLOPs do not count a recomputation"
        assert tiled_products["products"] > products["products"]
        assert tiled_products["attention"] == products["attention"]


def test_tiles_are_refused_where_there_are_none():
    cfg = compose(*small("recipe=accelerate", "model=bert_tiny", "checkpointing.mlp_tiles=2")).cfg
    with pytest.raises(Refusal, match="no feed-forward layers"):
        setup.build(cfg, tempfile.mkdtemp())
    for words in ("checkpointing=selective", "compile=true", "parallelism=fsdp_tp parallelism.num_processes=2"):
        problems = compose("device=cpu", "model=llama_tiny", "checkpointing.mlp_tiles=2", *words.split()).problems
        assert any("checkpointing.mlp_tiles=2" in line for line in problems), (words, problems)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["recipe=trainer precision=bf16", f"parallelism=fsdp {TWO}", "adapter=lora"])
def test_tiles_lose_the_same(train, kept, words):
    words = ["model=llama_tiny", *words.split()]
    record = train(*words, "checkpointing=full", "checkpointing.mlp_tiles=4", *STEPS).record
    others = [word for word in words if not word.startswith("recipe")]
    assert record.training.losses == pytest.approx(kept(*others), rel=1e-3 if "bf16" in " ".join(words) else 1e-6)


# --- estimates -----------------------------------------------------------------------------------------


def test_a_gpu_keeps_what_the_option_says():
    told = ["recipe=estimate", "gpu=a100_40gb", "model=llama_tiny", "model.layers=4", "precision=bf16_pure"]
    found, copied = {}, {}
    for name in ("none", "selective", "selective_half", "full", "offload"):
        cfg, _, problems = compose(*told, "batch.per_device=4", "data.seq_len=64", f"checkpointing={name}")
        assert not problems, problems
        simulated = simulation.simulate_step(cfg, tempfile.mkdtemp())
        found[name] = simulated.parts["largest_bytes"]["activations"]
        copied[name] = links.host_copies_seconds(simulated.tally, cfg.gpu)
    assert found["none"] > found["selective"] > found["selective_half"] > found["full"] > found["offload"]
    inputs = LAYERS * 4 * 64 * cfg.model.width * 2
    assert found["full"] - found["offload"] >= inputs * (LAYERS - 1) / LAYERS
    there_and_back = links.host_copy_seconds(2 * inputs, cfg.gpu)
    assert copied["offload"] - copied["full"] == pytest.approx(there_and_back) and copied["none"] == copied["full"]


def test_offload_on_a_cpu_says_that_it_moves_nothing():
    (line,) = (
        line for line in validate.warnings(compose("device=cpu", "checkpointing=offload").cfg) if "offload" in line
    )
    assert "checkpointing=offload on a CPU is checkpointing=full" in line


# --- words ---------------------------------------------------------------------------------------------


def test_experts_that_change_a_kept_product_are_refused():
    architecture = transformers.GptOssConfig()
    for name in ("selective", "full"):
        lever = checkpointing.Apply(compose("device=cpu", f"checkpointing={name}").cfg)
        with pytest.raises(Refusal, match="in place") if name == "selective" else contextlib.nullcontext():
            lever.check_model("GptOssForCausalLM", architecture, "language_modelling")


@pytest.mark.parametrize("name", ["selective", "offload"])
def test_what_does_not_go_together_is_refused(name):
    for words, says in ((["compile=true"], "leave compile out"), (["parallelism=zero", "parallelism.stage=3"], "fsdp")):
        problems = compose("device=cpu", f"checkpointing={name}", *words).problems
        assert any(f"checkpointing={name}" in line and says in line for line in problems), problems


def levers(*words: str) -> list[str]:
    return [lever.overrides for lever in hooks.memory_levers(compose(*words).cfg) if "checkpointing" in lever.overrides]


def test_the_cheapest_lever_is_named_first_and_none_that_is_used():
    gpu = ["recipe=estimate", "gpu=a100_40gb"]
    hint = advice.untried(compose(*gpu).cfg, "backward")
    order = [hint.index(f"checkpointing={name}") for name in ("selective", "selective_half", "full", "offload")]
    assert order == sorted(order)
    half = levers(*gpu, "checkpointing=full", "checkpointing.every_n_layers=2")
    assert half == ["checkpointing.every_n_layers=1", "checkpointing=offload"]
    assert levers("device=cpu") == ["checkpointing=selective", "checkpointing=selective_half", "checkpointing=full"]
    assert levers("device=cpu", "checkpointing=selective_half") == ["checkpointing=full"]
    of_layers = ["checkpointing=selective", "checkpointing.every_n_products=3"]
    assert levers("device=cpu", *of_layers) == ["checkpointing=full"]
    assert levers("device=cpu", "compile=true") == ["checkpointing=full"]


def test_a_configuration_of_an_older_record_checkpoints_every_layer(tmp_path):
    cfg = compose("device=cpu", "recipe=accelerate", *small()).cfg
    cfg.checkpointing = config.from_dict({"name": "full"}, type(cfg.checkpointing))
    model = setup.build(cfg, str(tmp_path)).model
    assert all(layer.gradient_checkpointing for layer in model.modules() if hasattr(layer, "gradient_checkpointing"))
