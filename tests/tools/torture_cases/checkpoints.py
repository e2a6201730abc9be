"""Damaged checkpoints: skipped with a line that names the file, and the losses are those of a run left alone."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path

from legroom.records.record import Record
from torture_cases.workbench import Case, Workbench, copy, expect, flip_bit

RUN = ["train.max_steps=6", "save.every_steps=2", "save.keep=9", "model.dropout=0.1"]
RANKS = [*RUN, "parallelism=fsdp", "parallelism.num_processes=2"]
FILES = ["manifest.json", "rank-0.json", "rank-0.weights.safetensors", "rank-0.optimizer.safetensors"]
OLDER, NEWEST = "checkpoints/step-00000002", "checkpoints/step-00000004"
SKIPPED = "the newest is skipped with a line that names the file; resumed from step 2; losses equal to the bit"


def cases(seed: int) -> list[Case]:
    """Every file of a checkpoint with every kind of damage, then two ranks, then nothing but broken checkpoints."""
    made = [
        Case(f"{file}: {harm}", SKIPPED, _case(RUN, file, harm, random.Random(f"{seed} {file} {harm}")))
        for file in FILES
        for harm in HARMS
    ]
    for file in ("rank-1.json", "rank-1.weights.safetensors"):
        for harm in ("of another run", "deleted"):
            made.append(Case(f"two ranks, {file}: {harm}", SKIPPED, _case(RANKS, file, harm, random.Random(seed))))
    made.append(Case("all checkpoints broken, resume=latest", "a new start, a line each; losses equal", _all_broken))
    made.append(Case("a broken checkpoint that resume= names", "refused in words", _named))
    return made


def _whole(bench: Workbench, run: list[str], *more: str) -> tuple[Record, Path]:
    """A run that nothing disturbs, and its folder."""

    def train() -> tuple[Record, Path]:
        folder = bench.new_folder()
        outcome, _ = bench.job(folder, *run, *more)
        expect(outcome.status == "ok", outcome.error)
        return outcome, folder

    return bench.once((*run, *more), train)


def _case(run: list[str], file: str, harm: str, draw: random.Random):
    def damage_and_resume(bench: Workbench) -> str:
        left_alone, source = _whole(bench, run)
        folder = bench.new_folder()
        for name in (OLDER, NEWEST):
            copy(source / name, folder / name)
        HARMS[harm](bench, run, folder / NEWEST / file, draw)
        outcome, warned = bench.job(folder, *run, "resume=latest")
        expect(outcome.status == "ok", outcome.error)
        expect(outcome.training.resumed_from_step == 2, f"resumed from {outcome.training.resumed_from_step}")
        named = (
            FILES if (file, harm) == (FILES[0], "of another run") else [file]
        )  # then it is the files that do not fit
        expect(len(warned) == 1 and any(name in warned[0] for name in named), warned)
        expect(outcome.training.losses == left_alone.training.losses, "other losses")
        return "skipped: " + re.sub(r"\S*/(step-\d+/)", "", warned[0].split(" is skipped: ")[1])

    return damage_and_resume


def _truncate(_, __, path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(1, path.stat().st_size))


def _empty(_, __, path: Path, ___) -> None:
    os.truncate(path, 0)


def _flip(_, __, path: Path, draw: random.Random) -> None:
    flip_bit(path, draw.randrange(path.stat().st_size), draw.randrange(8))


def _delete(_, __, path: Path, ___) -> None:
    path.unlink()


def _of_another_run(bench: Workbench, run: list[str], path: Path, _) -> None:
    _, other = _whole(bench, run, "train.seed=7")
    shutil.copy(other / NEWEST / path.name, path)


def _of_another_step(_, __, path: Path, ___) -> None:
    shutil.copy(path.parents[2] / OLDER / path.name, path)


HARMS = {
    "truncated": _truncate,
    "emptied": _empty,
    "one bit flipped": _flip,
    "deleted": _delete,
    "of another run": _of_another_run,
    "of another step": _of_another_step,
}


def _all_broken(bench: Workbench) -> str:
    left_alone, source = _whole(bench, RUN)
    folder = bench.new_folder()
    for name in (OLDER, NEWEST):
        os.truncate(copy(source / name, folder / name) / FILES[2], 99)
    outcome, warned = bench.job(folder, *RUN, "resume=latest")
    expect(outcome.status == "ok" and outcome.training.resumed_from_step is None and len(warned) == 3, warned)
    expect("begins at step 0" in warned[-1], warned)
    expect(outcome.training.losses == left_alone.training.losses, "other losses")
    return "three lines, a new start, losses equal"


def _named(bench: Workbench) -> str:
    _, source = _whole(bench, RUN)
    folder = bench.new_folder()
    (copy(source / NEWEST, folder / NEWEST) / FILES[3]).unlink()
    outcome, _ = bench.job(bench.new_folder(), *RUN, f"resume={folder / NEWEST}")
    expect(outcome.status == "refused" and outcome.error is not None, outcome.status)
    said = outcome.error.message.split(": ")[-1] if outcome.error else ""
    return f"refused: {said.replace(str(folder), '<run>')}"
