"""Which configurations are the same training, which checkpoint is gone on from, and the number of a job: kept beside
this file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import compose
from support.changed_config import changed, heads
from support.known_values import known

from legroom.config import to_dict
from legroom.options import objective, resume
from legroom.records import checkpoint_files, record, record_file
from legroom.records.record import Record


def run_folder_of(folder: Path, config: dict[str, Any], steps: tuple[int, ...]) -> None:
    """A run's folder with what `resume` reads of checkpoints."""
    for step in steps:
        checkpoint = folder / checkpoint_files.FOLDER / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / checkpoint_files.MANIFEST).write_text(json.dumps({"config": config}))


def as_dict(line: str) -> dict[str, Any]:
    return to_dict(changed(line)[0])


def test_what_makes_another_training(data_regression):
    lines = """
    train.seed=3
    train.max_steps=7
    train.epochs=7
    train.learning_rate=0.5
    train.log_seconds=7
    eval.batch=64
    batch.per_device=7
    batch.per_device=2 accumulation.steps=2
    batch.per_device=2 parallelism.replicas=2
    parallelism.replicas=null
    model.attention=sdpa
    model.attention=eager
    data.path=elsewhere
    data.eval_path=elsewhere
    data.tokenizer=elsewhere
    model.pretrained=elsewhere
    optim.in_backward=true
    device=cuda
    launch.timeout_seconds=3
    """
    base, found = as_dict(""), {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        other = as_dict(line)
        allowed = other | {"resume_allow": ["data", "model"]}
        found[line] = [
            resume.differences(base, other),
            resume.differences(base, other, any_length=True),
            resume.same(base, other),
            [difference[:40] for difference in resume.differences(allowed, base)],
        ]
    found["older"] = [resume.same(base, {}), resume.same(base, {"model": None})]
    found["long"] = [len(each) for each in resume.differences(base, as_dict(f"data.path={'a' * 300}"))]
    found["unknown keys count"] = resume.differences(base, base | {"zzzz": 3, "yyyy": {"a": 1}})
    found["without a mode"] = resume.signature({key: base[key] for key in ("model", "batch", "accumulation")})[
        "batch.effective"
    ]
    data_regression.check(known(found))


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Callable[[str], str]:
    """Folders of runs in the working folder, and what takes the folder's path out of a text."""
    monkeypatch.chdir(tmp_path)
    ours = as_dict("train.max_steps=9")
    run_folder_of(Path("outputs/day/mine"), ours, (4, 8))
    run_folder_of(Path("outputs/day/seed"), as_dict("train.max_steps=9 train.seed=3"), (6,))
    run_folder_of(Path("outputs/day/moved"), as_dict("train.max_steps=9 data.path=there"), (6,))
    run_folder_of(Path("outputs/day/longer"), as_dict("train.max_steps=12"), (12,))
    Path("outputs/day/none").mkdir()
    run_folder_of(Path("outputs/day/broken"), {}, (3,))
    Path("outputs/day/broken/checkpoints/step-00000003", checkpoint_files.MANIFEST).write_text("{")

    def config_of(folder: Path) -> dict[str, Any]:
        try:
            return json.loads((folder / checkpoint_files.MANIFEST).read_text())["config"]
        except ValueError as error:
            raise checkpoint_files.BrokenCheckpoint("it is broken") from error

    monkeypatch.setattr(checkpoint_files, "config_of", config_of)  # without the files of tensors
    for number, run in enumerate(sorted(Path("outputs/day").glob("*/checkpoints/*/*"))):
        os.utime(run, (10**9 + number, 10**9 + number))
    return lambda text: text.replace(str(tmp_path), "HERE")


def test_which_checkpoint_a_resumed_run_goes_on_from(data_regression, runs):
    found: dict[str, Any] = {}
    lines = [
        f"train.max_steps=9 resume=outputs/day/{name}" for name in ("mine", "seed", "moved", "longer", "none", "broken")
    ]
    lines += [f"train.max_steps={steps} resume=outputs/day/mine" for steps in (7, 8, "null")]
    lines += ["train.max_steps=9 resume=outputs/day/mine/checkpoints/step-00000004"]
    lines += ["train.max_steps=9 resume=outputs/day/mine/checkpoints/step-00000005"]
    lines += ["train.max_steps=9 resume=latest", "train.max_steps=9"]
    for line in lines:
        cfg, given = changed(line)
        assert resume.resolve(cfg) == []
        found[line] = [runs(each)[:230] for each in resume.problems(cfg, given)]
    for allowed, resumed in ((["data"], None), (["data"], "latest"), (["zzzz", "data"], "latest"), ([], None)):
        cfg, given = changed("train.max_steps=9")
        cfg.resume_allow, cfg.resume = allowed, resumed
        found[f"{allowed} {resumed}"] = resume.problems(cfg, given)
    cfg, _ = changed("train.max_steps=9 resume=latest")
    typed = [[], ["hydra.run.dir=here"], ["hydra.sweep.dir=here"], [resume.NO_FOLDER], ["train.seed=1"]]
    new = Path("outputs/day/none").absolute()
    found["latest"] = {" ".join(words): runs(str(resume.resume_folder(cfg, new, words))) for words in typed}
    other, _ = changed("train.max_steps=9 train.seed=99 resume=latest")
    found["of another"] = runs(str(resume.resume_folder(other, new, [])))
    found["anew"] = [runs(each) for each in resume.begins_anew(cfg, new)]
    found["anew of another"] = [runs(each) for each in resume.begins_anew(other, new)]
    found["not anew"] = resume.begins_anew(cfg, Path("outputs/day/mine").absolute())
    shorter, _ = changed("train.max_steps=5 resume=latest")
    found["anew of another length"] = [runs(each) for each in resume.begins_anew(shorter, new)]
    assert resume.candidates("checkpoints/step-00000002") == []
    folders = resume.candidates("outputs/day/seed")
    found["mismatch"] = [runs(each) for each in resume.mismatch_problems(cfg, folders)]
    found["of another length"] = [
        runs(each) for each in resume.mismatch_problems(shorter, resume.candidates("outputs/day/mine"))
    ]
    data_regression.check(known(found))


def test_a_resumed_training_saves_its_model_as_the_one_before():
    before, again = compose("device=cpu").record, ("device=cpu", "resume=latest")
    before.config["save"] |= {"final": True, "max_shard_gb": 2.5}
    for typed, said, kept in [
        ((), [], (True, 2.5)),
        (("save.max_shard_gb=1",), [], (True, 1.0)),
        (("save.final=false",), [], (False, None)),
        (("adapter=lora",), ["save.max_shard_gb=2.5 does not go with an adapter"], (True, 2.5)),
    ]:
        cfg, outcome, _ = compose(*again, *typed)
        problems = resume.save_as_before(cfg, outcome, before)
        assert [each.partition(",")[0] for each in problems] == said, typed
        assert (cfg.save.final, cfg.save.max_shard_gb) == kept == (
            outcome.config["save"]["final"], outcome.config["save"]["max_shard_gb"]
        )  # fmt: skip
    assert resume.save_as_before(cfg, outcome, None) == []


def test_when_a_resumed_run_is_finished_and_keeps_its_figures(tmp_path):
    def of(status: str = "ok", steps: int = 3, warnings: tuple[str, ...] = (), resumed_from: int = 3) -> Record:
        made = compose("device=cpu").record
        made.status, made.training.steps, made.warnings = status, steps, list(warnings)
        made.training.resumed_from_step = resumed_from
        return made

    run_folder_of(tmp_path / "with", {}, (3,))
    (tmp_path / "without").mkdir()
    saved = changed("save.final=false resume=latest")[0]
    missing = changed("save.final=true resume=latest")[0]
    cases = [
        (saved, "with", of(), True),
        (saved, "with", None, False),
        (saved, "with", of("failed"), False),
        (changed("save.final=false")[0], "with", of(), False),
        (missing, "with", of(), False),
        (missing, "without", of(), True),
        (saved, "with", of(warnings=(record.NOT_COUNTED,)), False),
        (saved, "without", of(warnings=(record.NOT_COUNTED,)), True),
    ]
    for cfg, name, before, is_finished in cases:
        assert resume.is_finished(cfg, tmp_path / name, before) == is_finished, (name, before and before.status)
    (tmp_path / "with/model").mkdir()
    assert not resume.model_missing(missing, tmp_path / "with") and resume.is_finished(missing, tmp_path / "with", of())
    (tmp_path / "with/model/adapter_config.json").touch()
    merged = changed("save.final=true save.merge=true resume=latest")[0]
    assert resume.model_missing(merged, tmp_path / "with") and not resume.model_missing(missing, tmp_path / "with")

    def kept(before: Record | None, now: Record) -> tuple[bool, float | None, float | None]:
        now.speed.step_seconds_median = None
        changed_it = resume.keep_figures(before, now, tmp_path)
        return changed_it, now.speed.step_seconds_median, (tmp_path / record_file.FILE_NAME).exists()

    before = of()
    before.speed.step_seconds_median = 0.5
    assert kept(None, of()) == (False, None, False)
    assert kept(before, of("failed")) == (False, None, False)
    assert kept(before, of(steps=4)) == (False, None, False)
    assert kept(before, of(resumed_from=2)) == (False, None, False), "it has trained a step, perhaps in another batch"
    before.status = "failed"
    assert kept(before, of("failed")) == (False, None, False)
    before.status = "ok"
    before.training.resumed_from_step, now = None, of()
    assert now.training.resumed_from_step and kept(before, now) == (True, 0.5, True)
    assert now.training.resumed_from_step is None, "the figures are of all steps"


def test_the_objective_of_a_job(data_regression):
    outcome = compose("device=cpu").record
    outcome.training.final_loss, outcome.training.steps, outcome.status = 0.25, 7, "ok"
    found: dict[str, Any] = {}
    for name in (
        "training.final_loss",
        "training.steps",
        "status",
        "training.zzzz",
        "training",
        None,
        "training.final_los",
    ):
        cfg, given = changed("")
        cfg.objective = name
        found[str(name)] = [objective.value(cfg, outcome), heads(objective.problems(cfg, given), 120)]
    data_regression.check(known(found))
