"""model.attention beside sdpa and eager: where it is refused; and windows, which both recipes and an estimate apply."""

from __future__ import annotations

import shutil

import pytest
import torch
from conftest import compose
from test_ledger_pairs import differing, fake, real
from transformers import AutoConfig, AutoModelForCausalLM, modeling_flash_attention_utils

from legroom.compat import transformers_models_private
from legroom.errors import Refusal
from legroom.foresight import simulation
from legroom.levers.attention import rules as attention
from legroom.machine import host
from legroom.models import architectures
from legroom.options.model import AUTO

NEWER = ["flash_attention_3", "flash_attention_4", "kernels-community/flash-attn2", "flex_attention"]


def problem(*words: str) -> str:
    return "\n".join(compose("model=llama_tiny", *words).problems)


@pytest.mark.parametrize("name", NEWER)
def test_a_cpu_trains_without_it(name):
    said = problem(f"model.attention={name}", "device=cpu")
    assert said.startswith(f"model.attention={name} needs a GPU") and "Choose model.attention=sdpa." in said


@pytest.mark.parametrize(
    "name, module, said",
    [
        ("flash_attention_3", "flash_attn_interface", "flash-attn-3: build hopper/"),
        ("kernels-community/flash-attn3", "kernels", "pip install kernels"),
        ("flex_attention", "triton", "pip install triton"),
    ],
)
def test_what_to_install_is_said(pretend_gpu, monkeypatch, name, module, said):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda asked: asked != module)
    words = [f"model.attention={name}", "precision=bf16"]
    assert said in problem(*words)
    monkeypatch.setattr(host, "has", lambda asked: True)
    assert problem(*words) == ""


@pytest.mark.parametrize(
    "words, said",
    [
        (["model.attention=flash_attention_3"], "works in 16 bits only. Choose precision=bf16"),
        (["model.attention=flash_attention_3", "model.dropout=0.1", "precision=bf16"], "Type model.dropout=0"),
        (["model.attention=flex_attention", "model.dropout=0.1"], "Type model.dropout=0"),
        (["model.attention=flex_attention", "checkpointing=selective"], "Choose checkpointing=full"),
        (["model.attention=flex_attention", "measure.operations=true"], "Leave measure.operations out"),
    ],
)
def test_what_contradicts_it_is_refused(pretend_gpu, monkeypatch, words, said):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: True)
    assert said in problem(*words)


def test_flex_needs_the_compiler_of_triton(pretend_gpu, monkeypatch):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: True)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    said = problem("model.attention=flex_attention")
    assert said.startswith("model.attention=flex_attention needs a C compiler") and "model.attention=sdpa" in said


def test_flash_needs_ampere_and_flex_does_not(pretend_gpu, monkeypatch):
    pretend_gpu((7, 5))
    monkeypatch.setattr(host, "has", lambda module: True)
    assert "compute capability 8.0" in problem("model.attention=flash_attention_3", "precision=fp16")
    assert problem("model.attention=flex_attention") == ""


def test_flash_4_needs_hopper_and_its_own_package(pretend_gpu, monkeypatch):
    """flash-attn has a module of the same name."""
    words = ["model.attention=flash_attention_4", "precision=bf16"]
    monkeypatch.setattr(host, "has", lambda module: True)
    pretend_gpu((8, 9))
    assert "compute capability 9.0 (Hopper)" in problem(*words)
    pretend_gpu((9, 0))
    assert "pip install flash-attn-4" in problem(*words)
    version = host.version
    monkeypatch.setattr(host, "version", lambda name: "4.0" if name == "flash-attn-4" else version(name))
    assert problem(*words) == ""
    assert problem("recipe=estimate", "gpu=b200_180gb", *words) == ""
    assert "Type model.dropout=0" in problem(*words, "model.dropout=0.1")


def test_flex_has_no_ledger_and_that_is_said(pretend_gpu, monkeypatch):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: True)
    for words, count in ((["flex_attention"], 1), (["flex_attention", "measure.ledger=false"], 0), (["sdpa"], 0)):
        lines = attention.warnings(compose("model=llama_tiny", f"model.attention={words[0]}", *words[1:]).cfg)
        assert ["Type measure.ledger=false, or model.attention=sdpa." in line for line in lines] == [True] * count


def test_an_estimate_knows_flash_attention_and_refuses_flex():
    words = ["recipe=estimate", "gpu=h100_80gb", "precision=bf16"]
    assert problem(*words, "model.attention=flash_attention_3") == ""
    assert "Type model.attention=sdpa" in problem(*words, "model.attention=flex_attention")


def test_the_estimate_of_a_hub_kernel_is_that_of_torchs_flash_attention(tmp_path):
    """Of the GPUs on which torch chooses its own copy of these kernels."""
    words = ["recipe=estimate", "gpu=a100_80gb", "precision=bf16", "model=llama_tiny", "data.seq_len=32"]
    names = ("sdpa", "kernels-community/flash-attn2")
    steps = [compose(*words, f"model.attention={name}").cfg for name in names]
    sdpa, hub = (simulation.simulate_step(cfg, str(tmp_path)) for cfg in steps)
    assert sdpa.parts == hub.parts and hub.model.attention == names[1]


def test_flash_attention_has_no_mask_for_a_window_and_works_less(tmp_path):
    """sdpa gets a mask as soon as the window is no longer than the rows, and then torch takes another kernel."""
    sizes = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=64)
    AutoConfig.for_model("mistral", **sizes, num_key_value_heads=2, sliding_window=16).save_pretrained(tmp_path)
    words = ["recipe=estimate", "gpu=a100_80gb", "precision=bf16", f"model.pretrained={tmp_path}", "data.seq_len=64"]
    done = {}
    for name in ("sdpa", "flash_attention_2"):
        simulated = simulation.simulate_step(compose(*words, f"model.attention={name}").cfg, str(tmp_path))
        counts = simulated.tally.counts.values()
        done[name] = {one.name: one.flops for phase in counts for one in phase if one.kind == "attention"}
    assert all("efficient" in kernel for kernel in done["sdpa"]) and len(done["sdpa"]) == 2
    assert set(done["flash_attention_2"]) == {"_flash_attention_forward", "_flash_attention_backward"}
    assert max(done["flash_attention_2"].values()) < max(done["sdpa"].values()) / 3


@pytest.mark.parametrize("name", ["flash_attention_3", "flex_attention"])
def test_a_model_without_it_or_with_dropout_is_refused(name):
    cfg = compose("device=cpu", "model=llama_tiny").cfg
    cfg.model.attention = name
    with pytest.raises(Refusal, match="is not supported by BloomForCausalLM. Type model.attention=auto"):
        architectures.check(cfg, AutoConfig.for_model("bloom"), "language_modelling")
    architectures.check(cfg, AutoConfig.for_model("llama"), "language_modelling")
    with pytest.raises(Refusal, match="has no dropout, which model=llama_tiny has"):
        architectures.check(cfg, AutoConfig.for_model("llama", attention_dropout=0.1), "language_modelling")


def test_attention_packages_of_other_versions_are_refused(monkeypatch):
    cfg = compose("device=cpu", "model=llama_tiny").cfg
    cfg.model.attention = "kernels-community/flash-attn2"
    monkeypatch.setattr(transformers_models_private, "wanted_kernels", lambda: "kernels>=1,<2")
    with pytest.raises(Refusal, match="pip install 'kernels>=1,<2', or choose model.attention=sdpa"):
        architectures.check(cfg, AutoConfig.for_model("llama"), "language_modelling")


def test_a_missing_hub_kernel_is_refused_early(monkeypatch):
    def load(name, *_, **__):
        raise ValueError(f"An error occurred while trying to load from '{name}': no route\nto the host.")

    cfg = compose("device=cpu", "model=llama_tiny").cfg
    cfg.model.attention = "kernels-community/flash-attn2"
    monkeypatch.setattr(transformers_models_private, "wanted_kernels", lambda: None)
    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", load)
    with pytest.raises(Refusal, match="flash-attn2 cannot be loaded: .*no route. Choose model.attention=sdpa"):
        architectures.check(cfg, AutoConfig.for_model("llama"), "language_modelling")


def test_the_schema_names_what_the_module_knows():
    from legroom.config import menus

    choices = menus.Model.__dataclass_fields__["attention"].metadata["choices"]
    assert set(choices) == {AUTO, "sdpa", "eager", attention.FLEX, *attention.FLASH}


# --- windows -----------------------------------------------------------------------------------------

WINDOWED = {
    "mistral": {"sliding_window": 4},
    "qwen2": {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8},
}
SIZES = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=200,
    max_position_embeddings=64,
)


@pytest.fixture
def saved(tmp_path):
    """saved(family, **more) -> the words for a tiny model of the family, its weights the same for any settings."""

    def save(family: str, **more) -> list[str]:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **more))
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(5 if weight.dim() > 1 else 1)  # so that the logits depend on what a token sees
        folder = tmp_path / f"{family}-{len(list(tmp_path.iterdir()))}"
        model.save_pretrained(folder)
        return [f"model.pretrained={folder}", "data.seq_len=32"]

    return save


def test_a_window_is_applied_in_both_recipes_by_sdpa_and_by_eager(train, saved):
    words = saved("mistral", **WINDOWED["mistral"])
    jobs = [("trainer", "sdpa"), ("accelerate", "sdpa"), ("accelerate", "eager")]
    runs = [train(*words, f"recipe={recipe}", f"model.attention={name}").record for recipe, name in jobs]
    ours, theirs, eager = (run.training.losses for run in runs)
    assert ours == theirs and eager == pytest.approx(ours, rel=1e-5)
    (whole,) = (train(*saved("mistral", sliding_window=None)).record.training.losses,)
    assert abs(whole[0] - ours[0]) > 1e-3, "the window changes what a token sees"


@pytest.mark.slow_for("gemma3_text-eager", "mistral-eager", "qwen2-sdpa")
@pytest.mark.parametrize("name", ["sdpa", "eager"])
@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_takes_in_an_estimate_what_it_takes(saved, tmp_path, family, name):
    words = [*saved(family, **WINDOWED[family]), f"model.attention={name}"]
    counted, foreseen = real(words, tmp_path), fake(words, tmp_path)
    assert not differing(counted, foreseen)
