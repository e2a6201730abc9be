"""What is said of a failure: whether it is a lack of memory, and what to try next."""

from __future__ import annotations

import pytest
import torch
from conftest import compose

from legroom.errors import Refusal, first_line
from legroom.foresight import advice
from legroom.jobs import failures


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        RuntimeError("could not create a primitive"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_is_recognised(error):
    status, described = failures.describe(error, "eval", compose("device=cpu").cfg)
    assert status == "oom" and described.phase == "eval" and described.hint


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape mismatch"),
        ValueError("out of range"),
        RuntimeError("could not create a primitive descriptor for a matmul primitive"),  # a kernel that oneDNN lacks
        KeyError("memory"),
        OSError(28, "No space left on device"),
    ],
    ids=str,
)
def test_other_errors_are_failures(error):
    status, described = failures.describe(error, "load", compose("device=cpu").cfg)
    assert status == "failed" and described.type == type(error).__name__


class Silent(Exception):
    def __str__(self):
        raise AttributeError("an error of a library that cannot say what it is")


@pytest.mark.parametrize(
    "error, said",
    [(ValueError(" a\nb "), "a"), (KeyError(), "KeyError"), (ValueError("\n"), "ValueError"), (Silent(), "Silent")],
    ids=range(4),
)
def test_error_without_message_has_its_type(error, said):
    assert first_line(error) == said


def test_refusal_and_interrupt_are_no_failures():
    cfg = compose("device=cpu").cfg
    assert failures.describe(Refusal("type that instead"), "load", cfg)[0] == "refused"
    assert failures.describe(KeyboardInterrupt(), "load", cfg)[0] == "interrupted"
    with pytest.raises(RuntimeError) as behind:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")
    status, described = failures.describe(behind.value, "load", cfg)
    assert (status, described.type) == ("interrupted", "KeyboardInterrupt")


IN_BACKWARD = "optim.in_backward=true train.max_grad_norm=0"


@pytest.mark.parametrize(
    "words,tried,untried",
    [
        ([], ["precision=bf16", "batch.per_device=2 accumulation=x2", "checkpointing=full", "optim=adam8bit"], []),
        (
            ["precision=bf16", "checkpointing=full", "optim=adam8bit"],
            ["batch.per_device=2"],
            ["precision", "checkpointing", "optim=", "data."],
        ),
        (["batch.per_device=1"], ["precision=bf16", "checkpointing=full"], ["batch.per_device", "accumulation"]),
        (["accumulation=x16"], ["batch.per_device=2 accumulation.steps=32"], []),
        (["batch.effective=16"], ["batch.per_device=2"], ["accumulation"]),
        (["parallelism=fsdp"], ["precision=bf16", "optim.in_backward=true"], ["optim="]),
    ],
    ids=lambda words: " ".join(words),
)
def test_hint_names_the_remaining_levers(words, tried, untried):
    hint = advice.untried(compose("device=cpu", *words).cfg)
    assert all(lever in hint for lever in tried) and not any(lever in hint for lever in untried), hint


@pytest.mark.parametrize(
    "words,hint",
    [
        ([], f"optim=adamw_fused, optim=adam8bit, {IN_BACKWARD}, precision=bf16_pure"),
        (["optim=adamw_fused", "precision=bf16_pure"], f"optim=adam8bit, {IN_BACKWARD}"),
        (["optim=sgd", *IN_BACKWARD.split()], "precision=bf16_pure"),
    ],
    ids=str,
)
def test_hint_in_the_optimizer_step(words, hint):
    assert advice.untried(compose("device=cpu", *words).cfg, "step") == f"Try, the cheapest first: {hint}."


def test_hint_without_remaining_levers():
    words = ["optim=sgd", "precision=bf16", "batch.per_device=1", "checkpointing=full", "data.seq_len=2"]
    words += IN_BACKWARD.split()
    assert "smaller model" in advice.untried(compose("device=cpu", *words).cfg)
    words = ["optim=adam8bit", "precision=bf16_pure", *IN_BACKWARD.split()]
    assert "smaller model" in advice.untried(compose("device=cpu", *words).cfg, "step")


def test_hint_for_an_older_gpu():
    hint = advice.untried(compose("recipe=estimate", "gpu=v100_16gb").cfg)
    assert "precision=fp16" in hint and "bf16" not in hint


@pytest.mark.slow_for(
    "backward-['accumulation=x2']",
    "backward-['batch.effective=16']",
    "backward-['data.seq_len=3']",
    "backward-['model=llama_tiny', 'batch.per_device=6']",
    "backward-['model=llama_tiny', 'parallelism=fsdp_tp', 'parallelism.num_processes=4']",
    "backward-['parallelism=ddp', 'parallelism.static_graph=true']",
    "backward-['parallelism=fsdp']",
    "step-['parallelism=ddp', 'parallelism.static_graph=true']",
    "step-[]",
)
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["precision=bf16", "optim=sgd"],
        ["batch.effective=16"],
        ["accumulation=x2"],
        ["model=llama_tiny", "batch.per_device=6"],
        ["parallelism=fsdp"],
        ["data.seq_len=3"],
        ["parallelism=ddp", "parallelism.static_graph=true"],
        ["model=llama_tiny", "parallelism=fsdp_tp", "parallelism.num_processes=4"],
    ],
    ids=str,
)
@pytest.mark.parametrize("phase", ["backward", "step"])
def test_levers_of_a_hint_can_be_typed(words, phase):
    hint = advice.untried(compose("device=cpu", *words).cfg, phase)
    for lever in hint.removeprefix("Try, the cheapest first: ").rstrip(".").split(", "):
        named = {word.split("=")[0].split(".")[0] for word in lever.split()}
        kept = [word for word in words if word.split("=")[0].split(".")[0] not in named - {"batch"}]
        assert compose("device=cpu", *kept, *lever.split()).problems == [], lever


@pytest.mark.parametrize(
    "message,word",
    [
        ("No space left on device", "disk"),
        ("CUDA driver version is insufficient", "driver"),
        ("DataLoader worker (pid 7) exited", "data.workers=0"),
    ],
)
def test_common_failures_have_a_hint(message, word):
    assert word in failures.failure_hint(RuntimeError(message))
    assert failures.failure_hint(RuntimeError("something else")) is None
