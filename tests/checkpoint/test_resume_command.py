"""resume on the command line: which folder it means, which training it is, and what sweeps make of it."""

from __future__ import annotations

import dataclasses

import pytest
from conftest import compose, small

from legroom.cli import sweep
from legroom.jobs import supervise
from legroom.options import resume
from legroom.records import checkpoint_files, record, record_file


def steps(folder) -> list[int]:
    """The steps of a run's checkpoints, the oldest first."""
    return [checkpoint_files.step_of(path) for path in reversed(checkpoint_files.in_run(folder))]


# --- the command: which folder, which training --------------------------------------------------------

SAVED = [*small("recipe=accelerate", "train.max_steps=4", "measure.ledger=false"), "save.every_steps=2"]
BREAKS = """
import legroom.checkpoint.saver
def fail(self, step, save=legroom.checkpoint.saver.Saver.after_step):
    if step == 3:
        raise RuntimeError("injected")
    return save(self, step)
legroom.checkpoint.saver.Saver.after_step = fail
"""


def runs(tmp_path):
    return sorted(path for path in tmp_path.glob("outputs/*/*") if path.is_dir())


@pytest.mark.slow
def test_latest_finds_the_newest_run_of_the_same_training(command, fault, tmp_path):
    afresh = command(*SAVED, "resume=latest", fork_server=fault(BREAKS))
    assert afresh.code == 1
    [run] = runs(tmp_path)
    assert record_file.read(run).status == "failed" and steps(run) == [2]
    assert command(*SAVED, "train.seed=7", "resume=latest").code == 0, "another training: it starts afresh"
    [_, other] = runs(tmp_path)
    # Watched, measured and started in another way it is the same training.
    assert command(*SAVED, "tracker=none", "measure.warmup_steps=1", "eval.enabled=false", "resume=latest").code == 0
    assert runs(tmp_path) == [run, other]
    assert record_file.read(run).status == "ok" and record_file.read(run).training.resumed_from_step == 2
    done = command(*SAVED, "resume=latest", fork_server=None)
    assert done.code == 0 and str(run.name) in done.out and runs(tmp_path) == [run, other]
    assert command(*SAVED).code == 0 and len(runs(tmp_path)) == 3, "without the word it is a new run"


@pytest.mark.slow
def test_a_finished_run_may_still_be_asked_for_its_model(command, tmp_path):
    assert command(*SAVED, "hydra.run.dir=a").code == 0
    before = record_file.read(tmp_path / "a")
    assert command(*SAVED, "hydra.run.dir=a", "save.final=true", "resume=latest").code == 0
    assert list((tmp_path / "a/model").glob("*.safetensors"))
    after = record_file.read(tmp_path / "a")
    assert after.training.losses == before.training.losses and steps(tmp_path / "a") == [2, 4]
    assert after.speed == before.speed and after.speed.measured_steps and after.memory == before.memory
    assert command(*SAVED, "hydra.run.dir=a", "save.final=true", "resume=latest", fork_server=None).code == 0, (
        "nothing is left"
    )
    bare = [*SAVED, "save.every_steps=null", "hydra.run.dir=b"]
    assert command(*bare).code == 0
    told = command(*bare, "save.final=true", "resume=latest", fork_server=None)
    assert told.code == 0 and "no model to save" in told.out and not (tmp_path / "b/model").exists()


@pytest.mark.slow
def test_a_folder_that_was_chosen_is_looked_at_alone(command, fault, tmp_path):
    assert command(*SAVED, "hydra.run.dir=a", fork_server=fault(BREAKS)).code == 1
    assert command(*SAVED, "hydra.run.dir=b", "resume=latest").code == 0
    assert record_file.read(tmp_path / "b").training.resumed_from_step is None
    occupied = command(*SAVED, "hydra.run.dir=a", fork_server=None)
    assert occupied.code == 2 and "resume=latest" in occupied.err
    other = command(*SAVED, "train.seed=7", "hydra.run.dir=a", "resume=latest", fork_server=None)
    assert other.code == 2 and "train.seed=7 (there 0)" in other.err
    (tmp_path / "a/result.json").rename(tmp_path / "kept.json")  # as a command that was killed leaves it
    other = command(*SAVED, "train.seed=7", "hydra.run.dir=a", "resume=latest", fork_server=None)
    assert other.code == 2 and "train.seed=7 (there 0)" in other.err
    without = command(*SAVED, "hydra.run.dir=a", fork_server=None)
    assert without.code == 2 and "checkpoints" in without.err and steps(tmp_path / "a") == [2]
    (tmp_path / "kept.json").rename(tmp_path / "a/result.json")
    assert command(*SAVED, "hydra.run.dir=a", "resume=latest").code == 0
    assert record_file.read(tmp_path / "a").training.losses == record_file.read(tmp_path / "b").training.losses


@pytest.mark.slow
def test_a_folder_that_is_named_must_hold_this_training(command, tmp_path):
    assert command(*SAVED, "hydra.run.dir=a").code == 0
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        refused = command(*SAVED, f"resume={folder}", fork_server=None)
        assert refused.code == 2 and "holds no checkpoint" in refused.err
    refused = command(*SAVED, "train.seed=7", "model.width=64", "resume=a", fork_server=None)
    assert refused.code == 2 and "train.seed=7 (there 0)" in refused.err and "model.width=64 (there 32)" in refused.err
    assert "optim" not in refused.err
    refused = command(*SAVED, "batch.per_device=4", "resume=a", fork_server=None)
    assert refused.code == 2 and "batch.effective=4 (there 2)" in refused.err
    refused = command(*SAVED, "train.max_steps=3", "resume=a", fork_server=None)
    assert refused.code == 2 and "stands at step 4" in refused.err
    assert record_file.read(tmp_path / "a").status == "ok", "none of this has touched the run"
    assert command(*SAVED, "train.max_steps=6", "resume=a/checkpoints/step-00000002", "hydra.run.dir=b").code == 0
    assert record_file.read(tmp_path / "b").training.resumed_from_step == 2
    assert len(record_file.read(tmp_path / "b").training.losses) == 6


@pytest.mark.slow
def test_the_signature_is_of_the_training_alone():
    def signature(*words):
        return resume.signature(compose(*words).record.config)

    plain = signature("device=cpu")
    for words in (
        ["tracker=none"],
        ["save.every_steps=3"],
        ["measure.warmup_steps=9"],
        ["launch.timeout_seconds=9"],
        ["eval.enabled=false"],
        ["train.log_seconds=9"],
        ["data.workers=2"],
        ["resume=latest"],
        ["batch.per_device=2", "accumulation=x2"],
        ["batch.per_device=1", "batch.effective=4"],
    ):
        assert signature("device=cpu", *words) == plain, words
    for words in (
        ["train.seed=1"],
        ["optim=sgd"],
        ["batch.per_device=8"],
        ["model.dropout=0.1"],
        ["precision=bf16"],
        ["recipe=accelerate"],
        ["data.samples=9"],
        ["train.max_steps=9"],
    ):
        assert signature("device=cpu", *words) != plain, words


def test_the_effective_batch_identifies_a_training():
    def signature(*words):
        return resume.signature(compose("device=cpu", *words).record.config)

    two = ["parallelism=ddp", "parallelism.num_processes=2"]
    one = signature("batch.per_device=4")
    assert signature(*two, "batch.per_device=2") == one
    assert signature(*two, "batch.per_device=1", "accumulation=x2") == one
    assert signature(*two, "batch.per_device=4") != one and signature("batch.per_device=2") != one


def test_how_a_run_is_saved_is_not_in_its_key():
    def key(*words):
        return compose("device=cpu", *words).record.config_key

    assert (
        len(
            {
                key(*words)
                for words in ([], ["save.every_steps=2"], ["save.keep=9"], ["save.on_signal=false"], ["resume=latest"])
            }
        )
        == 1
    )
    assert key("save.final=true") != key()


# --- sweeps ------------------------------------------------------------------------------------------

PREEMPT_SEED_1 = """
if job.record.config["train"]["seed"] == 1:
    import os, signal, legroom.checkpoint.saver
    def ask(self, step, after=legroom.checkpoint.saver.Saver.after_step):
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return after(self, step)
    legroom.checkpoint.saver.Saver.after_step = ask
"""


@pytest.mark.slow
def test_a_preempted_sweep_is_resumed_by_its_command(command, fault, tmp_path):
    words = ["-m", *SAVED[:-1], "train.seed=0,1,2", f"hydra.sweep.dir={tmp_path}/s"]
    stopped = command(*words, fork_server=fault(PREEMPT_SEED_1))
    statuses = {
        r.config["train"]["seed"]: r.status
        for r in map(record_file.read, (path.parent for path in tmp_path.glob("s/*/result.json")))
    }
    assert stopped.code == 0 and statuses == {0: "ok", 1: "preempted"} and "runs what is missing" in stopped.out
    assert command(*words).code == 0
    found = {
        r.config["train"]["seed"]: r
        for r in map(record_file.read, (path.parent for path in tmp_path.glob("s/*/result.json")))
    }
    assert {seed: (r.status, r.training.resumed_from_step) for seed, r in found.items()} == {
        0: ("ok", None),
        1: ("ok", 1),
        2: ("ok", None),
    }


@pytest.mark.slow
def test_an_unfinished_job_keeps_its_checkpoints_when_it_is_to_be_resumed(command, fault, tmp_path):
    words = ["-m", *SAVED, "train.seed=0,1", f"hydra.sweep.dir={tmp_path}/s"]
    assert command(*words, fork_server=fault(BREAKS)).code == 1
    places = sorted(path.parent for path in tmp_path.glob("s/*/result.json"))
    assert [steps(place) for place in places] == [[2], [2]]
    sweep.clear(places[0], resume=True)
    assert steps(places[0]) == [2]
    assert command(*words, "resume=latest").code == 0
    assert [record_file.read(place).training.resumed_from_step for place in places] == [2, 2]


# --- what a kill or a disk has left -------------------------------------------------------------------

KILLED_IN_COUNT = """
import os, legroom.measure.memory_breakdown as part
part.count = lambda *_, **__: os.kill(os.getpid(), 9)
"""


def test_memory_that_a_kill_left_uncounted_is_counted_by_latest(command, fault, tmp_path):
    words = [*SAVED[:-2], "save.every_steps=2", "hydra.run.dir=a"]
    assert command(*words, fork_server=fault(KILLED_IN_COUNT)).code == 0
    killed = record_file.read(tmp_path / "a")
    assert killed.status == "ok" and killed.memory.peak_tensor_bytes is None
    assert record.NOT_COUNTED in killed.warnings and any("SIGKILL" in line for line in killed.warnings)
    assert command(*words, "resume=latest").code == 0
    counted = record_file.read(tmp_path / "a")
    assert counted.memory.peak_tensor_bytes and counted.training.losses == killed.training.losses
    assert counted.speed.step_seconds_median == killed.speed.step_seconds_median
    assert counted.speed.model_flops_per_step and record.NOT_COUNTED not in counted.warnings
    assert command(*words, "resume=latest", fork_server=None).code == 0, "nothing is left"


def test_a_damaged_record_beside_checkpoints_is_replaced(command, fault, tmp_path):
    assert command(*SAVED, "hydra.run.dir=a", fork_server=fault(BREAKS)).code == 1
    for content in ("{}", '{"schema_version": 1, "status": "o'):
        (tmp_path / "a/result.json").write_text(content)
        refused = command(*SAVED, "train.seed=7", "hydra.run.dir=a", "resume=latest", fork_server=None)
        assert refused.code == 2, "another training does not take it"
        assert command(*SAVED, "hydra.run.dir=a", fork_server=None).code == 2, "nor one that does not resume"
    assert command(*SAVED, "hydra.run.dir=a", "resume=latest").code == 0
    found = record_file.read(tmp_path / "a")
    assert found.training.resumed_from_step == 2 and sum("record" in line for line in found.warnings) == 1


def test_a_damaged_record_of_a_sweeps_job_keeps_its_checkpoints(tmp_path):
    (tmp_path / "checkpoints/step-00000002").mkdir(parents=True)
    (tmp_path / "result.json").write_text("{")
    sweep.clear(tmp_path)
    assert steps(tmp_path) == [2]


@pytest.mark.parametrize("name", ["model", "checkpoints"])
def test_a_file_with_the_name_of_a_folder_is_refused_before_the_training(command, tmp_path, name):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_text("mine")
    refused = command(*SAVED, "save.final=true", "hydra.run.dir=a", fork_server=None)
    assert refused.code == 2 and f"a/{name}" in refused.err and "hydra.run.dir=" in refused.err
    assert (tmp_path / "a" / name).read_text() == "mine"


def test_latest_says_where_it_goes_on_and_where_it_could(command, fault, tmp_path):
    """In another folder, and with more steps: what is typed as the message says is not refused."""
    assert command(*SAVED, "hydra.run.dir=a", fork_server=fault(BREAKS)).code == 1
    longer = [*SAVED, "train.max_steps=6"]
    refused = command(*longer, "hydra.run.dir=a", "resume=latest", fork_server=None)
    assert refused.code == 2 and f"resume={tmp_path}/a " in refused.err and "step 2" in refused.err
    for words, differs in ((SAVED, False), (longer, True)):
        [warning] = resume.begins_anew(compose(*words, "resume=latest").cfg, tmp_path / "b")
        assert "step 0" in warning and f"resume={tmp_path}/a " in warning and "step 2" in warning
        assert ("train.max_steps" in warning) == differs
    [alone] = resume.begins_anew(compose(*SAVED, "train.seed=7", "resume=latest").cfg, tmp_path / "b")
    assert "step 0" in alone and "resume=/" not in alone
    went_on = command(*longer, "hydra.run.dir=a", f"resume={tmp_path}/a")
    assert went_on.code == 0 and "from step 2 of 6" in went_on.out + went_on.err
    other = command(*SAVED, "hydra.run.dir=b", "resume=latest")
    assert other.code == 0 and sum("step 0" in line for line in record_file.read(tmp_path / "b").warnings) == 1
    occupied = command(*longer[:-2], "train.max_steps=7", "hydra.run.dir=b", "resume=latest", fork_server=None)
    assert occupied.code == 2 and "resume=latest" not in occupied.err.partition("Type")[2]


def test_temporary_files_are_cleared_by_the_next_command(command, tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "run", lambda job, *_: dataclasses.replace(job.record, status="interrupted"))
    left = [
        tmp_path / "a" / name for name in (".step.json-x1.gz", ".result-x1.json", "checkpoints/.step-00000002.gone")
    ]
    left[-1].parent.mkdir(parents=True)
    for path in left:
        path.write_text("")
    mine = tmp_path / "a/.mine"
    mine.write_text("")
    bare = [word for word in SAVED if not word.startswith("save.")]
    assert command(*bare, "hydra.run.dir=a", fork_server=None).code == 130
    assert mine.exists() and not any(path.exists() for path in left)
