"""Experts in one tensor under adapter=qlora: in 4 and 8 bits, trained beside, saved, counted and foretold."""

from __future__ import annotations

import pytest
import torch
import transformers
from conftest import bare_model, compose, small
from torch.nn.utils import parametrize

from legroom.compat import transformers_models_private
from legroom.estimator.ledger import quantised
from legroom.levers.adapter import apply as adapter
from legroom.models import moe, quantized, quantized_experts, trained
from legroom.records import run_folder

peft = pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install legroom[8bit]")

MIXTRAL = ["model=mixtral_tiny", "model.width=64"]
SIZES = ["model.experts=4", "model.experts_per_token=2", "model.kv_heads=2", "model.width=64"]
QWEN = ["model=qwen3_30b_a3b", *SIZES]
GPT_OSS = ["model=gpt_oss_20b", *SIZES]  # its experts are transposed, and have biases
FAMILIES = [MIXTRAL, QWEN, GPT_OSS]
ADAPTED = ["adapter=qlora", "adapter.expert_rank=8"]


def built(*words: str):
    """(configuration, model before the adapter, data), the same whenever they are built."""
    torch.manual_seed(0)
    cfg = compose(*small("recipe=accelerate", *words)).cfg
    return cfg, *bare_model(cfg)


def with_plain_experts(model):
    """The model with experts that are what those in 4 or 8 bits are read as."""
    for module in list(model.modules()):
        for name in quantized_experts.quantised_tensors(module):
            numbers = getattr(module, name)
            parametrize.remove_parametrizations(module, name, leave_parametrized=False)
            setattr(module, name, torch.nn.Parameter(numbers, requires_grad=False))
    assert not quantised.experts(model)
    return model


def adapted(cfg, model, seed: int = 0):
    """The model with adapters whose second matrices are not zero."""
    model = adapter.with_adapter(cfg, model)
    torch.manual_seed(seed)
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
    return model


def gradients(model, rows) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(loss, name -> gradient) of a batch."""
    batch = {key: torch.stack([row[key] for row in rows.train][:2]) for key in rows.train[0]}
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda words: words[0])
def test_they_train_as_experts_that_were_dequantised_beforehand(family, bits, monkeypatch):
    """The twin's adapters are added to the weights, as peft does it."""
    cfg, model, rows = built(*family, *ADAPTED, f"adapter.expert_bits={bits}")
    twin = with_plain_experts(built(*family, *ADAPTED, f"adapter.expert_bits={bits}")[1])
    ours = gradients(adapted(cfg, model), rows)
    monkeypatch.setattr(moe, "apply_adapters_apart", lambda _: None)
    theirs = gradients(adapted(cfg, twin), rows)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=0)
    assert ours[1].keys() == theirs[1].keys() and any("experts" in name for name in ours[1])
    for name, gradient in theirs[1].items():
        torch.testing.assert_close(ours[1][name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("words", [MIXTRAL, GPT_OSS], ids=lambda words: words[0])
@pytest.mark.parametrize("bits, error", [(4, 0.12), (8, 0.01)])
def test_the_error_is_that_of_the_format(words, bits, error):
    """Of normally distributed numbers NF4's is about a tenth of their spread, that of 8 bits a hundredth."""
    _, model, _ = built(*words, "adapter=qlora", "adapter.expert_bits=16")
    module = next(module for module in model.modules() if transformers_models_private.is_experts(module))
    exact = {name: weight.detach().clone() for name, weight in module.named_parameters() if weight.dim() == 3}
    quantized_experts.quantise(module, bits, torch.float32, None)
    assert quantized_experts.quantised_tensors(module) == list(exact)
    for name, weight in exact.items():
        assert (getattr(module, name) - weight).std() < error * weight.std()
        assert getattr(module, name).shape == weight.shape


def test_8_bits_keep_experts_of_zeros():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(2, 3, 4))
    quantized_experts.quantise(module, 8, torch.bfloat16, None)
    assert torch.equal(module.weight, torch.zeros(2, 3, 4, dtype=torch.bfloat16))


def test_autograd_keeps_no_numbers_of_quantised_experts():
    cfg, model, rows = built(*MIXTRAL, "adapter=qlora")
    model = adapter.with_adapter(cfg, model)
    sizes = {tuple(weight().shape) for weight in quantised.experts(model)}
    kept = []

    def pack(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gradients(model, rows)
    transposed = {(size[0], size[2], size[1]) for size in sizes}
    assert kept and not (sizes | transposed) & set(kept)


@pytest.mark.parametrize(
    "words",
    [
        [*MIXTRAL, "adapter=qlora", "precision=bf16", "accumulation=x2", "checkpointing=full"],
        pytest.param([*QWEN, *ADAPTED, "adapter.bits=8"], marks=pytest.mark.slow),
        pytest.param([*MIXTRAL, "adapter=lora", "adapter.expert_rank=8", "precision=bf16"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_both_recipes_train_the_same(train, words):
    asked = [*words, "train.max_steps=4", "data.samples=16", "train.learning_rate=0.01"]
    one, other = (train(*asked, f"recipe={recipe}").record for recipe in ("trainer", "accelerate"))
    assert one.training.losses == other.training.losses
    assert one.memory.peak_tensor_bytes == pytest.approx(other.memory.peak_tensor_bytes, rel=1e-3)
    assert one.training.losses[0] != one.training.losses[-1]


@pytest.mark.slow
def test_two_ranks_train_the_adapter_that_one_trains(train):
    words = [*MIXTRAL, *ADAPTED, "data.samples=16", "train.learning_rate=0.01"]
    one = train(*words, "batch.per_device=4").record
    two = train(*words, "batch.per_device=2", "parallelism=ddp", "parallelism.num_processes=2").record
    assert two.training.losses == pytest.approx(one.training.losses, rel=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_they_count_their_real_bytes(bits):
    sizes = {}
    for each in (16, bits):
        _, model, _ = built(*MIXTRAL, "adapter=qlora", f"adapter.expert_bits={each}")
        assert quantized.count(model) == quantized.count(built(*MIXTRAL)[1])
        held = [*model.parameters(), *quantised.scales(model)]
        sizes[each] = sum(tensor.nbytes for tensor in held)
    numbers, rows = 4 * 3 * 64 * 64, 4 * (2 * 64 + 64)  # E experts of three matrices
    if bits == 4:  # and two tables of codes for each tensor
        packed = numbers * (0.5 + 1 / 64) + numbers / (64 * 256) * 4 + 2 * (16 + 256 + 1) * 4
    else:
        packed = numbers + 4 * rows
    assert sizes[16] - sizes[bits] == pytest.approx(4 * numbers - packed, abs=16)


def test_the_adapter_has_the_rank_and_the_scale_that_are_asked_for():
    cfg, model, _ = built(*QWEN, *ADAPTED, "adapter.rank=16", "adapter.alpha=32")
    wrapped = adapter.with_adapter(cfg, model)
    beside = [module for module in wrapped.modules() if type(module).__name__ == "ParamWrapper"]
    assert {each.parameter_name for each in beside} == {"gate_up_proj", "down_proj"}
    assert {(each.r["default"], each.scaling["default"]) for each in beside} == {(8, 2.0)}
    others = [module for module in wrapped.modules() if hasattr(module, "lora_A") and module not in beside]
    assert {(each.r["default"], each.scaling["default"]) for each in others} == {(16, 2.0)}


@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_all_linear_are_the_linear_layers_alone(kind):
    """Not the router and the experts, which peft counts among them."""
    cfg, model, _ = built(*QWEN, f"adapter={kind}")
    wrapped = adapter.with_adapter(cfg, model)
    trained = {name.split(".lora_")[0].rpartition(".")[2] for name, w in wrapped.named_parameters() if w.requires_grad}
    assert trained == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert any("adapter.expert_rank" in line for line in adapter.Apply(cfg).warnings(wrapped))


# --- saved, loaded, merged, resumed ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(train):
    return train(*MIXTRAL, "save.final=true").folder / run_folder.MODEL_FOLDER


@pytest.mark.parametrize("bits", [4, 8])
def test_pretrained_experts_are_quantised_as_random_ones_are(base, bits):
    _, loaded, _ = built("adapter=qlora", f"adapter.expert_bits={bits}", f"model.pretrained={base}")
    _, whole, _ = built(f"model.pretrained={base}")
    for module in list(whole.modules()):
        if transformers_models_private.is_experts(module):
            quantized_experts.quantise(module, bits, torch.float32, None)
    ours, theirs = quantised.experts(loaded), quantised.experts(whole)
    assert len(ours) == len(theirs) == 2
    for one, other in zip(ours, theirs):
        assert torch.equal(one.original, other.original) and torch.equal(one(), other())
    kinds = {type(layer).__name__ for layer in loaded.modules() if quantized.is_quantised(layer)}
    assert kinds == {"Linear4bit"}


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_the_saved_adapter_and_the_merged_model_answer_as_the_trained_one_did(train, base, bits):
    words = [*ADAPTED, f"adapter.expert_bits={bits}", f"model.pretrained={base}", "save.final=true"]
    words += ["train.learning_rate=0.05", "train.max_steps=4"]
    run = train(*words)
    opened, *_ = trained.open_adapter(run.folder / run_folder.MODEL_FOLDER, run.record, "cpu", as_trained=True)
    assert len(quantised.experts(opened)) == 2
    cfg, _, rows = built(*words)
    batch = {key: torch.stack([row[key] for row in rows.eval]) for key in rows.eval[0]}
    with torch.no_grad():
        loss, again = (opened(**batch).loss.item() for _ in range(2))
        with opened.disable_adapter():
            without = opened(**batch).loss.item()
    assert loss == again == pytest.approx(run.record.evaluation.loss, rel=1e-5) != without
    merged = train(*words, "save.merge=true").folder / run_folder.MODEL_FOLDER
    _, model, _ = built(f"model.pretrained={merged}")
    with torch.no_grad():
        assert model.eval()(**batch).loss.item() == pytest.approx(loss, rel=1e-5)


def test_peft_alone_opens_an_adapter_beside_experts_in_16_bits(train, base):
    words = ["adapter=lora", "adapter.expert_rank=8", f"model.pretrained={base}", "save.final=true"]
    run = train(*words, "train.learning_rate=0.05", "train.max_steps=4")
    cfg, _, rows = built(*words)
    bare = transformers.AutoModelForCausalLM.from_pretrained(base)
    answers = peft.PeftModel.from_pretrained(bare, str(run.folder / run_folder.MODEL_FOLDER)).eval()
    batch = {key: torch.stack([row[key] for row in rows.eval]) for key in rows.eval[0]}
    with torch.no_grad():
        assert answers(**batch).loss.item() == pytest.approx(run.record.evaluation.loss, rel=1e-5)


@pytest.mark.slow
def test_a_training_goes_on_where_it_was_saved(train, base):
    words = [*ADAPTED, f"model.pretrained={base}", "data.samples=16", "train.schedule=constant", "save.every_steps=2"]
    whole = train(*words, "train.max_steps=4").record
    first = train(*words, "train.max_steps=2")
    second = train(*words, "train.max_steps=4", f"resume={first.folder}").record
    assert second.training.losses[-2:] == whole.training.losses[-2:]


# --- foretold --------------------------------------------------------------------------------------------


def test_qwen3_30b_a3b_is_foretold_to_train_within_24_gb(predicted):
    words = ["model=qwen3_30b_a3b", "model.layers=2", "adapter=qlora", "precision=bf16", "checkpointing=full"]
    memory = predicted(*words, "gpu=rtx4090_24gb", "data.seq_len=512", "batch.per_device=1").memory
    layer = (128 * 3 * 768 * 2048 + 2 * 2048 * 4096 + 2 * 2048 * 512) * (0.5 + 1 / 64 + 4 / (64 * 256))
    ends = 2 * 2 * 151_936 * 2048  # embeddings and the output layer, in bf16
    assert memory.weights_bytes == pytest.approx(ends + 2 * layer, rel=0.01)
    assert memory.peak_reserved_bytes + 46 * layer < 22 * 2**30


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        ("adapter.expert_rank=4", "multiple of 8"),
        ("adapter.expert_rank=8 adapter.dropout=0.1", "adapter.dropout=0"),
        ("adapter.expert_rank=8 adapter.dora=true", "adapter.dora"),
        ("adapter.expert_rank=8 adapter.rslora=true", "adapter.rslora"),
        ("adapter.expert_bits=3", "adapter.expert_bits"),
    ],
)
def test_it_is_refused_in_words(words, said):
    problems = compose("device=cpu", "model=mixtral_tiny", "adapter=qlora", *words.split()).problems
    assert problems and any(said in line for line in problems)


@pytest.mark.parametrize(
    "words, said",
    [
        ("model=mixtral_tiny adapter=qlora parallelism=fsdp parallelism.num_processes=2", "adapter.expert_bits=16"),
        ("model=llama_tiny adapter=lora adapter.expert_rank=8", "no experts"),
    ],
)
def test_it_is_refused_before_weights_are_read(train, words, said):
    refused = train(*words.split(), status="refused").record
    assert said in refused.error.message


@pytest.mark.slow
def test_fsdp_trains_beside_experts_that_are_not_quantised(train):
    words = [*MIXTRAL, "adapter=qlora", "adapter.expert_bits=16", "train.learning_rate=0.01"]
    one = train(*words, "batch.per_device=4").record
    two = train(*words, "batch.per_device=2", "parallelism=fsdp", "parallelism.num_processes=2").record
    assert two.training.losses == pytest.approx(one.training.losses, rel=1e-5)
