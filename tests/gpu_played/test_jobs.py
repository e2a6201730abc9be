"""Whole jobs of both recipes on a played GPU: what only a GPU reaches runs, and ends in the record."""

import json

import pytest
from conftest import compose
from played_gpu import CACHED_BYTES, CONTEXT_BYTES, IDLE_BYTES, MIB, NAME, WORKSPACE_BYTES

from legroom.records import checkpoint_files
from legroom.records.messages import StepsDone

pytest_plugins = ["gpu_fixtures"]
RECIPES = ["trainer", "accelerate"]


@pytest.mark.slow_for("bf16_pure-trainer", "fp32-trainer", "tf32-trainer", "tf32-accelerate", "fp16-trainer")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("option", ["fp32", "tf32", "bf16", "fp16", "bf16_pure"])
def test_a_gpu_job_has_the_losses_of_the_cpu(train, on_gpu, recipe, option):
    words = [f"recipe={recipe}", f"precision={option}", "eval.precision=bf16"]
    played = on_gpu(*words, "train.max_steps=3")
    record, memory = played.record, played.record.memory
    assert record.environment["device"] == "cuda" and record.environment["device_name"] == NAME
    if option in ("fp32", "tf32", "bf16_pure"):
        on_cpu = train(*words, "train.max_steps=3", "precision=fp32" if option == "tf32" else words[1], "device=cpu")
        assert record.training.losses == on_cpu.record.training.losses
        assert record.evaluation.loss == on_cpu.record.evaluation.loss
        for part in ("parameters", "gradients", "optimizer"):  # AdamW takes all weights at once on a GPU only
            assert memory.largest_bytes[part] == on_cpu.record.memory.largest_bytes[part] > 0
        assert memory.largest_bytes["activations"] == on_cpu.record.memory.largest_bytes["activations"] > 0
    assert record.training.losses[0] == pytest.approx(0.69, abs=0.1)
    assert memory.peak_allocated_bytes > WORKSPACE_BYTES + memory.weights_bytes
    assert memory.peak_reserved_bytes == memory.peak_allocated_bytes + CACHED_BYTES
    assert memory.device_used_bytes == IDLE_BYTES + CONTEXT_BYTES + memory.peak_reserved_bytes
    assert memory.device_used_at_start_bytes == IDLE_BYTES
    assert CONTEXT_BYTES < memory.context_bytes < CONTEXT_BYTES + WORKSPACE_BYTES + CACHED_BYTES + MIB
    assert memory.weights_device_bytes >= memory.weights_bytes
    assert 0 < record.speed.step_seconds_median < 5 and 0 < record.speed.mfu < 1
    assert not [text for text in record.warnings if "empty" in text]
    shown = [message for message in played.messages if isinstance(message, StepsDone)][-1]
    assert shown.memory_bytes == memory.context_bytes + memory.peak_reserved_bytes < shown.memory_limit_bytes


@pytest.mark.slow_for("adafactor", "adam8bit", "paged_adam8bit", "paged_adamw", "paged_lion8bit")
@pytest.mark.parametrize(
    "option", ["adamw_fused", "adam8bit", "paged_adam8bit", "paged_adamw", "paged_lion8bit", "adafactor"]
)
def test_every_optimizer_takes_the_same_steps_in_both_recipes(on_gpu, option):
    wide = ["model.width=64", "model.feed_forward=128", f"optim={option}", "precision=bf16"]
    ours, theirs = (on_gpu(f"recipe={recipe}", *wide, "train.max_steps=3").record for recipe in RECIPES)
    assert ours.training.losses == pytest.approx(theirs.training.losses, rel=1e-3)
    assert ours.training.losses[-1] != ours.training.losses[0]


@pytest.mark.slow_for("accelerate")
@pytest.mark.parametrize("recipe", RECIPES)
def test_pinned_batches_of_a_process_checkpointing_and_accumulation(on_gpu, recipe):
    words = ["accumulation=x2", "checkpointing=full", "precision=bf16"]
    plain = on_gpu(f"recipe={recipe}", *words).record
    pinned = on_gpu(f"recipe={recipe}", *words, "data.workers=1", "data.pin_memory=true").record
    assert pinned.training.losses == plain.training.losses and pinned.training.samples == 8


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_training_with_a_gradient_scaler_and_dropout_resumes(on_gpu, recipe):
    words = [f"recipe={recipe}", "precision=fp16", "model.dropout=0.1", "train.max_steps=4", "measure.ledger=false"]
    whole = on_gpu(*words, "save.every_steps=2", "save.keep=4")
    checkpoint = whole.folder / "checkpoints" / checkpoint_files.folder_name(2)
    assert len(json.loads((checkpoint / "rank-0.json").read_text())["random"]["cuda"]) == 1
    resumed = on_gpu(*words, f"resume={checkpoint}")
    assert resumed.record.training.resumed_from_step == 2 and not resumed.record.warnings
    assert resumed.record.training.losses == whole.record.training.losses


# --- what ends a job, and what is said ---------------------------------------------------------------

FULL = """
import torch
from played_gpu import CARDS
def full(*_):
    raise CARDS.out_of_memory(20 * 2**20)
"""
WHERE = {
    "forward": "torch.nn.modules.module.register_module_forward_pre_hook(full)",
    "backward": "torch.nn.modules.module.register_module_full_backward_hook(full)",
    "step": "from torch.optim.optimizer import register_optimizer_step_pre_hook as hook\nhook(full)",
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("phase", WHERE)
def test_out_of_memory_says_where_and_what_to_change(on_gpu, recipe, phase):
    record = on_gpu(f"recipe={recipe}", code=FULL + WHERE[phase], status="oom").record
    assert record.error.phase == phase and record.error.type == "OutOfMemoryError"
    assert record.error.message.startswith("CUDA out of memory. Tried to allocate 20.00 MiB")
    assert "precision=bf16" in record.error.hint or "optim=" in record.error.hint
    assert record.memory.peak_allocated_bytes > WORKSPACE_BYTES  # what was measured until then
    assert record.memory.device_used_bytes > record.memory.peak_reserved_bytes


def test_a_limit_is_the_fraction_that_torch_may_use(on_gpu):
    record = on_gpu("launch.memory_limit_gib=0.0001", status="oom").record
    assert record.error.phase == "load" and "CUDA out of memory" in record.error.message
    assert on_gpu("launch.memory_limit_gib=1").record.status == "ok"


def test_another_program_on_the_card_is_a_warning(on_gpu):
    (warned,) = on_gpu(code="from played_gpu import CARDS\nCARDS.other_processes = [4711]").record.warnings
    assert "the GPU is not empty: 3 MiB are in use by process 4711" in warned
    record = on_gpu(code="from played_gpu import CARDS\nCARDS.idle_bytes = 700 * 2**20").record
    (warned,) = record.warnings
    assert "700 MiB are in use;" in warned and record.memory.device_used_at_start_bytes == 700 * MIB


NO_CODE = """
from played_gpu import CARDS
import torch
def take(size):
    raise torch.AcceleratorError("CUDA error: no kernel image is available for execution on the device")
CARDS.take = take
"""


@pytest.mark.parametrize(
    "code,said",
    [
        (NO_CODE, "no code for NVIDIA L4, only for sm_80, sm_89, sm_90"),
        ("from played_gpu import CARDS\nCARDS.visible = lambda: []", "NVML shows a GPU, but torch cannot use it"),
    ],
)
def test_a_torch_that_cannot_use_the_card_is_a_refusal(on_gpu, code, said):
    error = on_gpu(code=code, status="refused").record.error
    assert said in error.message and "device=cpu" in error.message


def test_an_error_of_cuda_is_a_failure_in_its_own_words(on_gpu):
    code = NO_CODE.replace("no kernel image is available for execution on the device", "an illegal memory access")
    error = on_gpu(code=code, status="failed").record.error
    assert error.type == "AcceleratorError" and "illegal memory access" in error.message


def test_a_card_that_does_not_say_how_much_is_in_use_trains(on_gpu):
    """A GPU that shares the host's memory: NVML has no figures of its own."""
    code = """
import pynvml
def unsupported(*version):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
pynvml.gpus[0]["nvmlDeviceGetMemoryInfo"] = unsupported
"""
    memory = on_gpu(code=code).record.memory
    assert memory.device_used_bytes is None and memory.context_bytes is None and memory.peak_reserved_bytes > 0


# --- predictions for the card at hand ------------------------------------------------------------------


@pytest.mark.slow
def test_an_estimate_is_for_the_card_at_hand_and_does_not_open_it(on_gpu):
    code = "import torch\nfrom played_gpu import CARDS\nCARDS.take = lambda size: 1 / 0"
    record = on_gpu("recipe=estimate", "gpu=auto", "device=auto", code=code).record
    assert record.config["gpu"]["device_name"] == NAME and record.estimate.fits


@pytest.mark.slow
def test_the_largest_batch_is_predicted_for_the_card(gpus):
    gpus()
    composed = compose("device=cuda", "accumulation=auto", "batch.effective=8", "model.layers=1", "data.seq_len=16")
    assert not composed.problems and composed.cfg.batch.per_device == 8
    assert f"predicted to fit {NAME}" in composed.cfg.accumulation.reason
