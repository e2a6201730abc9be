"""Commands on a machine with two played GPUs: a sweep, the doctor, the checks, calibration."""

import json
import subprocess
import sys
from types import SimpleNamespace

import gpu_checks
import pytest
from conftest import ROOT, SMALL
from played_gpu import MIB, NAME

from legroom.doctor import checks, faults, page, probe
from legroom.estimator.speed import calibrated

pytest_plugins = ["gpu_fixtures"]
TINY = [word for word in SMALL if word != "device=cpu"]


@pytest.fixture
def borrowed(gpus, monkeypatch):
    """The commands that start a fork server of their own get the one of the tests."""

    def server():
        return SimpleNamespace(start_worker=gpus().start_worker, close=lambda: None)

    monkeypatch.setattr("legroom.jobs.fork_client.ForkServer", server)


@pytest.mark.slow
def test_a_sweep_shows_what_the_card_counted(gpus, command):
    ended = command(
        "-m", "recipe=accelerate,trainer", "precision=bf16", *TINY, "data.eval_samples=4", fork_server=gpus()
    )
    assert ended.code == 0, ended.out + ended.err
    assert "Device memory is what the whole device had in use, by NVML" in ended.out and "387.1" in ended.out


def test_one_run_shows_the_card(gpus, command):
    ended = command("--verbose", "recipe=accelerate", "gpu=l4_24gb", *TINY, "data.eval_samples=4", fork_server=gpus())
    assert ended.code == 0, ended.out + ended.err
    assert NAME in ended.out and "memory.peak_reserved_bytes" in ended.out


@pytest.mark.slow
def test_the_doctor_uses_both_cards(gpus, monkeypatch):
    gpus()
    run = probe.run
    monkeypatch.setattr(probe, "run", lambda code, **more: run(code, **more) if "devices(" in code else {})
    found = checks.examine()
    text = " ".join(" ".join(line for line, _ in page.page(found).lines).split())
    assert [found.probes[f"torch on cuda:{n}"] for n in (0, 1)] == [{"name": NAME}] * 2
    assert found.probes["bitsandbytes on cuda:1"] == {}
    assert "uses it as cuda:0" in text and "uses it as cuda:1" in text and "built for CUDA 13.0" in text
    assert not faults.broken(found), faults.broken(found)


def test_the_gpu_checks_write_their_table(gpus, borrowed, monkeypatch, tmp_path):
    """Two jobs at a time share the card, so their table has no times."""
    made = gpu_checks.jobs(tmp_path)
    asked = [[word for word in made[index] if not word.startswith(("model=", "data."))] for index in (0, 3, 10, 60)]
    asked = [[*words, *TINY, "measure.ledger=true"] for words in asked]
    monkeypatch.setattr(gpu_checks, "jobs", lambda _: [*asked, ["optim=adamw", "optim.momentum=0.5"]])
    tested = []
    run = SimpleNamespace(run=lambda words, cwd: tested.append(words) or SimpleNamespace(returncode=0))
    monkeypatch.setattr(gpu_checks, "subprocess", run)
    assert gpu_checks.run(tmp_path, with_tests=True, at_once=2) == 1, "a job is refused"
    assert tested[0][1:5] == ["-m", "pytest", "-q", "-m"]
    text = (tmp_path / "gpu_l4.md").read_text()
    assert text.count("| ok |") == len(asked) and NAME in text and "2 jobs at once" in text
    assert "ledger MiB" in text and "step ms" not in text and "train.max_steps=30" not in text
    assert "\n- optim=adamw optim.momentum=0.5 train.max_steps=6: optim.momentum is not used" in text
    rows = [json.loads(line) for line in (tmp_path / "gpu_l4.jsonl").read_text().splitlines()]
    assert len(rows) == len(asked) and all(row["memory"]["context_bytes"] > 0 for row in rows)


@pytest.mark.slow
def test_the_train_command_of_a_shell_trains_on_the_card(gpus, tmp_path):
    """The whole command in its own process, its worker in another: nothing of the tests' own is between."""
    gpus()
    ended = subprocess.run(
        [
            sys.executable,
            ROOT / "train.py",
            "recipe=accelerate",
            *TINY,
            "precision=fp16",
            f"hydra.run.dir={tmp_path}/run",
        ],
        text=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = json.loads((tmp_path / "run/result.json").read_text())
    assert record["environment"]["device"] == "cuda" and record["memory"]["context_bytes"] > 0


def test_missing_figures_are_empty_cells(on_gpu):
    record = on_gpu("measure.ledger=false").record
    record.memory.device_used_bytes = record.memory.context_bytes = None  # a GPU that shares the host's memory
    (row,) = gpu_checks.table([record]).splitlines()[2:]
    assert "step ms" in gpu_checks.table([record]) and "`model.layers=1 " in row and "data.seq_len=32" in row
    assert row.count("|  ") == 5 and f"{record.memory.peak_reserved_bytes / MIB:.0f}" in row


USED = """
import io, os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # as the job that follows: torch counts the cards once
from legroom.cli import chat, export
sys.stdin = io.StringIO("a\\n")
assert chat.main([{folder!r}, "--tokens", "4", "--compare"]) == 0
assert export.main([{folder!r}, "--merge", "--to", {merged!r}]) == 0
"""


def test_what_was_trained_on_the_card_generates_and_is_merged_there(on_gpu, tmp_path):
    pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    text = tmp_path / "text.txt"
    text.write_text("some text\n" * 200)
    words = ["model=gpt2_tiny", "data=text", f"data.path={text}", "measure.ledger=false"]
    base = on_gpu(*words, "save.final=true").folder
    run = on_gpu(*words, f"model.pretrained={base}/model", "adapter=lora", "save.final=true", "eval.generate=1")
    assert len(run.record.evaluation.generated) == 1
    on_gpu(code=USED.format(folder=str(run.folder), merged=str(tmp_path / "merged")))
    assert (tmp_path / "merged" / "config.json").is_file()


SIZES = {"LARGE": 64, "ELEMENTS": 4096, "ROWS": 8, "HEADS": (1, 2, 16, 8), "REPEATS": 2, "WARM_UP_SECONDS": 0.01}
CALIBRATE = """
import os
from legroom.foresight.calibration import gpu_benchmarks
from legroom.cli import calibrate
for name, value in {sizes!r}.items():
    setattr(gpu_benchmarks, name, value)
os.environ[{variable!r}] = {folder!r}
assert calibrate.main([]) == 0
"""


def test_the_card_is_calibrated(on_gpu, monkeypatch, tmp_path):
    """Every measurement of scripts/calibrate.py, with tiny tensors; its figures are those of the played card."""
    on_gpu(code=CALIBRATE.format(sizes=SIZES, variable=calibrated.FOLDER, folder=str(tmp_path)))
    monkeypatch.setenv(calibrated.FOLDER, str(tmp_path))
    measured = calibrated.gpu(NAME)
    assert measured.context_bytes == 300 * MIB
    found = measured.efficiencies
    assert set(found["matmul"]) == {"fp32", "tf32", "fp16", "bf16"} and set(found["attention"]) == {"flash"}
    assert set(found["bandwidth"]) == {"elementwise", "optimizer", "copy", "reduction", "normalisation"}
    assert found["kernel_seconds"] > 0 and set(found["host_seconds"]) == {"forward", "backward", "step"}
