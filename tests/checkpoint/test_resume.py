"""A run that was stopped, in whatever way, and resumed is the run that was never stopped: bit for bit."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
from conftest import compose, small, start_legroom
from safetensors.torch import load_file

from legroom.jobs import launch
from legroom.options import resume as resume_options
from legroom.records import checkpoint_files, record_file, run_folder

RECIPES = ["trainer", "accelerate"]
# Dropout, clipping, a schedule with a warm-up, accumulation, and epochs of 3 steps with a short last one.
TOLD = [
    "model.dropout=0.1",
    "accumulation=x2",
    "data.samples=11",
    "train.schedule=cosine",
    "train.warmup_steps=2",
    "train.weight_decay=0.1",
    "train.max_steps=8",
    "measure.ledger=false",
    "eval.enabled=false",
]
OPTIMIZERS = [
    *("adamw", "sgd", "adafactor", "adam8bit", "lion8bit", "muon", "schedule_free", "adamw4bit"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "rmsprop",
            "adagrad",
            "lion",
            "ademamix",
            "ademamix8bit",
            "stable_adamw",
            "adamw8bit_ao",
            "adamw_fp8",
        )
    ),
]


def steps(folder) -> list[int]:
    """The steps of a run's checkpoints, the oldest first."""
    return [checkpoint_files.step_of(path) for path in reversed(checkpoint_files.in_run(folder))]


@pytest.fixture(scope="module")
def whole(train):
    """whole(recipe, *options) -> a run that nothing stopped, with checkpoints after steps 2, 4, 6 and 8."""
    return functools.cache(
        lambda recipe, *options: train(f"recipe={recipe}", *TOLD, *options, "save.every_steps=2", "save.keep=9")
    )


# --- exact -------------------------------------------------------------------------------------------


@pytest.mark.slow_for(
    "accelerate-adafactor",
    "accelerate-adam8bit",
    "accelerate-lion8bit",
    "trainer-adamw4bit",
    "trainer-lion8bit",
    "trainer-muon",
)
@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_is_the_one_that_was_never_stopped(whole, again, tmp_path, recipe, optim):
    """From the middle of the second epoch; the last checkpoint's files are the same, byte for byte."""
    options = [f"optim={optim}", "model.width=64", "model.feed_forward=128"]  # wide enough for 8-bit states
    if optim == "schedule_free":
        pytest.importorskip("schedulefree")
        options.append("train.schedule=constant")  # the warm-up is the optimizer's own
    package = {"stable_adamw": "optimi", "adamw4bit": "torchao", "adamw8bit_ao": "torchao", "adamw_fp8": "torchao"}
    if optim in package:
        pytest.importorskip(package[optim])
    left_alone = whole(recipe, *options)
    assert steps(left_alone.folder) == [2, 4, 6, 8]
    shutil.copytree(checkpoint_files.in_run(left_alone.folder)[2], tmp_path / "checkpoints/step-00000004")
    resumed, _ = again(tmp_path, f"recipe={recipe}", *TOLD, *options, "save.every_steps=4", "resume=latest")
    assert resumed.training.resumed_from_step == 4
    assert resumed.training.losses == left_alone.record.training.losses
    for key in ("steps", "samples", "tokens", "final_loss"):
        assert getattr(resumed.training, key) == getattr(left_alone.record.training, key), key
    ours, theirs = checkpoint_files.in_run(tmp_path)[0], checkpoint_files.in_run(left_alone.folder)[0]
    for kind in ("weights", "optimizer"):
        name = f"rank-0.{kind}.safetensors"
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), kind


@pytest.mark.parametrize("recipe", RECIPES)
def test_saving_changes_nothing(train, whole, recipe):
    told = [f"recipe={recipe}", *TOLD, "optim=adamw"]
    unsaved, saved = train(*told), whole(recipe, "optim=adamw")
    assert unsaved.record.training == saved.record.training
    assert unsaved.record.speed.save_seconds is None and not steps(unsaved.folder)
    assert 0 < saved.record.speed.save_seconds < saved.record.speed.train_seconds


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("step", [2, 4, 6, 8])
def test_any_checkpoint_will_do(whole, again, tmp_path, recipe, step):
    """Before the end of an epoch, at its end (6), and after the last step (8), where nothing is left to train."""
    left_alone = whole(recipe)
    folder = left_alone.folder / "checkpoints" / checkpoint_files.folder_name(step)
    resumed, _ = again(tmp_path, f"recipe={recipe}", *TOLD, f"resume={folder}", "measure.warmup_steps=1")
    assert resumed.training.losses == left_alone.record.training.losses
    assert resumed.speed.measured_steps == {2: 5, 4: 3, 6: 1, 8: None}[step], "of the new steps, the warm-up left out"
    lines = [json.loads(line) for line in (tmp_path / run_folder.STEPS_FILE).read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    assert [line["loss"] for line in lines if "loss" in line] == resumed.training.losses


@pytest.mark.slow_for("accelerate")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_can_be_trained_longer(train, again, whole, tmp_path, recipe):
    """What it ends with after more steps is what a run of so many steps has (with a schedule that knows no end)."""
    told = [f"recipe={recipe}", *TOLD, "train.schedule=constant_with_warmup"]
    short = train(*told, "train.max_steps=3", "save.every_steps=3")
    longer, _ = again(tmp_path, *told, f"resume={short.folder}")
    assert longer.training.losses == train(*told).record.training.losses


@pytest.mark.parametrize("options", [[], ["optim=muon", "optim.in_backward=true", "train.max_grad_norm=0"]], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_longer_training_has_its_own_schedule(train, again, tmp_path, recipe, options):
    """The checkpoint of the shorter one says 0, with which its own schedule ends."""
    told = [f"recipe={recipe}", "train.schedule=linear", "train.learning_rate=0.5", "eval.enabled=false", *options]
    told.append("measure.ledger=false")
    short = train(*told, "train.max_steps=2", "save.every_steps=2")
    again(tmp_path, *told, "train.max_steps=4", "save.every_steps=3", f"resume={short.folder}")
    lines = [json.loads(line) for line in (tmp_path / run_folder.STEPS_FILE).read_text().splitlines()]
    assert [line["learning_rate"] for line in lines if "loss" in line][2:] == [0.25, 0.125]
    before, after = (
        load_file(checkpoint_files.in_run(folder)[0] / "rank-0.weights.safetensors")
        for folder in (short.folder, tmp_path)
    )
    assert all((weight != after[name]).any() for name, weight in before.items() if weight.is_floating_point())


# --- broken, and stopped while saving ----------------------------------------------------------------


def test_a_broken_checkpoint_is_skipped_and_named(whole, again, tmp_path):
    left_alone = whole("accelerate")
    for step in (2, 4, 6):
        shutil.copytree(
            left_alone.folder / "checkpoints" / checkpoint_files.folder_name(step),
            tmp_path / "checkpoints" / checkpoint_files.folder_name(step),
        )
    os.truncate(tmp_path / "checkpoints/step-00000006/rank-0.weights.safetensors", 100)
    (tmp_path / "checkpoints/step-00000004/manifest.json").unlink()
    told = ["recipe=accelerate", *TOLD, "resume=latest", "save.every_steps=3"]
    resumed, warned = again(tmp_path, *told)
    assert len(warned) == 2 and resumed.warnings[-2:] == warned
    assert "step-00000006/rank-0.weights.safetensors" in warned[0] and "step-00000004/manifest.json" in warned[1]
    assert resumed.training.resumed_from_step == 2
    assert resumed.training.losses == left_alone.record.training.losses
    assert steps(tmp_path) == [3, 6], "the broken ones are gone"


def test_nothing_but_broken_ones_is_a_new_start_or_a_refusal(whole, again, tmp_path):
    left_alone = whole("accelerate")
    broken = tmp_path / "checkpoints/step-00000006"
    shutil.copytree(left_alone.folder / "checkpoints/step-00000006", broken)
    (broken / "rank-0.optimizer.safetensors").write_bytes(b"")
    resumed, warned = again(tmp_path, "recipe=accelerate", *TOLD, "resume=latest")
    assert resumed.training.losses == left_alone.record.training.losses
    assert resumed.training.resumed_from_step is None and len(warned) == 2
    refused, _ = again(tmp_path, "recipe=accelerate", *TOLD, f"resume={broken}", status="refused")
    assert "no checkpoint there is whole" in refused.error.message


KILLED_AT_FLUSH = """
import os, legroom.records.checkpoint_files as checkpoint
flush, flushes = checkpoint._flush, 0
def killed(path):
    global flushes
    flushes += 1
    if flushes == {number}:
        os.kill(os.getpid(), 9)
    flush(path)
checkpoint._flush = killed
"""


@pytest.mark.slow_for("4", "5")
@pytest.mark.parametrize("number", range(1, 7))
def test_a_run_killed_in_a_save_resumes(train, fault, again, whole, number):
    """A save flushes six times: three files, the manifest, the folder, and after the renaming the folder above."""
    told = ["recipe=accelerate", *TOLD, "save.every_steps=2", "save.keep=1"]
    killed = train(*told, fork_server=fault(KILLED_AT_FLUSH.format(number=6 + number)), status="killed")
    assert killed.record.error.phase == "save"
    assert steps(killed.folder) == ([2, 4] if number == 6 else [2])
    resumed, warned = again(killed.folder, *told, "resume=latest")
    assert not warned and resumed.training.resumed_from_step == (4 if number == 6 else 2)
    assert resumed.training.losses == whole("accelerate").record.training.losses
    assert sorted(os.listdir(killed.folder / "checkpoints")) == ["step-00000008"]


FULL_DISK = """
import errno, legroom.records.checkpoint_files as checkpoint
flush, flushes = checkpoint._flush, 0
def full(path):
    global flushes
    flushes += 1
    if flushes == 8:
        raise OSError(errno.ENOSPC, "No space left on device")
    flush(path)
checkpoint._flush = full
"""


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_full_disk_ends_the_run_and_leaves_the_earlier_checkpoint(train, fault, recipe):
    run = train(f"recipe={recipe}", *TOLD, "save.every_steps=2", fork_server=fault(FULL_DISK), status="failed")
    assert run.record.error.phase == "save" and "disk is full" in run.record.error.hint
    assert os.listdir(run.folder / "checkpoints") == ["step-00000002"]
    assert run.record.training.steps == 4


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_as_one_left_alone(kills, train, again, monkeypatch, tmp_path):
    """Each time a random number of messages, and of microseconds, after the worker has begun to speak."""
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)  # pytest shows it where the test fails
    moments = random.Random(seed)
    told = ["recipe=accelerate", *TOLD, f"train.max_steps={20 * kills + 40}", "train.log_seconds=0"]
    left_alone = train(*told)
    workers, start = [], launch.start
    monkeypatch.setattr(launch, "start", lambda *job: workers.append(start(*job)) or workers[-1])

    def kill(*_):  # four messages for two steps and a checkpoint
        nonlocal patience
        patience -= 1
        if patience == 0:
            time.sleep(moments.uniform(0, 0.005))
            os.kill(workers[-1][0].process.pid, signal.SIGKILL)

    statuses, reached = [], []
    for number in range(kills + 1):
        patience = moments.randint(1, 48) if number < kills else -1
        outcome, warned = again(tmp_path, *told, "save.every_steps=2", "resume=latest", status=None, on_message=kill)
        statuses.append(outcome.status)
        reached.append(max(steps(tmp_path), default=0))
        assert not warned, (seed, warned)
    assert statuses == ["killed"] * kills + ["ok"], (seed, statuses, reached)
    assert reached == sorted(reached) and len(set(reached)) > 0.4 * kills, (seed, reached)
    assert outcome.training.resumed_from_step == reached[-2]
    assert outcome.training.losses == left_alone.record.training.losses, seed


# --- preempted ---------------------------------------------------------------------------------------

SIGNAL_AT_THIRD_STEP = """
import os, signal, torch
step, taken = torch.optim.AdamW.step, 0
def third(*args, **settings):
    global taken
    taken += 1
    if taken == 3:
        os.kill(os.getpid(), signal.{name})
    return step(*args, **settings)
torch.optim.AdamW.step = third
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_signal_saves_after_the_step_and_ends_the_run_as_preempted(train, fault, again, whole, recipe, name):
    told = [f"recipe={recipe}", *TOLD, "eval.enabled=true", "save.final=true"]
    stopped = train(*told, fork_server=fault(SIGNAL_AT_THIRD_STEP.format(name=name)), status="preempted")
    assert steps(stopped.folder) == [3] and stopped.record.training.steps == 3 and stopped.record.error is None
    assert stopped.record.evaluation is None and not (stopped.folder / "model").exists()
    resumed, _ = again(stopped.folder, *told, "resume=latest")
    assert resumed.training.resumed_from_step == 3 and resumed.evaluation is not None
    assert resumed.training.losses == whole(recipe).record.training.losses


def test_a_signal_before_the_training_is_no_failure_either(tmp_path):
    """While the worker imports its libraries."""
    process = start_legroom(*small("hydra.run.dir=here"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "here" / run_folder.LOG_FILE).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0 and "Traceback" not in out + err
    left = record_file.read(tmp_path / "here")
    assert left.status == "preempted" and left.error is None and "before the first step" in left.warnings[-1]
    assert left.training.steps == 0 and steps(tmp_path / "here") == []


AGAIN = [
    "recipe=accelerate",
    *TOLD,
    "train.max_steps=300",
    "train.log_seconds=0",
    "hydra.run.dir=here",
    "resume=latest",
]


def wait_for_steps(folder, alive=lambda: True) -> None:
    deadline = time.monotonic() + 90
    while not ((folder / run_folder.STEPS_FILE).exists() and (folder / run_folder.STEPS_FILE).stat().st_size):
        assert time.monotonic() < deadline and alive()
        time.sleep(0.01)


@pytest.mark.slow
def test_a_signal_to_the_command_and_the_same_command_again_and_again(command, train, tmp_path):
    """As a cluster does it; once more when all is done."""
    process = start_legroom(*small(*AGAIN), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for_steps(tmp_path / "here", lambda: process.poll() is None)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0 and "preempted" in out and "Traceback" not in out + err
    assert not psutil.wait_procs(workers, timeout=5)[1]

    def usr1():
        wait_for_steps(tmp_path / "here")
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)

    for signals in (1, 2):
        left = record_file.read(tmp_path / "here")
        assert left.status == "preempted" and 0 < left.training.steps < 300
        assert steps(tmp_path / "here")[-1] == left.training.steps
        if signals == 1:
            (tmp_path / "here" / run_folder.STEPS_FILE).unlink()
            threading.Thread(target=usr1).start()
            assert command(*small(*AGAIN)).code == 0
    assert command(*small(*AGAIN)).code == 0
    done = record_file.read(tmp_path / "here")
    assert done.status == "ok" and done.training.resumed_from_step == left.training.steps
    assert done.training.losses == train(*AGAIN[:-2]).record.training.losses
    assert "ok:" in command(*small(*AGAIN), fork_server=None).out


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_while_it_evaluates_saves_what_was_trained(train, fault, name):
    """The evaluation sends the signal itself; the run that resumes has only the evaluation left."""
    code = f"""
import os, signal, legroom.training.evaluate as part
part.evaluate = lambda *_: os.kill(os.getpid(), signal.{name}) or __import__("time").sleep(60)
"""
    run = train("recipe=accelerate", status="preempted", fork_server=fault(code))
    assert run.record.training.steps == 2 and [path.name for path in checkpoint_files.in_run(run.folder)] == [
        "step-00000002"
    ]
    assert run.record.evaluation is None


IN_FIRST_SWAP = """
import os, signal, schedulefree, torch
lerp = torch.Tensor.lerp_
def swap(self, mode=schedulefree.AdamWScheduleFree.eval):
    def once(*args, **settings):
        torch.Tensor.lerp_ = lerp
        lerp(*args, **settings)
        os.kill(os.getpid(), signal.SIGTERM)
    torch.Tensor.lerp_ = once
    mode(self)
schedulefree.AdamWScheduleFree.eval = swap
"""
IN_EVALUATION = """
import os, signal, legroom.training.evaluate as evaluate
evaluate.totals = lambda *_: [os.kill(os.getpid(), signal.SIGTERM) for _ in range(2)]
"""


@pytest.mark.parametrize("code", [IN_EVALUATION, IN_FIRST_SWAP], ids=["evaluation", "swap"])
def test_a_signal_in_an_evaluation_keeps_schedule_free_weights(train, fault, code):
    """They are swapped for the evaluation, which rounds; the signal may also come between two of them."""
    pytest.importorskip("schedulefree")
    told = ["optim=schedule_free", "train.schedule=constant", "train.max_steps=3"]
    stopped = train(*told, fork_server=fault(code), status="preempted")
    whole = train(*told, "save.every_steps=3", "eval.enabled=false")
    assert steps(stopped.folder) == steps(whole.folder) == [3]
    for kind in ("weights", "optimizer"):
        ours, theirs = (run.folder / f"checkpoints/step-00000003/rank-0.{kind}.safetensors" for run in (stopped, whole))
        assert ours.read_bytes() == theirs.read_bytes(), kind


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_evaluation_between_two_steps_changes_no_loss(train, recipe):
    pytest.importorskip("schedulefree")
    told = [f"recipe={recipe}", "optim=schedule_free", "train.schedule=constant", "train.max_steps=6"]
    losses = [train(*told, *more).record.training.losses for more in ([], ["eval.every_steps=1"])]
    assert losses[0] == losses[1]


@pytest.mark.slow_for("accelerate")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_runs_ledger_and_flops_are_those_of_a_run_left_alone(train, again, tmp_path, recipe):
    """The step under the ledger is one step more, however many steps came before it."""
    told = [f"recipe={recipe}", *TOLD, "measure.ledger=true", "train.max_steps=4", "save.every_steps=2"]
    run = train(*told)
    left_alone, checkpoint = run.record, checkpoint_files.folder_name(2)
    shutil.copytree(run.folder / "checkpoints" / checkpoint, tmp_path / "checkpoints" / checkpoint)
    resumed, _ = again(tmp_path, *told, "resume=latest")
    assert resumed.training.resumed_from_step == 2
    assert resumed.speed.model_flops_per_step == left_alone.speed.model_flops_per_step > 0
    for part in ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "peak_tensor_bytes"):
        assert getattr(resumed.memory, part) == getattr(left_alone.memory, part), part


SLOW_DISK = """
import time
from legroom.records import checkpoint_files
write = checkpoint_files.write
def slow(*args):
    time.sleep(0.7)
    return write(*args)
checkpoint_files.write = slow
"""


@pytest.mark.slow
def test_a_slow_save_is_no_part_of_a_steps_time(train, fault):
    run = train("train.max_steps=4", "save.every_steps=1", fork_server=fault(SLOW_DISK))
    assert run.record.speed.step_seconds_p90 < 0.6


def test_latest_is_the_newest_unless_a_folder_is_typed(tmp_path, monkeypatch):
    run = tmp_path / "outputs" / "day" / "time"
    manifest = run / checkpoint_files.FOLDER / "step-3" / checkpoint_files.MANIFEST
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint_files, "config_of", lambda folder: {})
    monkeypatch.setattr(resume_options, "same", lambda *_, **__: True)
    cfg, new = compose("resume=latest").cfg, Path("new")
    for typed, folder in (("hydra.verbose=true", run), (resume_options.NO_FOLDER, run), ("hydra.run.dir=x", new)):
        assert resume_options.resume_folder(cfg, new, [typed]) == folder
