"""The trackers that keep runs on this machine: what each has logged, read back with its own reader."""

from __future__ import annotations

import math
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from conftest import compose, small
from tracked_job import LOSSES, Job, cfg, mark, record, write_steps  # noqa: F401 (mark: a fixture)

from legroom.machine import host
from legroom.tracking import local_runs, process, trackers
from legroom.tracking.run import Job as TrackedJob
from legroom.tracking.run import Result, reason

COMPLETE = [(step, pytest.approx(loss, rel=1e-6)) for step, loss in enumerate(LOSSES, 1)]


def lasts(curves: dict[str, list[tuple[int, float]]]) -> dict[str, float]:
    return {name: points[-1][1] for name, points in curves.items()}


def check(job: Job, curves: dict[str, list[tuple[int, float]]]) -> None:
    """What every tracker has of a run. curves: name -> (step, value)."""
    assert curves["training/loss"] == COMPLETE
    assert curves["training/gradient_norm"][0] == (2, 2.0), "the first step had none"
    last = lasts(curves)
    assert last["training/learning_rate"] == pytest.approx(0.1) and last["training/epoch"] == 4
    assert last["training/samples_per_second"] == 8 and last["training/tokens_per_second"] == 64
    assert last["evaluation/loss"] == 0.5 and last["memory/peak_tensor_bytes"] == 1000
    assert sorted(path.name for path in job.folder.iterdir() if path.name != "tensorboard") == ["steps.jsonl"]


# --- TensorBoard -----------------------------------------------------------------------------------


def test_tensorboard_reads_a_run(tmp_path, capfd):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = Job(tmp_path / "a folder", option="tensorboard")
    assert job.finish() == [] and capfd.readouterr() == ("", "")
    assert job.tracker.line == f"TensorBoard: tensorboard --logdir '{job.folder}/tensorboard'"
    events = EventAccumulator(str(job.folder / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    names = events.Tags()["tensors"]
    check(job, {name: [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors(name)] for name in names})


def test_command_prints_the_trackers_line(command, tmp_path):
    pytest.importorskip("tensorboard")
    words = small("recipe=accelerate", "tracker=tensorboard", "measure.ledger=false", "hydra.run.dir=run")
    ended = command(*words)
    assert ended.code == 0 and f"TensorBoard: tensorboard --logdir {tmp_path}/run/tensorboard\n" in ended.out
    assert len(list((tmp_path / "run/tensorboard").iterdir())) == 1


def test_sweep_has_one_line(tmp_path):
    pytest.importorskip("tensorboard")
    job = Job(tmp_path / "job", option="tensorboard", group="a sweep")
    assert job.finish() == [] and job.tracker.line == ""
    line = f"TensorBoard: tensorboard --logdir {tmp_path}"
    assert trackers.sweep_line(cfg("tensorboard"), tmp_path) == line


# --- MLflow ----------------------------------------------------------------------------------------


def test_mlflow_reads_a_run(tmp_path, monkeypatch, capfd):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    job = Job(tmp_path / "job", option="mlflow", project="mine", tags=["first"])
    write_steps(job.folder, [*LOSSES[:-1], None])  # a loss that is no number
    assert job.finish() == [] and capfd.readouterr() == ("", "")
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.info.run_name == "precision=bf16" and run.info.status == "FINISHED"
    assert run.data.tags["tags"] == "trainer, first" and run.data.tags["status"] == "ok"
    assert run.data.params["train/seed"] == "7" and run.data.params["config_key"] == "0123abcd"
    curves = {
        name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    assert math.isnan(curves["training/loss"].pop()[1])
    curves["training/loss"].append((len(LOSSES), LOSSES[-1]))
    check(job, curves)


class FakeMlflow(ModuleType):
    """Of MLflow what a run calls; it keeps what it is given."""

    def __init__(self):
        super().__init__("mlflow")
        self.tags, self.params, self.most, self.ended = {}, {}, 0, None
        self.MlflowClient = lambda: self

    def set_experiment(self, name):
        return SimpleNamespace(experiment_id=name)

    def create_run(self, experiment_id, run_name, tags):
        self.experiment, self.name, self.tags = experiment_id, run_name, tags
        return SimpleNamespace(info=SimpleNamespace(run_id="1"))

    def log_params(self, params, run_id):
        self.most, self.params = max(self.most, len(params)), self.params | params

    def log_metrics(self, values, step, run_id):
        self.logged = (values, step, run_id)

    def set_tag(self, run_id, key, value):
        self.tags |= {key: value}

    def set_terminated(self, run_id, status):
        self.ended = status


@pytest.mark.parametrize("uri, local", [("", True), ("sqlite:///runs.db", True), ("http://host:5000", False)])
def test_mlflow_bounds(uri, local, tmp_path, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    values = {f"key{n}": n for n in range(250)} | {"long": "x" * 9000}
    job = TrackedJob("mlflow", {"project": "mine"}, str(tmp_path), "name", None, ["a", "b"], {"of": values}, None)
    run = local_runs.MlflowRun(job, pytest.fail)
    assert (fake.experiment, fake.name, fake.tags, run.local) == ("mine", "name", {"tags": "a, b"}, local)
    assert len(fake.params) == 251 and fake.most == 100 and fake.params["of/long"] == "x" * 6000
    run.step = 7
    run.finish(Result({"status": "ok", "training/steps": 2}, 0))
    assert fake.logged == ({"training/steps": 2}, 7, "1") and fake.tags["status"] == "ok"
    assert fake.ended == "FINISHED"
    run.finish(Result({"status": "oom"}, 1))
    assert fake.ended == "FAILED" and fake.tags["status"] == "oom"
    assert trackers.sweep_line(cfg("mlflow"), tmp_path) == "MLflow: mlflow ui"


# --- what they all get -----------------------------------------------------------------------------


def test_figures_of_a_line():
    row = {"step": 1, "loss": None, "seconds": 0.0, "samples": 4, "tokens": 32, "epoch": 0.5}
    found = process.figures(row | {"gradient_norm": None})
    assert math.isnan(found.pop("training/loss")) and found.pop("training/tokens_per_second") > 1e9
    assert found.pop("training/samples_per_second") > 1e9, "a clock that stood still is no failure"
    assert found == {"training/epoch": 0.5, "training/step_seconds": 0.0}
    evaluated = {"step": 2, "evaluation_samples": 8, "evaluation_loss": 0.5, "evaluation_accuracy": None}
    evaluated |= {"evaluation_f1": 0.25}
    assert process.figures(evaluated) == {"evaluation/loss": 0.5, "evaluation/f1": 0.25}


@pytest.mark.parametrize(
    "error, said",
    [
        (ValueError(), "ValueError"),
        (f"key {'k' * 40} or {'k' * 39}", f"key *** or {'k' * 39}"),
        ("timed out.  Consider increasing\ninit_timeout", "timed out"),
        (". " * 400, ". " * 150),
    ],
    ids=range(4),
)
def test_reason_is_one_line_without_keys(error, said):
    assert reason(error) == said


# --- without the package ---------------------------------------------------------------------------


@pytest.mark.parametrize("option, label", [("tensorboard", "TensorBoard"), ("mlflow", "MLflow")])
def test_missing_package_is_a_warning(option, label, tmp_path, monkeypatch):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / f"{option}.py").write_text("raise ModuleNotFoundError('none here')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'packages'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (warning,) = Job(tmp_path / "job", option=option).finish()
    assert warning.startswith(f"{label}: the package {option} cannot be imported (none here): pip install {option}.")


@pytest.mark.parametrize("option", ["tensorboard", "mlflow"])
def test_missing_package_is_refused(option, monkeypatch):
    monkeypatch.setattr(host, "has", lambda package: package != option)
    (line,) = compose(f"tracker={option}", "device=cpu").problems
    assert line == f"tracker={option} needs the package {option}: pip install {option}, or choose tracker=none."


def test_resumed_run_repeats_no_steps(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        job = Job(tmp_path / "job", option="tensorboard")
        assert job.finish() == []
    events = EventAccumulator(str(job.folder / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    assert [event.step for event in events.Tensors("training/loss")] == list(range(1, len(LOSSES) + 1))
    (kept,) = (job.folder / "tensorboard").iterdir()
    (job.folder / "steps.jsonl").unlink()
    refused = trackers.open_tracker(cfg("tensorboard"), record(), job.folder)
    assert refused.finish(record("refused")) == [] and kept.exists(), "a resume that was refused takes nothing away"
