"""The command `submit`: a training for a scheduler that is there, as the file that it takes.

    {submit} slurm /shared/me/large gpu=h100_80gb model=bert_large parallelism=ddp parallelism.num_processes=8
    {submit} k8s /runs/large --image registry/legroom:gpu --volume runs --queue team gpu=h100_80gb ...
    {submit} sky | dstack | ray FOLDER ...

Takes the overrides of {train}. They are estimated first, so a GPU is named with gpu=, the number of all ranks with
parallelism.num_processes=, and machines with gpu.machines= and gpu.machine_link_gb_per_second=; what would not fit is
not written. FOLDER is the run's, on a file system that all machines share.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType

from legroom import invocation, paths
from legroom.cli import argv as argv_flags
from legroom.cli import console, exit_codes, flags
from legroom.cli.submit import container
from legroom.cli.submit import job as jobs
from legroom.cli.submit.job import Job
from legroom.cli.submit.settings import Settings
from legroom.config import Config
from legroom.errors import Refusal
from legroom.foresight import instant
from legroom.foresight.search import space
from legroom.jobs import launch, supervise
from legroom.machine import instances
from legroom.options import model_names
from legroom.records.record import Record, verdict_of

SCHEDULERS = ("slurm", "k8s", "sky", "dstack", "ray")
FLAGS = ("image", "volume", "queue", "hours")
USUAL_GPUS = 8  # of one machine, at most
# Keys that may have a path.
PATHS = ("data.path", "data.eval_path", "model.pretrained", "model.config", "code", "optim.factory")
FOLDER = re.compile(r"[\w./+@() -]+")  # without what Hydra, which reads it in the training, takes for several values
# What the command writes itself, or what a training that is started again cannot have.
OWN_KEYS = {
    "hydra.run.dir": "the folder is the command's second argument",
    "resume": "every attempt has resume=latest",
    "launch.preempted_exit_code": "the file has the code that its scheduler wants",
}
SWEEP = (
    "-m: the file is that of one training. A sweep is {train} -m hydra/launcher=submitit_slurm ..., or "
    "hydra/launcher=ray; for another scheduler, write a file for each job."
)


def main(argv: list[str]) -> int:
    """Run the command. Returns its exit code: 0 for a file that was written and, with --go, was taken."""
    if argv[:1] and argv[0] in SCHEDULERS and argv_flags.MULTIRUN & set(argv):
        raise Refusal(SWEEP.format(train=invocation.command()))
    arguments = _parser().parse_intermixed_args(flags.take_own_menus(argv))
    target = importlib.import_module(f"legroom.cli.submit.{arguments.scheduler}")
    settings = Settings(arguments.image, arguments.volume, arguments.queue, arguments.hours)
    _check_flags(arguments.scheduler, target, settings)
    file = arguments.write or Path(target.FILE.format(name=jobs.name_of(arguments.folder)))
    _check_place(arguments, target, file)
    overrides = _overrides(arguments.overrides)
    if "volume" in target.NEEDS:
        _check_paths(overrides, arguments.folder)
    job = _sized(arguments.folder, overrides)
    if job is None:
        return exit_codes.OUT_OF_MEMORY
    typed = [*invocation.command("submit", anywhere=True).split(), *argv]
    try:
        file.write_text(target.text(job, settings, heading(job, typed)))
    except OSError as error:
        raise Refusal(f"{file} cannot be written: {error.strerror}. Name another file with --write.") from None
    hand_over = [*target.HANDS_OVER, str(file)]
    for line in [*job.sizes(), *_notes(job), *target.notes(job, settings)]:
        console.say(f"  {line}")
    console.say(f"Written: {file}")
    if not arguments.go:
        console.say(f"Hand it over: {shlex.join(hand_over)}")
        return 0
    console.say(shlex.join(hand_over))
    return subprocess.run(hand_over, check=False).returncode


def heading(job: Job, typed: list[str]) -> str:
    """The comment at the head of a file: what made it, and the sizes that it has."""
    text = "\n".join(["Written by", f"  {shlex.join(typed)}", *job.sizes()])
    return "".join(f"# {line}\n" for line in text.splitlines())  # what was typed may have lines of its own


# --- what was typed --------------------------------------------------------------------------------------


def _check_flags(scheduler: str, target: ModuleType, settings: Settings) -> None:
    """Raise Refusal for flags that a scheduler's file has no place for, or that it needs."""
    problems = []
    for name in FLAGS:
        typed = getattr(settings, name) is not None
        if typed and name not in target.TAKES:
            problems.append(f"--{name} has no place in the file for {scheduler}. Leave it out.")
        if not typed and name in target.NEEDS:
            problems.append(f"{scheduler} needs --{name} {HELP_OF_FLAGS[name]}")
    if problems:
        raise Refusal("\n".join(problems))
    target.check(settings)


def _check_place(arguments: argparse.Namespace, target: ModuleType, file: Path) -> None:
    """Raise Refusal for a folder or a file that cannot be meant, or a program that is not here."""
    if "=" in arguments.folder:
        raise Refusal(
            f"{arguments.folder} stands where the run's folder is expected. Type {invocation.command('submit')} "
            f"{arguments.scheduler} FOLDER {arguments.folder} ..."
        )
    if not arguments.folder.startswith("/") or arguments.folder.rstrip("/").count("/") < 2:
        raise Refusal(
            f"{arguments.folder}: type the whole path of a folder on the shared file system, as /runs/"
            f"{Path(arguments.folder).name or 'large'}. It need not exist here."
        )
    if not FOLDER.fullmatch(arguments.folder):
        raise Refusal(f"{arguments.folder}: type a path of letters, digits, spaces and . _ - + @ ( ) alone.")
    if file.exists():
        raise Refusal(f"{file} exists. Remove it, or name another file: --write FILE.")
    program = target.HANDS_OVER[0]
    if arguments.go and shutil.which(program) is None:
        raise Refusal(f"--go: there is no {program} here. Leave --go out, and take the file to where there is.")


def _overrides(typed: list[str]) -> list[str]:
    """The overrides with models and machines of clouds by their names in the menus. Raises Refusal for what the file
    decides."""
    for text in typed:
        key = text.lstrip("+~").partition("=")[0]
        if key in OWN_KEYS:
            raise Refusal(f"{text}: {OWN_KEYS[key]}. Leave it out.")
        if text.startswith("-"):
            raise Refusal(f"{text}: {invocation.command('submit')} has no such flag; --help lists its flags.")
    overrides, notes = model_names.in_overrides(typed, paths.menus())
    for note in notes:
        console.say(note)
    return instances.in_overrides(overrides)


def _check_paths(overrides: list[str], folder: str) -> None:
    """Raise Refusal for files of this machine, which a container does not have."""
    volume = container.volume_path(folder)
    problems = []
    for text in paths.menus_as_typed():
        problems.append(f"{text}: the image has Legroom's own menus alone. Type the keys themselves.")
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        value = value.strip("'\"")
        if key == "optim.factory":  # file.py:Class
            value = value.rpartition(":")[0]
        is_path = value.startswith(("/", "~", "./", "../")) or Path(value).exists()
        if key in PATHS and value and is_path and not value.startswith(f"{volume}/"):
            problems.append(
                f"{text}: a container has the volume alone, at {volume}. Copy it there, and type its path there."
            )
    if problems:
        raise Refusal("\n".join(problems))


# --- the sizes -------------------------------------------------------------------------------------------


def _sized(folder: str, overrides: list[str]) -> Job | None:
    """The job with its sizes from the estimate of its configuration; None, which was said, where it does not fit."""
    asked = [text for text in overrides if not text.startswith("recipe=") and not _lies_elsewhere(text)]
    quick = ["resume=latest", "estimate.hint_seconds=0"]
    cfg, record, problems = space.compose_estimate(*asked, *quick)
    if cfg is not None and not cfg.parallelism.saves_checkpoints:
        problems = [
            f"parallelism={cfg.parallelism.name} writes no checkpoint yet that this job could go on from when it is "
            "started again. Choose parallelism=fsdp, or pipeline."
        ]
    if cfg is not None and not problems and not cfg.save.on_signal:
        problems = ["save.on_signal=false: nothing would be left of a job that was preempted. Leave it out."]
    if cfg is None or record is None or problems:
        raise Refusal("\n".join(text.removeprefix("recipe=estimate: ") for text in problems))
    outcome = _estimated(cfg, record)
    if outcome.status == "oom":
        estimate = f"{invocation.command('estimate')} {shlex.join(asked)}"
        message = "" if outcome.error is None else outcome.error.message
        console.say_problems([f"{message} Nothing was written. What would fit: {estimate}"])
        return None
    if outcome.status != "ok":
        raise Refusal("the estimate failed: " + ("" if outcome.error is None else outcome.error.message))
    verdict = "estimated" if outcome.estimate is None else verdict_of(outcome.estimate)
    console.say(f"{verdict}: {cfg.model.pretrained or cfg.model.name}")
    return jobs.of(cfg, outcome, folder, overrides)


def _lies_elsewhere(override: str) -> bool:
    """Whether an override names data that is not on this machine. Says so: the estimate goes without it."""
    key, _, value = override.partition("=")
    if key != "data.path" or not value.startswith("/") or Path(value).exists():
        return False
    console.say(f"{override} is not on this machine: all rows are taken to have data.seq_len tokens.")
    return True


def _estimated(cfg: Config, record: Record) -> Record:
    """The record of an estimate, in a process of its own; of weights that alone exceed the GPU at once."""
    if instant.answer(cfg, record):
        return record
    display = console.Console(beats=True)
    with tempfile.TemporaryDirectory() as folder, display:
        return supervise.run(launch.Job(record, Path(folder)), display.on_message)


def _notes(job: Job) -> list[str]:
    """What holds for every scheduler."""
    lines = []
    if job.keeps is None:
        lines.append("A machine that fails without a signal costs everything since the start: add save.every_steps=N.")
    if job.gpus > USUAL_GPUS:
        lines.append(
            f"One machine with {job.gpus} GPUs is asked for. If yours have {USUAL_GPUS}, add "
            f"gpu.machines={job.machines * math.ceil(job.gpus / USUAL_GPUS)} and gpu.machine_link_gb_per_second=."
        )
    return lines


# --- the command line ------------------------------------------------------------------------------------

HELP_OF_FLAGS = {
    "image": "IMAGE: a container image with Legroom, as `docker build --target gpu` makes one.",
    "volume": "NAME: the shared file system; it is mounted at the first folder of FOLDER.",
    "queue": "NAME: Kueue's local queue, or SLURM's partition.",
    "hours": "N: the time of one attempt.",
}


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").format(submit=invocation.command("submit"), train=invocation.command())
    parser = argparse.ArgumentParser(
        prog=invocation.command("submit"),
        description=about.partition("\n")[2].strip("\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scheduler", choices=SCHEDULERS)
    parser.add_argument("folder", metavar="FOLDER", help="the run's folder, on a file system that all machines share")
    parser.add_argument("overrides", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--go", action="store_true", help="hand the file over, too")
    parser.add_argument("--write", type=invocation.path, metavar="FILE", help="the file to write")
    for name, text in HELP_OF_FLAGS.items():
        metavar, _, about = text.partition(": ")
        parser.add_argument(f"--{name}", type=float if name == "hours" else str, metavar=metavar, help=about)
    return parser
