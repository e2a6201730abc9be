"""Checkpoints of several ranks: exact in the mode that wrote them, and opened by another number of ranks."""

from __future__ import annotations

import functools
import shutil
import subprocess
import time

import psutil
import pytest
from conftest import small, start_legroom

from legroom.records import checkpoint_files, record_file, run_folder

TOLD = [
    "model.dropout=0.1",
    "data.samples=19",
    "train.warmup_steps=2",
    "train.max_steps=5",
    "measure.ledger=false",
    "eval.enabled=false",
    "batch.effective=8",
]  # epochs of 3 steps, the last with 3 of 8 samples
TWO = ["parallelism.num_processes=2"]


@pytest.fixture(scope="module")
def whole(train):
    """whole(*options) -> a run that nothing stopped, with checkpoints after steps 2 and 4."""
    return functools.cache(lambda *options: train(*TOLD, *options, "save.every_steps=2"))


def copied(run, step: int, folder):
    shutil.copytree(
        run.folder / "checkpoints" / checkpoint_files.folder_name(step),
        folder / "checkpoints" / checkpoint_files.folder_name(step),
    )


SPLIT = ["model=llama_tiny", "parallelism=fsdp_tp", "parallelism.tensor_size=2"]


@pytest.mark.slow_for("ddp-trainer", "fsdp-accelerate", "fsdp-trainer")
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_two_ranks_resume_bit_for_bit(whole, again, tmp_path, recipe, mode):
    options = [f"recipe={recipe}", f"parallelism={mode}", *TWO]
    left_alone = whole(*options)
    copied(left_alone, 2, tmp_path)
    resumed, warned = again(tmp_path, *TOLD, *options, "save.every_steps=2", "resume=latest")
    assert not warned and resumed.training.resumed_from_step == 2
    assert resumed.training.losses == left_alone.record.training.losses
    ours, theirs = (checkpoint_files.in_run(folder)[0] for folder in (tmp_path, left_alone.folder))
    names = sorted(path.name for path in ours.glob("*.safetensors"))
    assert len(names) == 4
    for name in names:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


MODES = {
    "single": ["parallelism=single"],
    "ddp 2": ["parallelism=ddp", *TWO],
    "fsdp 2": ["parallelism=fsdp", *TWO],
    "fsdp 4": ["parallelism=fsdp", "parallelism.num_processes=4"],
    "split 4": [*SPLIT, "parallelism.num_processes=4"],
    "split 2": [*SPLIT, *TWO],
    "hybrid 4": [
        "parallelism=fsdp",
        "parallelism.num_processes=4",
        "parallelism.strategy=hybrid_shard",
        "parallelism.shard_size=2",
    ],
}
# Half of a matrix, and a quarter of a large one, has whole blocks of 256, of 4,096 numbers and more.
IN_BLOCKS = ["recipe=accelerate", "model=llama_tiny", "model.width=128", "model.feed_forward=256", "model.dropout=0"]


@pytest.mark.slow_for("adamw4bit-fsdp 4", "muon-single")
@pytest.mark.parametrize(
    "optim,after", [("adamw8bit_ao", "fsdp 2"), ("adamw8bit_ao", "single"), ("adamw4bit", "fsdp 4"), ("muon", "single")]
)
def test_states_of_rows_and_of_whole_matrices_are_resumed(whole, again, tmp_path, optim, after):
    """With as many ranks bit for bit, and with others as far as another sum of the gradients lets them."""
    if optim != "muon":
        pytest.importorskip("torchao")
    told = [*IN_BLOCKS, f"optim={optim}", "batch.per_device=2", "model.heads=4", "model.kv_heads=4"]
    left_alone = whole(*told, *MODES["fsdp 2"])
    copied(left_alone, 2, tmp_path)
    resumed, _ = again(tmp_path, *TOLD, *told, *MODES[after], "resume=latest")
    assert resumed.training.resumed_from_step == 2
    if after == "fsdp 2":
        assert resumed.training.losses == left_alone.record.training.losses
    else:
        assert resumed.training.losses == pytest.approx(left_alone.record.training.losses, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_offloaded_states_resume_where_they_were(train, again, tmp_path, recipe):
    """One rank on one GPU, with weights and optimizer states on the host."""
    options = [
        *TOLD,
        f"recipe={recipe}",
        "device=cuda",
        "parallelism=fsdp",
        "parallelism.num_processes=1",
        "parallelism.cpu_offload=true",
        "model.dropout=0",
        "save.every_steps=2",
    ]
    left_alone = train(*options)
    copied(left_alone, 2, tmp_path)
    resumed, warned = again(tmp_path, *options, "resume=latest")
    assert not warned and resumed.training.resumed_from_step == 2
    assert resumed.training.losses == pytest.approx(left_alone.record.training.losses, rel=1e-4)


@pytest.mark.slow_for("fsdp 2-fsdp 4", "fsdp 2-single", "single-fsdp 2")
@pytest.mark.parametrize(
    "before,after",
    [
        ("fsdp 2", "single"),
        ("fsdp 2", "fsdp 4"),
        ("single", "fsdp 2"),
        ("fsdp 2", "ddp 2"),
        pytest.param("hybrid 4", "fsdp 2", marks=pytest.mark.slow),
        pytest.param("split 4", "split 2", marks=pytest.mark.slow),
        pytest.param("split 2", "single", marks=pytest.mark.slow),
    ],
)
def test_another_number_of_ranks_and_another_mode_open_it(whole, again, tmp_path, before, after):
    """Without dropout, whose random numbers are each rank's own."""
    told = ["recipe=accelerate", "model.dropout=0", "batch.per_device=2"]
    if "split" in before:
        told += ["model=llama_tiny", "model.heads=4", "model.kv_heads=2"]
    left_alone = whole(*told, *MODES[before])
    copied(left_alone, 2, tmp_path)
    resumed, warned = again(tmp_path, *TOLD, *told, *MODES[after], "resume=latest")
    assert not warned and resumed.training.resumed_from_step == 2
    assert resumed.training.losses == pytest.approx(left_alone.record.training.losses, rel=1e-4)


def test_a_piece_that_is_missing_or_damaged_is_named(whole, again, tmp_path):
    options = ["recipe=accelerate", "parallelism=fsdp", *TWO]
    left_alone = whole(*options)
    copied(left_alone, 2, tmp_path)
    copied(left_alone, 4, tmp_path)
    (tmp_path / "checkpoints/step-00000004/rank-1.weights.safetensors").unlink()
    resumed, [warning] = again(tmp_path, *TOLD, *options, "resume=latest")
    assert "rank-1.weights.safetensors" in warning and resumed.training.resumed_from_step == 2
    assert resumed.training.losses == left_alone.record.training.losses


ASK_RANK_1 = """
import os, signal
if job.rank_info.rank == 1:
    import legroom.checkpoint.saver
    def ask(self, step, after=legroom.checkpoint.saver.Saver.after_step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return after(self, step)
    legroom.checkpoint.saver.Saver.after_step = ask
"""


@pytest.mark.slow_for("fsdp")
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(train, fault, again, whole, mode):
    options = ["recipe=accelerate", f"parallelism={mode}", *TWO]
    stopped = train(*TOLD, *options, fork_server=fault(ASK_RANK_1), status="preempted")
    [folder] = checkpoint_files.in_run(stopped.folder)
    assert checkpoint_files.verify(folder).step == stopped.record.training.steps == 3
    resumed, _ = again(stopped.folder, *TOLD, *options, "resume=latest")
    assert resumed.training.losses == whole(*options).record.training.losses


@pytest.mark.slow
def test_sigterm_to_two_ranks_leaves_a_checkpoint(tmp_path):
    words = small(
        "recipe=accelerate",
        "parallelism=ddp",
        *TWO,
        "train.max_steps=100000",
        "train.log_seconds=0",
        "hydra.run.dir=here",
    )
    process = start_legroom(*words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    steps = tmp_path / "here" / run_folder.STEPS_FILE
    try:
        deadline = time.monotonic() + 120
        while not (steps.exists() and steps.stat().st_size):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0 and "preempted" in out, err
    assert len(workers) == 2 and not psutil.wait_procs(workers, timeout=5)[1]
    left = record_file.read(tmp_path / "here")
    assert left.status == "preempted"
    [folder] = checkpoint_files.in_run(tmp_path / "here")
    assert checkpoint_files.verify(folder).step == left.training.steps


FINAL = """
import os, signal, legroom.checkpoint.saver as saver, legroom.training.evaluate as evaluate
def ask():
    if job.rank_info.rank in {ranks}:
        os.kill(os.getpid(), signal.SIGTERM)
def in_save(*args, save=saver.save_final):
    if "{phase}" == "save":
        ask()
    return save(*args)
def in_evaluation(*args, totals=evaluate.totals):
    if "{phase}" == "eval":
        ask()
    return totals(*args)
saver.save_final, evaluate.totals = in_save, in_evaluation
"""


@pytest.mark.slow_for("ddp-save-all", "ddp-eval-one rank", "fsdp-save-one rank", "fsdp-eval-all", "fsdp-eval-one rank")
@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["one rank", "all"])
@pytest.mark.parametrize("phase", ["save", "eval"])
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_signal_after_the_last_step_loses_nothing(train, fault, mode, phase, ranks):
    """The evaluation has more than one batch, between which the ranks agree to stop."""
    told = [*TOLD, f"parallelism={mode}", *TWO, "eval.enabled=true", "data.eval_samples=8", "eval.batch=1"]
    told += ["save.final=true"] if phase == "save" else []
    run = train(*told, fork_server=fault(FINAL.format(phase=phase, ranks=ranks)), status="preempted")
    assert run.record.error is None and run.record.evaluation is None
    [folder] = checkpoint_files.in_run(run.folder)
    assert checkpoint_files.verify(folder).step == 5
    assert (run.folder / run_folder.MODEL_FOLDER).is_dir() == (phase == "save")


KILLED_IN_EVALUATION = """
import os, legroom.training.evaluate as evaluate
evaluate.totals = lambda *_: os.kill(os.getpid(), 9)
"""


def test_a_kill_after_the_last_step_leaves_a_checkpoint(train, fault, again):
    """Where the model is to be saved; a run that is complete keeps the model alone."""
    told = [*TOLD, "parallelism=ddp", *TWO, "eval.enabled=true", "save.final=true"]
    killed = train(*told, fork_server=fault(KILLED_IN_EVALUATION), status="killed")
    assert [path.name for path in checkpoint_files.in_run(killed.folder)] == ["step-00000005"]
    done, _ = again(killed.folder, "recipe=accelerate", *told, "resume=latest")
    assert done.training.resumed_from_step == 5 and done.evaluation is not None
    assert not (train(*told).folder / checkpoint_files.FOLDER).exists()
