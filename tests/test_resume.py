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

import psutil
import pytest
from conftest import compose, small, start_headroom

from recipes import checkpoint, launch, record, resume, supervise, sweep

RECIPES = ["trainer", "accelerate"]
# Dropout, clipping, a schedule with a warm-up, accumulation, and epochs of 3 steps with a short last one.
TOLD = ["model.dropout=0.1", "accumulation=x2", "data.samples=11", "train.schedule=cosine", "train.warmup_steps=2",
        "train.weight_decay=0.1", "train.max_steps=8", "measure.ledger=false", "eval.enabled=false"]
OPTIMIZERS = ["adamw", "sgd", "adafactor", "adam8bit", "lion8bit"]


def steps(folder) -> list[int]:
    """The steps of a run's checkpoints, the oldest first."""
    return [checkpoint.step_of(path) for path in reversed(checkpoint.found(folder))]


@pytest.fixture(scope="module")
def whole(train):
    """whole(recipe, *options) -> a run that nothing stopped, with checkpoints after steps 2, 4, 6 and 8."""
    return functools.cache(lambda recipe, *options: train(
        f"recipe={recipe}", *TOLD, *options, "save.every_steps=2", "save.keep=9"))


@pytest.fixture
def again(make_job, nursery):
    """again(folder, *words, status="ok", hear=) -> (record, warnings): a job in a folder that has been used."""

    def again(folder, *words: str, status: str | None = "ok", hear=lambda *_: None):
        job, warned = make_job(*small(*words)), []
        job.folder = folder
        (folder / record.FILE_NAME).unlink(missing_ok=True)

        def listen(kind, values):
            hear(kind, values)
            if kind == "warning":
                warned.append(values["text"])

        outcome = supervise.run(job, listen, nursery)
        assert status in (None, outcome.status), (outcome.error, (folder / launch.LOG_FILE).read_text()[-2000:])
        return outcome, warned

    return again


# --- exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_is_the_one_that_was_never_stopped(whole, again, tmp_path, recipe, optim):
    """From the middle of the second epoch; the last checkpoint's files are the same, byte for byte."""
    options = [f"optim={optim}", "model.width=64", "model.feed_forward=128"]  # wide enough for 8-bit states
    left_alone = whole(recipe, *options)
    assert steps(left_alone.folder) == [2, 4, 6, 8]
    shutil.copytree(checkpoint.found(left_alone.folder)[2], tmp_path / "checkpoints/step-00000004")
    resumed, _ = again(tmp_path, f"recipe={recipe}", *TOLD, *options, "save.every_steps=4", "resume=latest")
    assert resumed.training.resumed_from_step == 4
    assert resumed.training.losses == left_alone.record.training.losses
    for key in ("steps", "samples", "tokens", "final_loss"):
        assert getattr(resumed.training, key) == getattr(left_alone.record.training, key), key
    for kind in ("weights", "optimizer"):
        ours, theirs = (checkpoint.found(folder)[0] / f"rank-0.{kind}.safetensors"
                        for folder in (tmp_path, left_alone.folder))
        assert ours.read_bytes() == theirs.read_bytes(), kind


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
    folder = left_alone.folder / "checkpoints" / checkpoint.name(step)
    resumed, _ = again(tmp_path, f"recipe={recipe}", *TOLD, f"resume={folder}", "measure.warmup_steps=1")
    assert resumed.training.losses == left_alone.record.training.losses
    assert resumed.speed.measured_steps == {2: 5, 4: 3, 6: 1, 8: None}[step], "of the new steps, the warm-up left out"
    lines = [json.loads(line) for line in (tmp_path / launch.STEPS_FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["loss"] for line in lines] == resumed.training.losses


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_can_be_trained_longer(train, again, whole, tmp_path, recipe):
    """What it ends with after more steps is what a run of so many steps has (with a schedule that knows no end)."""
    told = [f"recipe={recipe}", *TOLD, "train.schedule=constant_with_warmup"]
    short = train(*told, "train.max_steps=3", "save.every_steps=3")
    longer, _ = again(tmp_path, *told, f"resume={short.folder}")
    assert longer.training.losses == train(*told).record.training.losses


# --- broken, and stopped while saving ----------------------------------------------------------------


def test_a_broken_checkpoint_is_skipped_with_a_warning_that_names_the_file(whole, again, tmp_path):
    left_alone = whole("accelerate")
    for step in (2, 4, 6):
        shutil.copytree(left_alone.folder / "checkpoints" / checkpoint.name(step),
                        tmp_path / "checkpoints" / checkpoint.name(step))
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
    assert resumed.training.resumed_from_step is None and len(warned) == 1
    refused, _ = again(tmp_path, "recipe=accelerate", *TOLD, f"resume={broken}", status="refused")
    assert "no checkpoint there is whole" in refused.error.message


KILLED_AT_FLUSH = """
import os, recipes.checkpoint as checkpoint
flush, flushes = checkpoint._flush, 0
def killed(path):
    global flushes
    flushes += 1
    if flushes == {number}:
        os.kill(os.getpid(), 9)
    flush(path)
checkpoint._flush = killed
"""


@pytest.mark.parametrize("number", range(1, 7))
def test_a_run_killed_while_it_saves_goes_on_from_the_last_whole_checkpoint(train, fault, again, whole, number):
    """A save flushes six times: three files, the manifest, the folder, and after the renaming the folder above."""
    told = ["recipe=accelerate", *TOLD, "save.every_steps=2", "save.keep=1"]
    killed = train(*told, nursery=fault(KILLED_AT_FLUSH.format(number=6 + number)), status="killed")
    assert killed.record.error.phase == "save"
    assert steps(killed.folder) == ([2, 4] if number == 6 else [2])
    resumed, warned = again(killed.folder, *told, "resume=latest")
    assert not warned and resumed.training.resumed_from_step == (4 if number == 6 else 2)
    assert resumed.training.losses == whole("accelerate").record.training.losses
    assert sorted(os.listdir(killed.folder / "checkpoints")) == ["step-00000008"]


FULL_DISK = """
import errno, recipes.checkpoint as checkpoint
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
    run = train(f"recipe={recipe}", *TOLD, "save.every_steps=2", nursery=fault(FULL_DISK), status="failed")
    assert run.record.error.phase == "save" and "disk is full" in run.record.error.hint
    assert os.listdir(run.folder / "checkpoints") == ["step-00000002"]
    assert run.record.training.steps == 4


def test_a_run_killed_at_twenty_random_moments_ends_as_one_left_alone(train, again, monkeypatch, tmp_path):
    """Most of them while it trains and saves, every fourth while it may still be loading what was saved."""
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)  # pytest shows it where the test fails
    moments = random.Random(seed)
    told = ["recipe=accelerate", *TOLD, "train.max_steps=600", "train.log_seconds=0.05"]
    left_alone = train(*told)
    workers, start = [], launch.start
    monkeypatch.setattr(launch, "start", lambda *job: workers.append(start(*job)) or workers[-1])

    def kill(kind, values):
        if kind == "phase" and values["name"] == ("building bert_tiny" if len(workers) % 4 == 0 else "training"):
            heard.append(kind)
            if len(heard) == 1 and len(workers) <= 20:
                pid = workers[-1].process.pid
                threading.Timer(moments.uniform(0, 0.12), os.kill, (pid, signal.SIGKILL)).start()

    statuses, reached = [], []
    for _ in range(21):
        heard = []
        outcome, warned = again(tmp_path, *told, "save.every_steps=2", "resume=latest", status=None, hear=kill)
        statuses.append(outcome.status)
        reached.append(max(steps(tmp_path), default=0))
        assert not warned, (seed, warned)
    assert statuses == ["killed"] * 20 + ["ok"], (seed, statuses, reached)
    assert reached == sorted(reached) and len(set(reached)) > 8, (seed, reached)
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
    stopped = train(*told, nursery=fault(SIGNAL_AT_THIRD_STEP.format(name=name)), status="preempted")
    assert steps(stopped.folder) == [3] and stopped.record.training.steps == 3 and stopped.record.error is None
    assert stopped.record.evaluation is None and not (stopped.folder / "model").exists()
    resumed, _ = again(stopped.folder, *told, "resume=latest")
    assert resumed.training.resumed_from_step == 3 and resumed.evaluation is not None
    assert resumed.training.losses == whole(recipe).record.training.losses


def test_without_on_signal_a_signal_ends_the_worker(train, fault):
    run = train(*TOLD, "save.on_signal=false", nursery=fault(SIGNAL_AT_THIRD_STEP.format(name="SIGUSR1")),
                status="killed")
    assert not steps(run.folder)


AGAIN = ["recipe=accelerate", *TOLD, "train.max_steps=500", "train.log_seconds=0", "hydra.run.dir=here", "resume=latest"]


def wait_for_steps(folder, alive=lambda: True) -> None:
    deadline = time.monotonic() + 90
    while not ((folder / launch.STEPS_FILE).exists() and (folder / launch.STEPS_FILE).stat().st_size):
        assert time.monotonic() < deadline and alive()
        time.sleep(0.01)


def test_a_signal_to_the_command_and_the_same_command_again_and_again(command, train, tmp_path):
    """As a cluster does it; once more when all is done."""
    process = start_headroom(*small(*AGAIN), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
        left = record.read(tmp_path / "here")
        assert left.status == "preempted" and 0 < left.training.steps < 500
        assert steps(tmp_path / "here")[-1] == left.training.steps
        if signals == 1:
            (tmp_path / "here" / launch.STEPS_FILE).unlink()
            threading.Thread(target=usr1).start()
            assert command(*small(*AGAIN)).code == 0
    assert command(*small(*AGAIN)).code == 0
    done = record.read(tmp_path / "here")
    assert done.status == "ok" and done.training.resumed_from_step == left.training.steps
    assert done.training.losses == train(*AGAIN[:-2]).record.training.losses
    assert "ok:" in command(*small(*AGAIN), nursery=None).out


# --- the command: which folder, which training --------------------------------------------------------

SAVED = [*small("recipe=accelerate", "train.max_steps=4", "measure.ledger=false"), "save.every_steps=2"]
BREAKS = """
import recipes.save
def fail(self, step, save=recipes.save.Saver.after_step):
    if step == 3:
        raise RuntimeError("injected")
    return save(self, step)
recipes.save.Saver.after_step = fail
"""


def runs(tmp_path):
    return sorted(path for path in tmp_path.glob("outputs/*/*") if path.is_dir())


def test_latest_finds_the_newest_run_of_the_same_training(command, fault, tmp_path):
    afresh = command(*SAVED, "resume=latest", nursery=fault(BREAKS))
    assert afresh.code == 1
    [run] = runs(tmp_path)
    assert record.read(run).status == "failed" and steps(run) == [2]
    assert command(*SAVED, "train.seed=7", "resume=latest").code == 0, "another training: it starts afresh"
    [_, other] = runs(tmp_path)
    # Watched, measured and started in another way it is the same training.
    assert command(*SAVED, "tracker=none", "measure.warmup_steps=1", "eval.enabled=false", "resume=latest").code == 0
    assert runs(tmp_path) == [run, other]
    assert record.read(run).status == "ok" and record.read(run).training.resumed_from_step == 2
    done = command(*SAVED, "resume=latest", nursery=None)
    assert done.code == 0 and str(run.name) in done.out and runs(tmp_path) == [run, other]
    assert command(*SAVED).code == 0 and len(runs(tmp_path)) == 3, "without the word it is a new run"


def test_a_folder_that_was_chosen_is_looked_at_alone(command, fault, tmp_path):
    assert command(*SAVED, "hydra.run.dir=a", nursery=fault(BREAKS)).code == 1
    assert command(*SAVED, "hydra.run.dir=b", "resume=latest").code == 0
    assert record.read(tmp_path / "b").training.resumed_from_step is None
    occupied = command(*SAVED, "hydra.run.dir=a", nursery=None)
    assert occupied.code == 2 and "resume=latest" in occupied.err
    other = command(*SAVED, "train.seed=7", "hydra.run.dir=a", "resume=latest", nursery=None)
    assert other.code == 2 and "another run" in other.err
    assert command(*SAVED, "hydra.run.dir=a", "resume=latest").code == 0
    assert record.read(tmp_path / "a").training.losses == record.read(tmp_path / "b").training.losses


def test_a_folder_that_is_named_must_hold_this_training(command, tmp_path):
    assert command(*SAVED, "hydra.run.dir=a").code == 0
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        refused = command(*SAVED, f"resume={folder}", nursery=None)
        assert refused.code == 2 and "holds no checkpoint" in refused.err
    refused = command(*SAVED, "train.seed=7", "model.width=64", "resume=a", nursery=None)
    assert refused.code == 2 and "train.seed=7 (there 0)" in refused.err and "model.width=64 (there 32)" in refused.err
    assert "optim" not in refused.err
    refused = command(*SAVED, "batch.per_device=4", "resume=a", nursery=None)
    assert refused.code == 2 and "batch.effective=4 (there 2)" in refused.err
    refused = command(*SAVED, "train.max_steps=3", "resume=a", nursery=None)
    assert refused.code == 2 and "stands at step 4" in refused.err
    assert record.read(tmp_path / "a").status == "ok", "none of this has touched the run"
    assert command(*SAVED, "train.max_steps=6", "resume=a/checkpoints/step-00000002", "hydra.run.dir=b").code == 0
    assert record.read(tmp_path / "b").training.resumed_from_step == 2
    assert len(record.read(tmp_path / "b").training.losses) == 6


def test_the_signature_is_of_the_training_alone():
    def signature(*words):
        return resume.signature(compose(*words).record.config)

    plain = signature("device=cpu")
    for words in (["tracker=none"], ["save.every_steps=3"], ["measure.warmup_steps=9"], ["launch.timeout_seconds=9"],
                  ["eval.enabled=false"], ["train.log_seconds=9"], ["data.workers=2"], ["resume=latest"],
                  ["batch.per_device=2", "accumulation=x2"], ["batch.per_device=1", "batch.effective=4"]):
        assert signature("device=cpu", *words) == plain, words
    for words in (["train.seed=1"], ["optim=sgd"], ["batch.per_device=8"], ["model.dropout=0.1"], ["precision=bf16"],
                  ["recipe=accelerate"], ["data.samples=9"], ["train.max_steps=9"]):
        assert signature("device=cpu", *words) != plain, words


def test_how_a_run_is_saved_is_not_in_its_key():
    def key(*words):
        return compose("device=cpu", *words).record.config_key

    assert len({key(*words) for words in ([], ["save.every_steps=2"], ["save.keep=9"], ["save.on_signal=false"],
                                          ["resume=latest"])}) == 1
    assert key("save.final=true") != key()


# --- sweeps ------------------------------------------------------------------------------------------

PREEMPT_SEED_1 = """
if job.record.config["train"]["seed"] == 1:
    import os, signal, recipes.save
    def ask(self, step, after=recipes.save.Saver.after_step):
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return after(self, step)
    recipes.save.Saver.after_step = ask
"""


def test_a_preempted_job_of_a_sweep_ends_it_and_is_resumed_by_the_same_command(command, fault, tmp_path):
    words = ["-m", *SAVED[:-1], "train.seed=0,1,2", f"hydra.sweep.dir={tmp_path}/s"]
    stopped = command(*words, nursery=fault(PREEMPT_SEED_1))
    statuses = {r.config["train"]["seed"]: r.status for r in map(record.read, (
        path.parent for path in tmp_path.glob("s/*/result.json")))}
    assert stopped.code == 0 and statuses == {0: "ok", 1: "preempted"} and "runs what is missing" in stopped.out
    assert command(*words).code == 0
    found = {r.config["train"]["seed"]: r for r in map(record.read, (
        path.parent for path in tmp_path.glob("s/*/result.json")))}
    assert {seed: (r.status, r.training.resumed_from_step) for seed, r in found.items()} == {
        0: ("ok", None), 1: ("ok", 1), 2: ("ok", None)}


def test_an_unfinished_job_keeps_its_checkpoints_when_it_is_to_be_resumed(command, fault, tmp_path):
    words = ["-m", *SAVED, "train.seed=0,1", f"hydra.sweep.dir={tmp_path}/s"]
    assert command(*words, nursery=fault(BREAKS)).code == 1
    places = sorted(path.parent for path in tmp_path.glob("s/*/result.json"))
    assert [steps(place) for place in places] == [[2], [2]]
    assert sweep.settled(places[0], resume=True) is None and steps(places[0]) == [2]
    assert command(*words, "resume=latest").code == 0
    assert [record.read(place).training.resumed_from_step for place in places] == [2, 2]
