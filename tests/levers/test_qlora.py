"""adapter=qlora: quantised weights train the same in both recipes, resume exactly, and count their real bytes."""

from __future__ import annotations

import gc
import weakref

import pytest
import safetensors.torch
import torch
from conftest import bare_model, compose

from legroom.compat import transformers_models_private
from legroom.levers.adapter import apply as adapter
from legroom.machine import host
from legroom.models import quantized
from legroom.records import run_folder

peft = pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install legroom[8bit]")

RECIPES = ["trainer", "accelerate"]
QLORA = ["adapter=qlora", "train.max_steps=4", "data.samples=16", "train.schedule=constant"]


def built(*words: str):
    """A model as `builder` makes it, before the adapter, and its rows."""
    cfg = compose("recipe=accelerate", "device=cpu", "data.seq_len=32", *words).cfg
    return cfg, *bare_model(cfg)


@pytest.mark.slow_for(
    "model=bert_tiny adapter.bits=8 model.width=64 checkpointing=full",
    "model=gpt2_tiny precision=bf16_pure loss=chunked checkpointing=selective adapter.dora=true",
)
@pytest.mark.parametrize(
    "words",
    [
        ["model=llama_tiny", "precision=bf16", "accumulation=x2", "adapter.dropout=0.1"],
        ["model=bert_tiny", "adapter.bits=8", "model.width=64", "checkpointing=full"],
        ["model=gpt2_tiny", "precision=bf16_pure", "loss=chunked", "checkpointing=selective", "adapter.dora=true"],
    ],
    ids=" ".join,
)
def test_both_recipes_train_the_same_adapter(train, words):
    one, other = (train(*QLORA, f"recipe={recipe}", *words).record for recipe in RECIPES)
    assert one.training.losses == other.training.losses
    assert one.memory.peak_tensor_bytes == pytest.approx(other.memory.peak_tensor_bytes, rel=1e-3)
    assert one.training.losses[0] != one.training.losses[-1]


def test_quantised_weights_count_their_real_bytes(train):
    words = ["model=llama_tiny", "model.width=128", "model.feed_forward=512", "eval.enabled=false"]
    lora, four, plain_scales, eight = (
        train("train.max_steps=2", *words, *chosen).record
        for chosen in (
            ["adapter=lora"],
            ["adapter=qlora"],
            ["adapter=qlora", "adapter.double_quant=false"],
            ["adapter=qlora", "adapter.bits=8"],
        )
    )
    for record in (four, plain_scales, eight):
        assert record.memory.parameter_count == lora.memory.parameter_count
        assert record.model.trained_parameters == lora.model.trained_parameters
        assert record.speed.model_flops_per_step == lora.speed.model_flops_per_step
    linear = 3 * 128 * 128 + 3 * 128 * 512  # one layer; keys and values have half of the heads
    saved = [lora.memory.weights_bytes - record.memory.weights_bytes for record in (four, plain_scales, eight)]
    # 4 bits and a scale of 8 bits for each 64 numbers, with a scale of 32 bits for 256 of those; tables of codes.
    assert saved[0] == pytest.approx(linear * (4 - 0.5 - 1 / 64 - 4 / (64 * 256)), rel=0.02)
    assert saved[1] == pytest.approx(linear * (4 - 0.5 - 4 / 64), rel=0.02)
    assert saved[2] == pytest.approx(linear * (4 - 1), rel=0.02)  # and a scale for each row


@pytest.mark.slow_for("model=gpt2_tiny", "model=llama_tiny")
@pytest.mark.parametrize(
    "words",
    [["model=llama_tiny"], ["model=bert_tiny", "adapter.bits=8", "model.width=64"], ["model=gpt2_tiny"]],
    ids=" ".join,
)
def test_peft_opens_a_saved_qlora_adapter(train, words):
    base = train(*words[:1], *words[2:], "save.final=true").folder / run_folder.MODEL_FOLDER
    asked = [*QLORA, *words[1:2], f"model.pretrained={base}", "train.learning_rate=0.05", "save.final=true"]
    run = train(*asked)
    cfg = compose("recipe=accelerate", "device=cpu", "data.seq_len=32", *asked).cfg
    cfg.data.eval_samples = run.record.config["data"]["eval_samples"]
    bare, rows = bare_model(cfg)
    answers = peft.PeftModel.from_pretrained(bare, str(run.folder / run_folder.MODEL_FOLDER)).eval()
    batch = {key: torch.stack([row[key] for row in rows.eval]) for key in rows.eval[0]}
    with torch.no_grad():
        loss = answers(**batch).loss
        with answers.disable_adapter():
            without = answers(**batch).loss
    assert loss.item() == pytest.approx(run.record.evaluation.loss, rel=1e-5) != without.item()


def test_pretrained_weights_are_quantised_as_random_ones_are(train, saved_llama):
    _, loaded, _ = built("adapter=qlora", f"model.pretrained={saved_llama}")
    _, whole, _ = built(f"model.pretrained={saved_llama}")
    from bitsandbytes import functional

    for name, weight in whole.named_parameters():
        found = loaded.get_parameter(name)
        if "proj" in name:
            packed, state = functional.quantize_4bit(weight.data, compress_statistics=True, quant_type="nf4")
            assert torch.equal(found.data, packed) and torch.equal(found.quant_state.absmax, state.absmax)
        else:
            assert torch.equal(found.data, weight.data)


@pytest.mark.parametrize("double", [True, False])
def test_scales_of_pretrained_weights_are_quantised_where_it_is_asked(train, double, saved_llama):
    words = ["adapter=qlora", f"adapter.double_quant={str(double).lower()}"]
    for weights in ([f"model.pretrained={saved_llama}"], ["model=llama_tiny"]):
        _, model, _ = built(*words, *weights)
        states = [layer.weight.quant_state for layer in model.modules() if hasattr(layer, "quant_state")]
        assert states and all(state.nested == double for state in states)


def test_random_weights_are_never_whole_in_32_bits(monkeypatch):
    """One layer at a time has memory before it is quantised."""
    wide, run = [], transformers_models_private.initialise_layers

    def watched(model, place, done):
        def finished(name, layer):
            linear = [m for m in model.modules() if type(m) is torch.nn.Linear and not m.weight.is_meta]
            wide.append(sum(m.weight.numel() for m in linear))
            done(name, layer)

        run(model, place, finished)

    monkeypatch.setattr(transformers_models_private, "initialise_layers", watched)
    _, model, _ = built("adapter=qlora", "model=llama_tiny", "model.layers=4")
    layer = sum(n for weight, n in quantized.counts(model.model.layers[0]).items() if weight.dim() == 2)
    assert len(wide) == 4 and max(wide) == layer


def test_weights_are_let_go_as_their_layer_is_quantised(monkeypatch):
    """Without waiting for Python's collector, which would find the whole model in 32 bits."""
    kept, run = [], transformers_models_private.initialise_layers

    def watched(model, place, done):
        def finished(name, layer):
            made = [weakref.ref(m.weight) for m in layer.modules() if type(m) is torch.nn.Linear]
            done(name, layer)
            kept.append((len(made), sum(weight() is not None for weight in made)))

        run(model, place, finished)

    monkeypatch.setattr(transformers_models_private, "initialise_layers", watched)
    gc.disable()
    try:
        built("adapter=qlora", "model=llama_tiny", "model.layers=2")
    finally:
        gc.enable()
    assert kept and all(made > 0 and alive == 0 for made, alive in kept)


@pytest.mark.parametrize("bits", [4, 8])
def test_random_weights_are_those_that_transformers_would_make(bits):
    """Norms are one, biases zero, and what is dequantised has the spread of the initialisation."""
    _, model, _ = built("adapter=qlora", f"adapter.bits={bits}", "model=gpt2_tiny", "model.width=64")
    from peft.utils.integrations import dequantize_bnb_weight

    layer = model.transformer.h[0]
    assert torch.equal(layer.ln_1.weight, torch.ones(64)) and not layer.attn.c_attn.bias.any()
    for module in (layer.attn.c_attn, layer.mlp.c_fc):
        weight = dequantize_bnb_weight(module.weight, getattr(module, "state", None))
        assert weight.shape == (module.out_features, 64)
        assert weight.float().std().item() == pytest.approx(model.config.initializer_range, rel=0.1)
    assert model.transformer.wte.weight is model.lm_head.weight


def test_an_evaluation_on_a_cpu_leaves_the_weights_trainable():
    """bitsandbytes repacks weights in evaluation mode where the CPU has AVX512-BF16: then there are no gradients."""
    _, model, _ = built("adapter=qlora", "model=llama_tiny")
    layers = [module for module in model.modules() if hasattr(module, "quant_state")]
    assert {module.support_avx512bf16_for_cpu for module in layers} == {False}


@pytest.mark.slow_for(
    "recipe=accelerate parallelism=ddp",
    "recipe=trainer parallelism=fsdp parallelism.strategy=shard_grad_op accumulation=x2 adapter.dora=true",
    "recipe=trainer parallelism=fsdp precision=bf16 checkpointing=full eval.every_steps=1",
)
@pytest.mark.parametrize(
    "words",
    [
        "recipe=accelerate parallelism=ddp",
        "recipe=accelerate parallelism=fsdp",
        "recipe=trainer parallelism=fsdp parallelism.strategy=shard_grad_op accumulation=x2 adapter.dora=true",
        "recipe=trainer parallelism=fsdp precision=bf16 checkpointing=full eval.every_steps=1",
    ],
)
def test_two_ranks_train_the_adapter_that_one_trains(train, words):
    """Under FSDP each has half of the bits, whatever the order in which they are gathered."""
    chosen = [*QLORA, "model=llama_tiny", "save.final=true", *words.split()]
    one = train(*(word for word in chosen if "parallelism" not in word), "batch.per_device=4")
    two = train(*chosen, "batch.per_device=2", "parallelism.num_processes=2")
    close = 1e-2 if "bf16" in words else 1e-5
    assert two.record.training.losses == pytest.approx(one.record.training.losses, rel=close)
    assert two.record.memory.parameter_count == one.record.memory.parameter_count
    assert two.record.evaluation.loss == pytest.approx(one.record.evaluation.loss, rel=close)
    if "fsdp" in words:
        assert two.record.memory.weights_bytes < 0.6 * one.record.memory.weights_bytes
    saved = [safetensors.torch.load_file(run.folder / "model/adapter_model.safetensors") for run in (one, two)]
    assert saved[0].keys() == saved[1].keys()
    for name, weight in saved[0].items():
        torch.testing.assert_close(saved[1][name], weight, rtol=close, atol=close)


def test_two_ranks_share_pretrained_weights_that_rank_0_has_quantised(train, saved_llama):
    words = [*QLORA, f"model.pretrained={saved_llama}", "train.learning_rate=0.01"]
    one = train(*words, "batch.per_device=4").record
    two = train(*words, "batch.per_device=2", "parallelism=fsdp", "parallelism.num_processes=2").record
    assert two.training.losses == pytest.approx(one.training.losses, rel=1e-5)


def test_layers_that_are_trained_whole_are_in_32_bits():
    cfg, model, _ = built("adapter=qlora", "model=bert_tiny", "precision=bf16")
    wrapped = adapter.with_adapter(cfg, model)
    assert {weight.dtype for weight in wrapped.parameters() if weight.requires_grad} == {torch.float32}
    assert wrapped.get_input_embeddings().weight.dtype == torch.bfloat16


def test_experts_that_are_not_quantised_are_said():
    for bits, is_said in ((16, True), (8, False)):
        cfg, model, _ = built("model=mixtral_tiny", "adapter=qlora", f"adapter.expert_bits={bits}")
        lines = adapter.Apply(cfg).warnings(adapter.with_adapter(cfg, model))
        assert any("experts in one tensor" in line for line in lines) == is_said


@pytest.mark.slow
def test_the_estimate_of_a_gpu_has_the_bytes_of_the_cpu(train, tmp_path):
    words = ["model=llama_tiny", "model.width=128", "adapter=qlora", "precision=bf16"]
    counted = train(*words).record.memory
    for gpu, bits in (("gpu=rtx4090_24gb", 4), ("gpu=v100_16gb", 4), ("gpu=rtx4090_24gb", 8)):
        chosen = [*words[:-1], "precision=fp16", f"adapter.bits={bits}", "device=auto"]
        foreseen = train(*chosen, "recipe=estimate", gpu).record
        assert foreseen.memory.parameter_count == counted.parameter_count
        if bits == 4:
            assert foreseen.memory.weights_bytes == counted.weights_bytes
        assert foreseen.speed.model_flops_per_step and foreseen.speed.step_seconds_median
        assert not any("bytes of" in line for line in foreseen.warnings), foreseen.warnings


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words,said",
    [
        (["parallelism=fsdp", "adapter.bits=8", "parallelism.num_processes=2"], "adapter.bits=4"),
        (["parallelism=fsdp_tp", "parallelism.num_processes=2"], "Choose parallelism=fsdp"),
        (["compile=true"], "adapter=lora"),
        (["eval.precision=bf16"], "eval.precision"),
        (["adapter.bits=8", "adapter.dora=true"], "adapter.bits=4"),
        (["adapter.bits=8", "adapter.double_quant=false"], "adapter.bits=4"),
        (["adapter.bits=3"], "adapter.bits"),
    ],
)
def test_it_is_refused_in_words(words, said):
    problems = compose("device=cpu", "adapter=qlora", *words).problems
    assert problems and any(said in line for line in problems)


@pytest.mark.parametrize("gpu, refused", [("v100_16gb", True), ("t4_16gb", False)])
def test_8_bits_need_matrix_units_for_integers(gpu, refused):
    problems = compose("recipe=estimate", f"gpu={gpu}", "adapter=qlora", "adapter.bits=8").problems
    assert any("adapter.bits=8 needs compute capability 7.5 or newer" in line for line in problems) == refused


def test_without_bitsandbytes_the_command_says_what_to_install(monkeypatch):
    version = host.version
    monkeypatch.setattr(host, "version", lambda package: None if package == "bitsandbytes" else version(package))
    (problem,) = compose("device=cpu", "adapter=qlora").problems
    assert "bitsandbytes" in problem and "adapter=lora" in problem


def test_weights_are_loaded_to_the_gpu_of_this_process(monkeypatch):
    cfg, model, _ = built("model=llama_tiny")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for device, place in (("cuda", torch.device("cuda", 1)), ("cpu", torch.device("cpu"))):
        told = quantized.loading_arguments(model, quantized.Bits(4), torch.bfloat16, device)
        assert told["device_map"] == {"": place} and told["quantization_config"].load_in_4bit
