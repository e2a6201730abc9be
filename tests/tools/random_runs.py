"""Train random tiny configurations of all menus in both recipes, and check everything that must hold for any of them.

python tests/tools/random_runs.py                       300 configurations; some 15 minutes on two free cores
python tests/tools/random_runs.py --seed 7 --count 50

What Legroom says of any configuration has to hold for each that is drawn: it is
refused in one line before the training, or both recipes end well with the same losses and the same memory, the five
parts add up to the peak, the estimate for a CPU has the same peak, and a training that goes on from a checkpoint in its
middle ends as the one that was left alone. The two recipes are typed in two ways that mean the same (other_ways.py):
copies of options under other names, rows that are left out, variables of chat templates. Some trainings are ended by a
cluster's signal to all their processes and go on, and some diverge (ended_runs.py).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import checkout  # noqa: F401 - `legroom` beside this file

import ended_runs
import other_ways

from legroom import paths
from legroom.jobs import fork_client, launch, supervise
from legroom.options import compose, menus
from legroom.records import checkpoint_files
from legroom.records.record import Record

RECIPES = ("trainer", "accelerate")
MENUS = ("precision", "optim", "checkpointing", "adapter", "loss", "accumulation", "kernels")
COPIED = (*MENUS, "parallelism", "data", "model")  # menus whose options are typed by a copy's name, too
UNCHANGED = 0.5  # how often a menu or a key keeps its default
RANKS_SHARE = 0.12  # of the configurations that train on two ranks
COMPILED_SHARE = 0.02  # of those that torch compiles, which takes a minute each
SIGNALLED_SHARE = DIVERGING_SHARE = 0.08  # of those that are ended by a signal, and that train at a huge rate
STEPS, SAVED_STEP, JOB_SECONDS = 4, 2, 180
BASE = ["device=cpu", "tracker=none", "data.samples=24", "data.eval_samples=4", "measure.warmup_steps=0"]
BASE += [f"train.max_steps={STEPS}", f"launch.timeout_seconds={JOB_SECONDS}"]
MODELS = ("bert_tiny", "gpt2_tiny", "llama_tiny", "mixtral_tiny")
DATA = ("dummy", "source", "text", "chat", "mrpc")
# Keys with values, and what a line must have for the key to mean anything.
KEYS = {
    "model.layers": (1, 2, 3),
    "model.width": (32, 64),
    "model.dropout": (0.0, 0.1),
    "model.attention": ("eager", "sdpa"),
    "data.seq_len": (16, 33, 64),
    "data.packing": ("true",),
    "data.group_by_length": ("true",),
    "batch.per_device": (1, 2, 3),
    "batch.effective": (2, 4, 6),
    "accumulation.steps": (3,),
    "checkpointing.every_n_layers": (2,),
    "adapter.rank": (2, 4),
    "adapter.dropout": (0.1,),
    "adapter.dora": ("true",),
    "adapter.bits": (8,),
    "train.schedule": ("cosine", "constant", "polynomial"),
    "train.warmup_steps": (2,),
    "train.max_grad_norm": (0, 0.1),
    "train.weight_decay": (0.1,),
    "train.learning_rate": (1e-3,),
    "train.seed": (1, 2),
    "eval.every_steps": (2,),
    "eval.batch": (1, 3),
    "save.final": ("true",),
    "optim.in_backward": ("true",),
    "precision.base": ("fp32", "bf16"),
    "precision.weights": ("fp32", "bf16"),
    "precision.adapter": ("fp32", "bf16"),
    "precision.reduction": ("fp32", "bf16"),
}
NEEDS = {
    "precision.base": "adapter=",
    "precision.weights": "precision=bf16",
    "precision.adapter": "adapter=",
    "precision.reduction": "parallelism=fsdp",
    "adapter.rank": "adapter=",
    "adapter.dropout": "adapter=",
    "adapter.dora": "adapter=",
    "adapter.bits": "adapter=qlora",
    "checkpointing.every_n_layers": "checkpointing=",
    "optim.in_backward": "train.max_grad_norm=0",
    "data.packing": "data.path=",
    "data.group_by_length": "data.path=",
}
KEY_SHARE = 0.12  # how often a key is typed
NO_SHARED_PEAK = ("parallelism.",)  # the two recipes gather weights at other moments
SAME_PEAK, SAME_ESTIMATE = 0.01, 0.01


@dataclass(frozen=True)
class Drawn:
    """A configuration. ways: its overrides, typed in two ways. check: both, signalled or diverging."""

    ways: other_ways.TwoWays
    check: str = "both"


@dataclass(frozen=True)
class Outcome:
    """What became of a configuration. kind: ok, refused, or failed.

    why: the refusal, what did not hold, or how a training was ended.
    """

    drawn: Drawn
    kind: str
    why: str = ""


def available() -> dict[str, list[str]]:
    """The options of each menu that this machine does not refuse when they are typed alone."""
    found = {}
    for menu in MENUS:
        found[menu] = [
            option
            for option in sorted(menus.options(menu, [paths.CONF]))
            if not compose.compose(paths.CONF, *BASE, "model=llama_tiny", f"{menu}={option}")[2]
        ]
    return found


def draw(chance: random.Random, options: dict[str, list[str]], ways: other_ways.Ways) -> Drawn:
    """One configuration. options: of each menu. ways: what else may be typed."""
    source = chance.choice(DATA)
    data = ways.draw_data(chance, source)
    overrides = [f"model={chance.choice(MODELS)}", f"data={source}"]
    for menu in MENUS:
        if options[menu] and chance.random() > UNCHANGED:
            overrides.append(f"{menu}={chance.choice(options[menu])}")
    ranks = chance.random() < RANKS_SHARE
    if ranks:
        overrides.append(f"parallelism={chance.choice(('ddp', 'fsdp'))}")
        overrides.append("parallelism.num_processes=2")
    for key, values in KEYS.items():
        possible = key not in NEEDS or any(word.startswith(NEEDS[key]) for word in [*overrides, *data.one])
        if chance.random() < KEY_SHARE and possible:
            overrides.append(f"{key}={chance.choice(values)}")
    if chance.random() < COMPILED_SHARE:
        overrides.append("compile=true")
    share, check = chance.random(), "both"
    if share < SIGNALLED_SHARE:
        check = "signalled"
    elif share < SIGNALLED_SHARE + DIVERGING_SHARE:
        check = "diverging"
    other = ways.with_copies(chance, overrides)
    return Drawn(other_ways.TwoWays((*overrides, *data.one), (*other, *data.other)), check)


class Runs:
    """Trains configurations, each job in a process and a folder of its own."""

    def __init__(self, folder: Path, fork_server: fork_client.ForkServer):
        self.folder, self.fork_server = folder, fork_server
        self.ways = other_ways.Ways(folder)
        self.ways.copy_options(COPIED)
        self.composing = threading.Lock()  # Hydra has one global state

    def job(self, folder: Path, *overrides: str) -> tuple[Record | None, list[str]]:
        """(the record of a job, or None; why it is refused)."""
        with self.composing:
            _, outcome, problems = compose.compose(paths.CONF, *overrides)
        if problems or outcome is None:
            return None, problems
        folder.mkdir(parents=True, exist_ok=True)
        record = supervise.run(launch.Job(outcome, folder), lambda _: None, self.fork_server)
        if record.status == "refused":
            return None, record.error.message.splitlines() if record.error else [""]
        return record, []

    def check(self, number: int, drawn: Drawn) -> Outcome:
        """Train one configuration in both recipes, and see that all of it holds."""
        folder = self.folder / str(number)
        checks = {"both": self._check, "signalled": self._check_signalled, "diverging": self._check_diverging}
        try:
            kind, why = checks[drawn.check](folder, number, drawn)
        except ended_runs.Refused as refused:
            kind, why = self._refused(refused.lines, drawn)
        except Exception as error:  # the composition itself must not end in one, either
            kind, why = "failed", f"{type(error).__name__}: {error}"
        if kind != "failed":
            shutil.rmtree(folder, ignore_errors=True)
        return Outcome(drawn, kind, why)

    def _refused(self, lines: list[str], drawn: Drawn) -> tuple[str, str]:
        """A refusal is in words, and the other way to type it is refused as well."""
        if not lines or not all(lines):
            return "failed", f"refused as {lines}"
        with self.composing:
            one, other = (compose.compose(paths.CONF, *BASE, *way)[2] for way in (drawn.ways.one, drawn.ways.other))
        if bool(one) != bool(other):
            return "failed", f"one way is refused as {one}, the other as {other}"
        return "refused", lines[0]

    def _check(self, folder: Path, number: int, drawn: Drawn) -> tuple[str, str]:
        ways = {recipe: [*BASE, *way] for recipe, way in zip(RECIPES, (drawn.ways.one, drawn.ways.other))}
        saving = [f"save.every_steps={SAVED_STEP}", "save.keep=3"] if number % 3 == 0 else []
        records = []
        for recipe, overrides in ways.items():
            record, refused = self.job(folder / recipe, f"recipe={recipe}", *overrides, *saving)
            if record is None:
                return self._refused(refused, drawn)
            if record.status != "ok":
                return "failed", f"{recipe}: {record.status}: {record.error}"
            records.append(record)
        wrong = differences(*records)
        if not any(text.startswith("compile=") for text in drawn.ways.one):  # an estimate is of the step as written
            wrong += self._estimate(folder, ways["accelerate"], records[1])
        if saving:
            wrong += self._resume(folder, number, [*ways[RECIPES[number % 2]], *saving], records)
        return ("failed", "; ".join(wrong)) if wrong else ("ok", "")

    def _check_signalled(self, folder: Path, number: int, drawn: Drawn) -> tuple[str, str]:
        overrides = [*BASE, f"recipe={RECIPES[number % 2]}", *drawn.ways.other]
        chance = random.Random(number)
        wrong = ended_runs.check_signalled(self.job, folder, overrides, self.ways.menus, chance)
        return ("failed", "; ".join(wrong)) if wrong else ("ok", "signalled")

    def _check_diverging(self, folder: Path, number: int, drawn: Drawn) -> tuple[str, str]:
        ways = {recipe: [*BASE, *way] for recipe, way in zip(RECIPES, (drawn.ways.one, drawn.ways.other))}
        wrong, diverged = ended_runs.check_diverging(self.job, folder, ways, random.Random(number))
        if wrong:
            return "failed", "; ".join(wrong)
        return "ok", "diverged" if diverged else "did not diverge"

    def _estimate(self, folder: Path, overrides: list[str], trained: Record) -> list[str]:
        estimated, refused = self.job(folder / "estimate", "recipe=estimate", *overrides)
        if estimated is None:
            return [] if refused and all(refused) else [f"the estimate is refused as {refused}"]
        if estimated.status != "ok":
            return [f"the estimate ended as {estimated.status}: {estimated.error and estimated.error.message}"]
        counted, predicted = trained.memory.peak_tensor_bytes, estimated.memory.peak_tensor_bytes
        if not counted or not predicted or abs(predicted / counted - 1) > SAME_ESTIMATE:
            return [f"the estimate's peak is {predicted}, the counted one {counted}"]
        return []

    def _resume(self, folder: Path, number: int, overrides: list[str], records: list[Record]) -> list[str]:
        """Go on from the middle of one of the two trainings."""
        recipe, left_alone = RECIPES[number % 2], records[number % 2]
        middle = folder / recipe / "checkpoints" / checkpoint_files.folder_name(SAVED_STEP)
        if not middle.exists():
            return [f"{recipe}: no checkpoint of step {SAVED_STEP}"]
        again = folder / "again"
        (again / "checkpoints").mkdir(parents=True)
        shutil.copytree(middle, again / "checkpoints" / middle.name)
        resumed, refused = self.job(again, f"recipe={recipe}", *overrides, "resume=latest")
        if resumed is None or resumed.status != "ok":
            return [f"{recipe}: going on ended as {refused or resumed and resumed.error}"]
        if resumed.training.resumed_from_step != SAVED_STEP:
            return [f"{recipe}: went on from step {resumed.training.resumed_from_step}, not {SAVED_STEP}"]
        if resumed.training.losses[-1] != left_alone.training.losses[-1]:
            return [f"{recipe}: going on gives {resumed.training.losses}, left alone {left_alone.training.losses}"]
        return []


def differences(trainer: Record, accelerate: Record) -> list[str]:
    """What the two recipes do not agree in, and what does not add up."""
    wrong = []
    one, other = trainer.training.losses, accelerate.training.losses
    if not one or not all(loss is not None and math.isfinite(loss) for loss in one):
        wrong.append(f"the losses are {one}")
    if one != other:
        wrong.append(f"the Trainer's losses are {one}, the raw loop's {other}")
    if trainer.evaluation and accelerate.evaluation and trainer.evaluation.loss != accelerate.evaluation.loss:
        wrong.append(f"evaluated: {trainer.evaluation.loss} and {accelerate.evaluation.loss}")
    for record in (trainer, accelerate):
        memory = record.memory
        parts = ("parameters", "gradients", "optimizer", "activations", "other")
        total = sum(getattr(memory, f"{part}_bytes") or 0 for part in parts)
        if not memory.peak_tensor_bytes or total != memory.peak_tensor_bytes:
            wrong.append(f"{record.recipe}: the parts add up to {total}, the peak is {memory.peak_tensor_bytes}")
    peaks = [record.memory.peak_tensor_bytes or 0 for record in (trainer, accelerate)]
    if not any(word.startswith(NO_SHARED_PEAK) for word in trainer.overrides) and (
        abs(peaks[0] - peaks[1]) > SAME_PEAK * max(peaks)
    ):
        wrong.append(f"the peaks are {peaks[0]} and {peaks[1]}")
    return wrong


def check_all(count: int, seed: int, runs: Runs, at_once: int) -> Iterator[Outcome]:
    """Outcomes until `count` configurations have trained; refused ones come on top."""
    options, chance = available(), random.Random(seed)
    done = number = 0
    with ThreadPoolExecutor(at_once) as pool:
        while done < count:
            drawn = [(number + i, draw(chance, options, runs.ways)) for i in range(min(2 * at_once, count - done))]
            number += len(drawn)
            for outcome in pool.map(lambda each: runs.check(*each), drawn):
                done += outcome.kind != "refused"
                yield outcome


def main() -> int:
    """The command. Returns its exit code: 1 when something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="how many configurations to train (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="configurations at a time (default: 2)")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.count} configurations", flush=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # compiled code on several threads differs by 1e-7 from run to run
    counts, ways_to_end = Counter(), Counter()
    ends, start, fork_server = "none", time.monotonic(), fork_client.ForkServer()
    folder = Path(tempfile.mkdtemp(prefix="legroom-runs-"))
    try:
        for outcome in check_all(options.count, options.seed, Runs(folder, fork_server), options.at_once):
            counts[outcome.kind] += 1
            ways_to_end[outcome.why] += outcome.kind == "ok" and outcome.drawn.check != "both"
            ends = ", ".join(f"{counts[kind]} {kind}" for kind in ("ok", "refused", "failed"))
            if outcome.kind == "failed":
                ways = outcome.drawn.ways
                print(f"failed ({outcome.drawn.check}): {shlex.join([*BASE, *ways.one])}", flush=True)
                print(f"  or as: {shlex.join(ways.other)}\n  {outcome.why}", flush=True)
            if counts.total() % 20 == 0:  # what was seen, should the rest not be waited for
                print(f"{time.monotonic() - start:.0f} s so far: {ends}", flush=True)
    finally:
        fork_server.close()
    ended = ", ".join(f"{count} {why}" for why, count in sorted(ways_to_end.items()) if count)
    print(f"{time.monotonic() - start:.0f} s: {ends}" + (f"; among those ok {ended}" if ended else ""))
    if counts["failed"]:
        print(f"What is left of them: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
