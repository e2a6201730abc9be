"""The command line: what is refused and how, what a whole run prints and leaves, and the exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import yaml
from conftest import CONF, compose, small, start_legroom

from legroom.cli import console, help_text
from legroom.config import GROUPS
from legroom.options import hydra_errors
from legroom.records import record, record_file
from legroom.records.messages import StepsDone

HEAVY = ("torch", "transformers", "accelerate", "datasets", "numpy", "bitsandbytes")
# What only a GPU, or only another device than this, can fill in.
# Nothing was resumed or saved, and a classification has no perplexity.
UNUSED = {
    "program",
    "f1",
    "exact_match",
    "pearson",
    "error",
    "estimate",
    "perplexity",
    "resumed_from_step",
    "planned_steps",
    "best_step",
    "save_seconds",
    "model_save_seconds",
    "evaluation_seconds",
    "compile_seconds",
}
ESTIMATES_FIELDS = {
    "lengths",
    "whole_run",
    "step_seconds_low",
    "step_seconds_high",
    "bound_by",
    "nccl_bytes",
    "host_needed_bytes",
    "host_memory_bytes",
    "checkpoint_bytes",
    "disk_bytes",
}
GPU_FIELDS = {
    "mfu",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "device_used_bytes",
    "device_used_at_start_bytes",
    "context_bytes",
    "weights_device_bytes",
}


def imported(err: str) -> set[str]:
    """The top-level modules in the report of PYTHONPROFILEIMPORTTIME."""
    names = [line.rpartition("|")[2].strip() for line in err.splitlines() if line.startswith("import time:")]
    return {name.partition(".")[0] for name in names}


@contextlib.contextmanager
def two_seconds_of_a_core() -> Iterator[None]:
    """Of the processes that the block started and waited for; the clock's depend on what else the machine does."""
    before = psutil.Process().cpu_times()
    yield
    after = psutil.Process().cpu_times()
    taken = after.children_user + after.children_system - before.children_user - before.children_system
    assert 0 < taken < 2


def only_record(folder) -> record.Record:
    """The record of the one run below a folder."""
    paths = list(folder.rglob(record_file.FILE_NAME))
    assert len(paths) == 1, paths
    return record_file.read(paths[0].parent)


# --- refusals --------------------------------------------------------------------------------------


def test_a_wrong_value_is_refused_at_once(legroom):
    with two_seconds_of_a_core():
        ended = legroom("batch.per_device=0", "device=cpu", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert ended.code == 2 and "batch.per_device=0" in ended.err
    assert ended.out == "" and ended.err.count("refused: ") == 1
    assert "hydra" in imported(ended.err) and not imported(ended.err) & set(HEAVY)


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["precison=bf16"], ["precision"]),
        (["precision=bf17"], ["precision=bf17", "Did you mean bf16"]),
        (["recipe=trainr"], ["recipe=trainr", "Did you mean trainer"]),
        (["optim=adam9bit"], ["optim=adam9bit", "adam8bit"]),
        (["model=bert_huge"], ["model=bert_huge", "bert_large"]),
        (["batch.per_device=four"], ["batch.per_device", "four"]),
        (["batch.per_device=4.5"], ["batch.per_device", "4.5"]),
        (["batch.per_device=null"], ["batch.per_device"]),
        (["train.seed="], ["train.seed"]),
        (["compile=maybe"], ["compile", "maybe"]),
        (["model.layer=1"], ["model.layer", "Did you mean model.layers"]),
        (["optim.momentun=0.5"], ["optim.momentun", "Did you mean optim.momentum"]),
        (["train.learning_rat=1"], ["train.learning_rat", "train.learning_rate"]),
        (["optim.momentum=0.5"], ["optim.momentum", "optim=sgd"]),
        (["+foo=1"], ["foo", "--help"]),
        (["++foo=1"], ["foo", "--help"]),
        (["+model.foo=1"], ["model.foo"]),
        (["+batch.foo=1"], ["batch.foo", "batch.per_device"]),
        (["+precision=bf16"], ["precision"]),
        (["precision@foo=bf16"], ["precision"]),
        (["~precision"], ["precision", "bf16_pure", "fp32"]),
        (["~model"], ["model", "bert_tiny"]),
        (["~train"], ["train"]),
        (["~batch"], ["batch"]),
        (["~eval"], ["eval"]),
        (["~launch"], ["launch"]),
        (["~compile"], ["compile"]),
        (["~train.seed"], ["train.seed"]),
        (["precision=null"], ["precision", "bf16_pure", "fp32"]),
        (["model=null"], ["model", "bert_tiny"]),
        (["train=null"], ["train"]),
        (["batch=3"], ["batch"]),
        (["precision="], ["precision", "bf16_pure", "fp32"]),
        (["precision"], ["precision"]),
        (["precision=bf16,fp32"], ["precision", "-m"]),
        (["train.seed=1,2"], ["train.seed", "-m"]),
        (["train.seed=${train.nothing}"], ["train.seed"]),
        (["train.seed=${oc.env:LEGROOM_NO_SUCH_VARIABLE}"], ["train.seed", "LEGROOM_NO_SUCH_VARIABLE"]),
        (["data=text", "data.path=no-such-file.txt"], ["data.path=no-such-file.txt"]),
        (["data=text"], ["data.path="]),
        (["model.pretrained=./no/such/folder"], ["model.pretrained=./no/such/folder"]),
        (["--config-name", "nothing"], ["nothing"]),
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--resolve"], ["--resolve"]),
        (["precision=tf32"], ["precision=tf32", "precision=fp32"]),
        (["--bf16"], ["--bf16", "Type precision=bf16."]),
        (["seed=3"], ["Type train.seed=3."]),
        (["+experiment/guide=nope"], ["experiment/guide=nope", "vanilla"]),
        (["+experiment/guide=[vanilla,nope]"], ["experiment/guide/nope"]),
        (["+optim.args.rank=1"], ["optim.args", "does not take this argument"]),
        (["optim.args.rank=1"], ["optim.args", "does not take this argument"]),
        (["optim.args=3"], ["optim.args=3", "mapping"]),
        (["train.seed=${nope:x}"], ["train.seed: ", "nope"]),
        (["eval.window=${.x}", "eval.window=3"], ["${...} on the command line refers to nothing"]),
        (["train.seed=${train.seed}"], ["train.seed: Recursive interpolation", "Type the value"]),
        (["train.seed=${nope}"], ["train.seed: ", "nope", "Type the value itself"]),
        (["hydra=3"], ["hydra=3"]),
        (["train.max_grad_norm=${oc.decode:1}"], ["train.max_grad_norm: "]),
        (["hydra.mode=x"], ["hydra.mode: Invalid value 'x', expected one of [RUN, MULTIRUN]."]),
        (["model=${train.seed}"], ["there is no such option"]),
        (["+experiment/guide={a:1}"], ["Type +experiment/guide=<name>"]),
        (["-m", "train.learning_rate=interval(0,1)"], ["an interval", "range(1,4)"]),
        (["hydra.nope=1"], ["hydra.nope", "--cfg hydra"]),
        (["batch={per_device:x}"], ["batch.per_device: "]),
        (["batch={per_devic:1}"], ["batch.per_device"]),
        (["~hydra.run.dir"], ["hydra.run.dir: "]),
        (["train.seed=${eval}"], ["train.seed: "]),
        (["hydra.run.dir=${train}"], ["hydra.run.dir: "]),
        (["-m", "+experiment/guide=${nope:x}"], ["${nope:x} cannot stand for an option's name"]),
        (["hydra.run.dir=null"], ["hydra.run.dir: ", "Type another value"]),
        (["+measure.operations=true"], ["measure.operations", "without a plus"]),
        (["--config-dir=nope"], ["nope", "leave --config-dir out"]),
        (["-m", "hydra/sweeper=optuna"], ["hydra/sweeper=optuna", "not installed"]),
        (["-m", "precision=fp32,bf17"], ["precision=bf17", "bf16"]),
        (["-m", "precison=fp32,bf16"], ["precision"]),
        (["-m", "batch.per_device=1,two"], ["batch.per_device", "two"]),
        (["-m", "train.seed=${nope},1"], ["train.seed: ", "nope", "Type the value itself"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_what_cannot_run_is_refused_in_words(command, arguments, words):
    ended = command(*arguments, "device=cpu", fork_server=None)
    assert ended.code == 2, ended
    assert all(word in ended.err for word in words), ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"name: own\n  beta1: [1\n", "own.yaml, line 2, column 8: mapping values are not allowed here."),
        (b"name: own\nname: own\n", "own.yaml, line 2, column 1: found duplicate key name."),
        (b"\tname: own\n", "own.yaml, line 1, column 1: "),
        (b"name: own\nbeta1: !!python/object/apply:os.system [x]\n", "own.yaml, line 2, column 8: "),
        (b"- a\n", "optim/own.yaml must hold keys with values"),
        (b"", "optim/own.yaml must have the line name: own."),
        (b"name: own\nbeta1: abc\n", "optim.beta1: Value 'abc'"),
        (b"name: own\nbeta1: ${oc.env:HOME\n", "beta1: missing }"),
        (b"defaults: [nope]\nname: own\n", "optim/nope: there is no such option"),
        (b"name: \xff\n", "no UTF-8 text"),
    ],
)
def test_a_file_of_a_menu_that_cannot_be_used_is_named_with_its_line(command, tmp_path, content, expected):
    (tmp_path / "mine" / "optim").mkdir(parents=True)
    (tmp_path / "mine" / "optim" / "own.yaml").write_bytes(content)
    ended = command("--config-dir", str(tmp_path / "mine"), "optim=own", "device=cpu", fork_server=None)
    assert ended.code == 2 and expected in ended.err and len(ended.err.splitlines()) == 1, ended.err


def test_a_warning_of_hydra_is_one_line(command):
    ended = command("hydra.searchpath=[nowhere]", "train.max_steps=0", "device=cpu", fork_server=None)
    warned, refused = ended.err.splitlines()
    assert warned.startswith("warning: ") and "nowhere" in warned and ".py" not in warned
    assert refused.startswith("refused: train.max_steps=0")


def test_a_file_in_conf_that_is_no_text_is_named(tmp_path):
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "own.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(UnicodeDecodeError) as error:
        (tmp_path / "optim" / "own.yaml").read_text("utf-8")
    assert "own.yaml: it is no UTF-8 text" in hydra_errors.explain(error.value, [tmp_path])


def test_each_problem_is_one_line(command):
    ended = command("precision=tf32", "optim=paged_adam8bit", "batch.effective=3", "device=cpu")
    assert ended.code == 2 and len(ended.err.splitlines()) == 3
    assert all(line.startswith("refused: ") for line in ended.err.splitlines())


def test_a_refused_job_leaves_its_record(command, tmp_path):
    command("precision=tf32", "optim=paged_adam8bit", "device=cpu", "hydra.run.dir=here")
    left = record_file.read(tmp_path / "here")
    assert left.status == "refused" and left.error.type == "Refusal"
    assert "precision=tf32" in left.error.message and "optim=paged_adam8bit" in left.error.message
    assert left.overrides == ["precision=tf32", "optim=paged_adam8bit", "device=cpu"]


@pytest.mark.parametrize(
    "flags", [["hydra.run.dir={}/below"], ["-m", "hydra.sweep.dir={}/below", "train.seed=1,2"]], ids=["run", "sweep"]
)
def test_a_folder_that_cannot_be_written_is_refused(command, tmp_path, flags):
    (tmp_path / "a-file").touch()  # nobody, root included, can make a folder below a file
    ended = command(*[flag.format(tmp_path / "a-file") for flag in flags], *small())
    assert ended.code == 2, ended
    assert "a-file" in ended.err and "cannot be written" in ended.err and "Traceback" not in ended.err
    assert flags[-2 if len(flags) > 1 else 0].split("=")[0] in ended.err, "the key to type"


@pytest.mark.slow
def test_paths_with_any_letters_are_read_and_written(command, tmp_path):
    (tmp_path / "Müller, 日本 = (1).txt").write_text("word " * 400)
    ended = command(
        *small("data=text", "model=gpt2_tiny", f"data.path='{tmp_path}/Müller, 日本 = (1).txt'"),
        "hydra.run.dir=Über/a=(1)",
    )
    assert ended.code == 0, ended
    assert record_file.read(tmp_path / "Über" / "a=(1)").status == "ok"


def test_a_folder_with_another_runs_record_is_refused_and_left_alone(command, tmp_path):
    before = b'{"schema_version": 1, "status": "ok"}'
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / record_file.FILE_NAME).write_bytes(before)
    ended = command("hydra.run.dir=here", *small())
    assert ended.code == 2 and "here" in ended.err and "hydra.run.dir=" in ended.err
    assert (tmp_path / "here" / record_file.FILE_NAME).read_bytes() == before
    assert [path.name for path in (tmp_path / "here").iterdir()] == [record_file.FILE_NAME]


# --- help, completion, and the configuration -------------------------------------------------------


def test_help_lists_each_menu_with_its_options(legroom):
    with two_seconds_of_a_core():
        ended = legroom("--help", "all")
    assert ended.code == 0 and ended.err == ""
    lines = ended.out.splitlines()
    for group in GROUPS:
        assert group in lines
        for path in (CONF / group).glob("*.yaml"):
            described = path.read_text().splitlines()[0].removeprefix("#").strip()
            assert any(line.split()[:1] == [path.stem] and line.endswith(described) for line in lines), path


def test_the_first_help_fits_a_screen_and_names_every_menu(monkeypatch):
    monkeypatch.setattr(
        "legroom.invocation.command",
        lambda name="train", **_: f"python scripts/{name}.py".replace("scripts/train", "train"),
    )
    lines = help_text.text(CONF, ["--help"]).splitlines()
    assert len(lines) <= 40 and all(len(line) <= 80 for line in lines), [line for line in lines if len(line) > 80]
    options = {line.split()[0]: [*line.split(), ""][1].rstrip(",") for line in lines if line.startswith("  ")}
    assert all(options[group] == help_text.options_of(CONF, group)[0].stem for group in GROUPS)
    assert any("--help all" in line for line in lines)


def test_help_of_an_unknown_menu_is_refused(legroom):
    ended = legroom("--help", "optin")
    assert ended.code == 2 and "Did you mean optim" in ended.err and ended.out == ""
    ended = legroom("--version")
    assert ended.code == 0 and ended.out.startswith("legroom ") and "torch" in ended.out


def test_the_help_survives_a_reader_that_leaves(tmp_path):
    process = start_legroom("--help", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # at once, as `| head -0` does
    assert process.wait(timeout=60) == 0 and process.stderr.read() == ""


def test_a_terminal_without_unicode_gets_ascii(monkeypatch, capsys):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    console.say("───\nMüller \udcff")
    assert stream.buffer.getvalue() == b"---\nM\\xfcller \\udcff\n"
    assert console.spinner("ascii") == "line" and console.spinner("utf-8") == "dots"


@pytest.mark.parametrize(
    "typed,offered",
    [
        ("prec", {"precision="}),
        ("precision=", {f"precision={name}" for name in ("bf16", "bf16_pure", "fp16", "fp32", "tf32")}),
        ("optim=adam8", {"optim=adam8bit"}),
        ("batch.", {"batch.per_device=", "batch.effective="}),
    ],
)
def test_the_shell_completes_menus_options_and_keys(command, monkeypatch, typed, offered):
    line = f"python train.py {typed}"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    ended = command("-sc", "query=bash")
    assert ended.code == 0 and offered <= set(ended.out.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(command, shell):
    ended = command("-sc", f"install={shell}")
    assert ended.code == 0 and "hydra" in ended.out


def test_cfg_job_prints_the_configuration_and_runs_nothing(command, tmp_path):
    ended = command("--cfg", "job", "optim=sgd")
    printed = yaml.safe_load(ended.out)
    assert ended.code == 0
    assert printed["optim"]["name"] == "sgd" and printed["optim"]["momentum"] == 0.9
    assert printed["train"]["max_steps"] is None
    assert not (tmp_path / "outputs").exists()


# --- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["trainer", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_a_whole_run_from_the_shell(legroom, tmp_path, recipe):
    """Done when, 2: `precision=bf16 optim=adam8bit` ends ok, with every field that this device can fill."""
    ended = legroom(
        "--verbose",
        f"recipe={recipe}",
        "precision=bf16",
        "optim=adam8bit",
        "device=cpu",
        "data.samples=16",
        "data.seq_len=32",
        "data.eval_samples=4",
        "model.vocab=512",
        "measure.operations=true",
        env={"PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert ended.code == 0, ended.err
    out = ended.out.lower()
    for word in (
        "time",
        "samples/s",
        "weights",
        "gradients",
        "optimizer states",
        "activations",
        "other",
        "bytes a parameter",
        "details ",
    ):
        assert word in out, ended.out
    left = only_record(tmp_path)
    path = out.split("details ")[1].split()[0]
    assert (tmp_path / path).is_file()
    assert left.status == "ok" and left.recipe == recipe and left.training.steps == 4
    assert left.config["precision"]["name"] == "bf16" and left.config["optim"]["name"] == "adam8bit"
    for part in (left, left.training, left.speed, left.memory, left.evaluation):
        for field in dataclasses.fields(part):
            empty = getattr(part, field.name) is None
            known = field.name in GPU_FIELDS | ESTIMATES_FIELDS | UNUSED
            assert not empty or known, f"{type(part).__name__}.{field.name}"
    assert not imported(ended.err) & set(HEAVY), "the parent imports nothing heavy"
    assert "samples/s" in ended.err and "loss" in ended.err  # progress, also where stderr is no terminal


# 17 million weights: 66 MB each for them and their gradients, 133 MB of states.
NEEDS_A_QUARTER_GIB = small("model.width=512", "model.heads=8", "model.feed_forward=2048", "model.vocab=30522")


@pytest.mark.slow_for("0.001")
@pytest.mark.parametrize("limit", [0.001, 0.02, 0.1, 0.2])
def test_a_run_that_runs_out_of_memory_exits_with_3(command, tmp_path, limit):
    """Whatever the limit, and wherever the memory runs out: threads and small buffers need some too."""
    ended = command(*NEEDS_A_QUARTER_GIB, f"launch.memory_limit_gib={limit}", "hydra.run.dir=here")
    left = record_file.read(tmp_path / "here")
    assert (ended.code, left.status) == (3, "oom"), left.error
    assert left.error.hint and "precision=bf16" in left.error.hint
    printed = " ".join(ended.out.split())
    assert (
        "oom" in printed and " ".join(left.error.hint.split()) in printed and "Traceback" not in ended.err + ended.out
    )


def test_a_run_that_fails_exits_with_1_and_says_where_its_log_is(command, fault, tmp_path):
    broken = fault("import torch\ndef step(*_, **__): raise RuntimeError('injected')\ntorch.optim.AdamW.step = step")
    ended = command(*small("hydra.run.dir=here"), fork_server=broken)
    assert ended.code == 1 and record_file.read(tmp_path / "here").status == "failed"
    assert "injected" in ended.out and "log.txt" in ended.out and "Traceback" not in ended.err + ended.out
    assert "Traceback" in (tmp_path / "here" / "log.txt").read_text()


def test_a_run_that_takes_too_long_exits_with_1(command, tmp_path):
    ended = command(*small("launch.timeout_seconds=1", "train.max_steps=1000000", "hydra.run.dir=here"))
    assert ended.code == 1 and record_file.read(tmp_path / "here").status == "timeout"
    assert "launch.timeout_seconds" in ended.out


def interrupt_at_the_first_step(monkeypatch):
    """Ctrl-C as the parent sees it: an exception in the middle of its waiting. A second one is ignored by then."""
    on_message, done = console.Console.on_message, []

    def interrupted(self, message):
        on_message(self, message)
        if isinstance(message, StepsDone) and not done:
            done.append(message)
            raise KeyboardInterrupt

    monkeypatch.setattr(console.Console, "on_message", interrupted)


def test_an_interrupted_run_exits_with_130(command, monkeypatch, tmp_path):
    interrupt_at_the_first_step(monkeypatch)
    ended = command(*small("train.max_steps=100000", "train.log_seconds=0", "hydra.run.dir=here"))
    left = record_file.read(tmp_path / "here")
    assert ended.code == 130 and left.status == "interrupted" and left.training.steps >= 1


# --- sweeps ----------------------------------------------------------------------------------------


def statuses(folder) -> list[str]:
    return sorted(record_file.read(path.parent).status for path in folder.glob(f"*/{record_file.FILE_NAME}"))


def test_name_of_a_job_folder_begins_with_its_key(command, tmp_path):
    ended = command("-m", "recipe=trainer,accelerate", "train.seed=0,1", "hydra.sweep.dir=sweep", *small())
    assert ended.code == 0 and statuses(tmp_path / "sweep") == ["ok"] * 4
    for folder in (path.parent for path in (tmp_path / "sweep").glob("*/result.json")):
        key, _, readable = folder.name.partition("-")
        record = record_file.read(folder)
        assert key == record.config_key
        assert record.recipe in readable and f"seed_{record.config['train']['seed']}" in readable


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_refused_job_and_says_so_at_the_end(command, tmp_path):
    ended = command("-m", "precision=tf32,fp32", "hydra.sweep.dir=sweep", *small())
    assert ended.code == 1 and statuses(tmp_path / "sweep") == ["ok", "refused"]


def test_out_of_memory_is_a_result_of_a_sweep(command, tmp_path):
    ended = command("-m", "launch.memory_limit_gib=0.05,null", "hydra.sweep.dir=sweep", *NEEDS_A_QUARTER_GIB)
    assert ended.code == 0 and statuses(tmp_path / "sweep") == ["ok", "oom"]


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep(command, monkeypatch, tmp_path):
    interrupt_at_the_first_step(monkeypatch)
    ended = command(
        "-m", "train.seed=0,1,2", "hydra.sweep.dir=sweep", *small("train.max_steps=100000", "train.log_seconds=0")
    )
    assert ended.code == 130 and statuses(tmp_path / "sweep") == ["interrupted"]


# --- one command at a time in a folder -------------------------------------------------------------


def test_a_folder_in_which_another_command_trains_is_left_alone(command, tmp_path):
    from legroom.jobs import run_lock

    words = small("recipe=accelerate")
    with run_lock.hold(tmp_path / "busy"):
        ended = command(*words, f"hydra.run.dir={tmp_path}/busy", fork_server=None)
        assert ended.code == 2 and "another command is training" in ended.err
        assert list((tmp_path / "busy").iterdir()) == []
    assert command(*words, f"hydra.run.dir={tmp_path}/busy").code == 0, "it is free again"


def test_a_job_of_a_sweep_that_another_command_runs_is_left_alone(command, tmp_path):
    from legroom.jobs import run_lock

    words = ["-m", *small("recipe=accelerate"), f"hydra.sweep.dir={tmp_path}/s"]
    place = tmp_path / "s" / compose(*small("recipe=accelerate")).record.config_key
    with run_lock.hold(place):
        (place / "steps.jsonl").write_text("theirs")
        ended = command(*words, fork_server=None)
        assert ended.code == 1 and "another command is training" in ended.err
        assert (place / "steps.jsonl").read_text() == "theirs"


def test_a_lock_that_is_waited_for(tmp_path):
    """A sweep's report waits for that of another sweep in the same folder."""
    from legroom.jobs import run_lock

    def wait() -> bool:
        with run_lock.hold(tmp_path, wait=True):
            return True

    with ThreadPoolExecutor(1) as pool:
        with run_lock.hold(tmp_path):
            waiting = pool.submit(wait)
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
        assert waiting.result(20)
