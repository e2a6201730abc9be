"""compile: the same training, and what it needs."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch
from conftest import compose, small
from support.accelerate_state import own_state

from legroom import config
from legroom.machine import host
from legroom.measure import operations as measured_operations
from legroom.training import setup


@pytest.mark.slow
def test_compiled_training_loses_the_same_in_both_recipes(train):
    """Or is refused in words, where there is no compiler."""
    words = ["model=gpt2_tiny", "train.max_steps=4", "measure.warmup_steps=1"]
    if host.compiler() is None:
        assert "compile=true" in "\n".join(compose(*small(*words, "compile=true")).problems)
        return
    plain, ours, theirs = (
        train(*words, f"recipe={recipe}", f"compile={value}").record
        for recipe, value in (("trainer", "false"), ("trainer", "true"), ("accelerate", "true"))
    )
    assert ours.training.losses == pytest.approx(plain.training.losses, rel=1e-4)
    assert theirs.training.losses == pytest.approx(ours.training.losses, rel=1e-5)
    for record in (ours, theirs):
        assert record.memory.peak_tensor_bytes == pytest.approx(plain.memory.peak_tensor_bytes, rel=0.01)
        assert record.speed.model_flops_per_step == plain.speed.model_flops_per_step
        # The step in which the code was compiled took seconds, and is left out.
        assert record.speed.step_seconds_p90 < record.speed.train_seconds / 4
        assert record.evaluation.loss == pytest.approx(plain.evaluation.loss, rel=1e-4)
        assert 0.1 < record.speed.compile_seconds < record.speed.train_seconds
    assert plain.speed.compile_seconds is None


@pytest.mark.slow
@pytest.mark.skipif(host.compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
@pytest.mark.parametrize(
    "words",
    [
        "model=gpt2_tiny compile_regions=true accumulation=x2",
        "model=llama_tiny adapter=lora checkpointing=full precision=bf16",
        "model=llama_tiny compile_regions=true adapter=lora checkpointing=full data=chat data.packing=true",
    ],
)
def test_compiled_beside_other_levers_it_loses_the_same(train, tmp_path, words, recipe):
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(f'{{"prompt": "ask {n}", "completion": "{"word " * (n % 5 + 1)}"}}\n' for n in range(12)))
    options = [*words.split(), "train.max_steps=3", *([f"data.path={path}"] if "data=chat" in words else [])]
    compiled = train(*options, f"recipe={recipe}", "compile=true").record
    plain = train(*(word for word in options if "regions" not in word), f"recipe={recipe}").record
    assert compiled.training.losses == pytest.approx(plain.training.losses, rel=1e-2 if "bf16" in words else 1e-4)
    assert compiled.speed.compile_seconds > 0.1 and compiled.memory.peak_tensor_bytes, compiled.warnings
    assert compiled.memory.peak_tensor_bytes == pytest.approx(plain.memory.peak_tensor_bytes, rel=0.01)


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_both_recipes_give_mode_and_regions_to_accelerate(tmp_path, recipe):
    """A training that compiles the whole model in another mode has the same losses."""
    mode = "max-autotune-no-cudagraphs"
    words = [f"recipe={recipe}", "model=gpt2_tiny", "compile=true", "compile_regions=true", f"compile_mode={mode}"]
    with own_state():
        plugin = setup.build(compose(*small(*words)).cfg, str(tmp_path)).loop.accelerator.state.dynamo_plugin
    assert plugin.use_regional_compilation is True and plugin.mode == mode


@pytest.mark.parametrize(
    "words, compiles",
    [(["compile=true"], True), (["optim=adamw4bit"], True), (["optim=adamw4bit", "device=cpu"], False), ([], False)],
)
def test_compilation_of_the_optimizers_step_counts_too(pretend_gpu, monkeypatch, words, compiles):
    """Its steps are left out of the speed, and what it runs is not what is counted and timed."""
    pretend_gpu((9, 0))
    cfg = compose("device=cuda", *words).cfg
    cfg = host.configuration(config.to_dict(cfg))  # as a worker has it
    assert cfg.compiles is compiles
    said = []
    measured = SimpleNamespace(summary=None, details={})
    monkeypatch.setattr(measured_operations, "measure", lambda *_: measured)
    loop = SimpleNamespace(accelerator=SimpleNamespace(device=torch.device(cfg.target.device)))
    measured_operations.enter(cfg, SimpleNamespace(), loop, SimpleNamespace(warn=said.append))
    assert ["as written" in text for text in said] == [True] * compiles


@pytest.mark.parametrize(
    "words, said",
    [
        (["compile_regions=true"], "Type compile=true"),
        (["compile_mode=max-autotune-no-cudagraphs"], "Type compile=true"),
        (["compile=true", "compile_mode=reduce-overhead"], "compile_mode=reduce-overhead"),
        (["compile=true", "compile_regions=true", "parallelism=fsdp"], "Choose parallelism=ddp"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_words(words, said):
    assert said in "\n".join(compose("device=cpu", *words).problems)


def test_compile_without_a_compiler_is_refused(monkeypatch):
    monkeypatch.setattr(host, "compiler", lambda: None)
    (line,) = compose("device=cpu", "compile=true").problems
    assert "compile=true" in line and "g++" in line and "leave compile out" in line


def test_compile_on_a_gpu_needs_triton_and_a_c_compiler(pretend_gpu, monkeypatch):
    pretend_gpu((9, 0))
    monkeypatch.setattr(host, "has", lambda module: module != "triton")
    assert "pip install triton" in "\n".join(compose("compile=true").problems)
    monkeypatch.setattr(host, "has", lambda module: True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "C compiler" in "\n".join(compose("compile=true").problems)
