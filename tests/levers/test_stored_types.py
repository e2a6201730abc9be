"""precision: the types in which a base, an adapter and trained weights are stored, held to peft's own."""

from __future__ import annotations

import pytest
import torch
import transformers
from conftest import bare_model, compose, small

from legroom.data import byte_tokenizer, dataset
from legroom.levers.adapter import apply as adapter
from legroom.options import resume
from legroom.records import run_folder

peft = pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")

RECIPES = ["trainer", "accelerate"]
STEPS = 4
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of a small language model in fp32."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=512,
    )
    folder = tmp_path_factory.mktemp("base")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer.byte_tokenizer().save_pretrained(folder)
    return folder


def words_of(base, *more: str) -> list[str]:
    """One micro-batch of all rows in every step, so that their order does not matter."""
    rows = ["data.samples=4", "batch.per_device=4", f"train.max_steps={STEPS}", "train.learning_rate=0.01"]
    return [f"model.pretrained={base}", "adapter=lora", *rows, *more]


def built(*words: str):
    """The model of a configuration with its adapter."""
    cfg = compose("device=cpu", *words).cfg
    return adapter.with_adapter(cfg, bare_model(cfg)[0])


def stored(model) -> dict[tuple[str, torch.dtype], int]:
    """(adapter or base, type) -> bytes."""
    found: dict[tuple[str, torch.dtype], int] = {}
    for name, weight in model.named_parameters():
        key = ("adapter" if "lora_" in name else "base", weight.dtype)
        found[key] = found.get(key, 0) + weight.nbytes
    return found


# --- peft's own ------------------------------------------------------------------------------------


def losses_of_peft(cfg, base, base_dtype: torch.dtype) -> list[float]:
    """A loop as peft's examples have it: a base in `base_dtype`, fp32 adapters, autocast."""
    transformers.set_seed(0)
    rows = dataset.build_data(cfg, "language_modelling", 512)
    batch = rows.collate([rows.train[index] for index in range(len(rows.train))])
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=base_dtype)
    settings = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, settings).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = cfg.train.learning_rate * (1 - step / STEPS)
        with torch.autocast("cpu", BF16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, cfg.train.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("recipe", RECIPES)
def test_lora_under_bf16_trains_as_pefts_own_loop(train, base, recipe):
    words = words_of(base, "precision=bf16", f"recipe={recipe}")
    record = train(*words).record
    expected = losses_of_peft(compose(*small(*words)).cfg, base, BF16)
    assert record.training.losses == pytest.approx(expected, rel=1e-6) and expected[0] - expected[-1] > 0.01
    setup = record.config["precision"]
    assert (setup["base"], setup["adapter"], setup["weights"]) == ("bf16", "fp32", "fp32")


def test_a_base_in_fp32_is_there_for_who_asks(train, base):
    words = words_of(base, "precision=bf16", "precision.base=fp32")
    record = train(*words).record
    expected = losses_of_peft(compose(*small(*words)).cfg, base, FP32)
    assert record.training.losses == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("more", [[], ["adapter.dora=true"], ["adapter.targets=[q_proj,v_proj]"]], ids=" ".join)
def test_bytes_of_lora_are_those_of_peft(base, more):
    cfg = compose("device=cpu", *words_of(base, "precision=bf16", *more)).cfg
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=BF16)
    settings = peft.LoraConfig(r=16, target_modules=cfg.adapter.targets, use_dora=cfg.adapter.dora)
    assert stored(built(*words_of(base, "precision=bf16", *more))) == stored(peft.get_peft_model(model, settings))


@pytest.mark.parametrize("types, prepares", [([], False), (["precision.base=fp32"], True)], ids=["plain", "prepared"])
def test_bytes_of_qlora_are_those_of_peft(base, types, prepares):
    """prepare_model_for_kbit_training leaves norms and embeddings in fp32; precision.base=fp32 asks for that."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install legroom[8bit]")
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=BF16,
        llm_int8_skip_modules=["lm_head"],
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=BF16, quantization_config=settings)
    if prepares:
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    theirs = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules="all-linear"))
    ours = built(f"model.pretrained={base}", "adapter=qlora", "precision=bf16", *types)
    assert stored(ours) == stored(theirs)


# --- each key --------------------------------------------------------------------------------------

LLAMA = ["model=llama_tiny", "adapter=lora"]


@pytest.mark.parametrize(
    "words, base, adapter",
    [
        (["precision=fp32"], FP32, FP32),
        (["precision=bf16"], BF16, FP32),
        (["precision=bf16", "precision.base=fp32"], FP32, FP32),
        (["precision=bf16", "precision.adapter=bf16"], BF16, BF16),
        (["precision=bf16_pure"], BF16, BF16),
        (["precision=bf16_pure", "precision.adapter=fp32"], BF16, FP32),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_types_beside_an_adapter(words, base, adapter):
    model = built(*LLAMA, *words)
    assert {dtype for _, dtype in stored(model)} == {base, adapter}
    assert {weight.dtype for name, weight in model.named_parameters() if "lora_" in name} == {adapter}


@pytest.mark.parametrize("weights, expected", [("fp32", FP32), ("bf16", BF16)])
def test_modules_that_are_trained_whole_have_the_type_of_weights(weights, expected):
    model = built(*LLAMA, "adapter.modules_to_save=[lm_head]", "precision=bf16", f"precision.weights={weights}")
    whole = [weight for name, weight in model.named_parameters() if "modules_to_save" in name]
    assert {weight.dtype for weight in whole} == {expected} and whole[0].requires_grad


@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_in_bf16_under_autocast(train, recipe):
    """As TRL and axolotl train all weights of a model that was loaded in bf16."""
    record = train(f"recipe={recipe}", "model=llama_tiny", "precision=bf16", "precision.weights=bf16").record
    memory = record.memory
    assert memory.weights_bytes == 2 * memory.parameter_count == memory.largest_bytes["gradients"]


@pytest.mark.parametrize("embeddings", ["wte", "wpe"])
def test_embeddings_in_fp32_before_layer_norms_in_bf16_are_refused_on_a_cpu(train, embeddings):
    words = ["adapter=lora", "precision=bf16", "model=gpt2_tiny", f"adapter.modules_to_save=[{embeddings}]"]
    refused = train(*words, status="refused").record
    assert "Type precision.weights=bf16, or precision.base=fp32." in refused.error.message
    train(*words, "precision.weights=bf16")


@pytest.mark.parametrize(
    "words, instead",
    [
        (["precision=bf16", "precision.base=fp16"], "precision.base=bf16"),
        (["precision=bf16_pure", "precision.base=bf16"], "precision=bf16"),
        (["precision=bf16", "precision.adapter=fp16"], "fp32, bf16"),
    ],
    ids=" ".join,
)
def test_types_that_do_not_go_together_are_refused(words, instead):
    (problem,) = compose("device=cpu", *LLAMA, *words).problems
    assert words[-1].split("=")[0] in problem and instead in problem


@pytest.mark.parametrize("key", ["precision.base=fp32", "precision.adapter=bf16"])
def test_a_type_of_an_adapter_is_refused_without_one(key):
    (problem,) = compose("device=cpu", "precision=bf16", key).problems
    assert "Type adapter=lora" in problem


@pytest.mark.parametrize(
    "mode, instead",
    [
        (["parallelism=ddp"], "parallelism=fsdp"),
        (["parallelism=fsdp", "parallelism.strategy=no_shard"], "parallelism.strategy=full_shard"),
    ],
    ids=" ".join,
)
def test_a_type_of_reduction_is_refused_where_nothing_is_sharded(mode, instead):
    words = ["precision=bf16", "precision.reduction=bf16", *mode, "parallelism.num_processes=2"]
    assert any("precision.reduction" in line and instead in line for line in compose("device=cpu", *words).problems)


def test_two_types_in_a_unit_of_fsdp_are_refused(train):
    words = ["recipe=estimate", "gpu=h100_80gb", "device=auto", "parallelism=fsdp", "parallelism.num_processes=2"]
    words += [*LLAMA, "precision=bf16", "adapter.modules_to_save=[input_layernorm]"]
    refused = train(*words, "precision.adapter=bf16", status="refused").record
    assert "Type precision.adapter=fp32." in refused.error.message
    train(*words)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_model_with_types_of_both_widths_generates_under_autocast(train, recipe):
    words = [*LLAMA, "precision=bf16", "adapter.modules_to_save=[lm_head]", "data=source", "model.vocab=257"]
    record = train(f"recipe={recipe}", *words, "eval.generate=1", "measure.ledger=false").record
    assert len(record.evaluation.generated) == 1


# --- saved, resumed --------------------------------------------------------------------------------


def test_the_merged_model_has_the_type_of_the_base(train, base):
    run = train(*words_of(base, "precision=bf16", "save.final=true", "save.merge=true"))
    folder = run.folder / run_folder.MODEL_FOLDER
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert {weight.dtype for weight in merged.parameters()} == {BF16}


def test_the_merged_model_has_the_type_of_the_base_beside_embeddings_that_were_trained_in_fp32(train, base):
    words = ["adapter.modules_to_save=[embed_tokens]", "save.final=true", "save.merge=true"]
    run = train(*words_of(base, "precision=bf16", *words))
    assert transformers.AutoConfig.from_pretrained(run.folder / run_folder.MODEL_FOLDER).dtype == BF16


def test_a_saved_adapter_stays_in_fp32(train, base):
    run = train(*words_of(base, "precision=bf16", "save.final=true"))
    weights = peft.load_peft_weights(str(run.folder / run_folder.MODEL_FOLDER), device="cpu")
    assert {weight.dtype for weight in weights.values()} == {FP32}


@pytest.mark.parametrize(
    "words, changes",
    [(["adapter=lora", "precision=bf16"], ["precision.base=bf16 (there fp32)"]), (["precision=bf16"], [])],
    ids=["lora", "plain"],
)
def test_a_checkpoint_of_before_the_keys_is_known_by_what_it_stored(words, changes):
    cfg = compose("device=cpu", *words).cfg
    ours = resume.to_dict(cfg)
    older = resume.to_dict(cfg)
    for key in ("base", "weights", "adapter"):
        older["precision"].pop(key, None)
    assert resume.differences(ours, older) == changes
