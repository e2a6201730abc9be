"""Train a tiny model of every architecture that transformers has; write docs/models.md.

    python tests/tools/walk_models.py                     all, under 30 minutes on two cores
    python tests/tools/walk_models.py llama bert          these again; the page, if --folder has the others

Each architecture of transformers' auto mappings for causal language modelling and sequence classification is made
tiny from its configuration class, trained two steps in the raw loop, estimated, saved, and loaded again; or refused in
words. It goes the way of a user's model: a folder with random weights, given as model.pretrained.
Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import datetime
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from checkout import ROOT

from legroom import paths
from legroom.jobs import fork_client, launch, supervise
from legroom.machine import host
from legroom.options import compose
from legroom.options import model as model_options
from legroom.records import atomic_file, run_folder
from legroom.records.record import Error, Record

TASKS = {"language_modelling": "causal language models", "classification": "sequence classifiers"}
MAKING_SECONDS, JOB_SECONDS = 90, 90
JOB = ["data.seq_len=32", "data.samples=8", "data.eval_samples=4", "batch.per_device=2", "train.max_steps=2"]
JOB += ["measure.warmup_steps=0", "measure.ledger=false", "device=cpu", "tracker=none"]
JOB += [f"launch.timeout_seconds={JOB_SECONDS}"]
SAME_LOSS = 1e-3  # relative difference of the evaluation before saving and after loading
TRAINED, NOT_ESTIMATED, REFUSED, NOT_MADE, NOT_TRAINABLE, FAILED = (
    "trained",
    "trained, not estimated",
    "refused",
    "not made",
    "not trainable",
    "failed",
)
MEANINGS = {
    TRAINED: "two steps in the raw loop, estimated for a GPU, saved, loaded, and the same evaluation loss; on the next "
    "token, without seeing later ones, and with the same logits for a row alone and beside a longer one",
    NOT_ESTIMATED: "the same, but the estimate is refused in one line: the step depends on values",
    REFUSED: "in one line, before any step",
    NOT_MADE: "transformers builds no tiny model from the configuration class: a package is missing, or a value",
    NOT_TRAINABLE: "the tiny model is built, and transformers' own forward and backward pass on token ids fails",
    FAILED: "anything else",
}


@dataclass
class Result:
    """What became of one architecture. why: the refusal, or what failed. attention: what model.attention=auto chose."""

    kind: str  # the `model_type`
    task: str
    status: str
    architecture: str = ""
    why: str = ""
    attention: str = ""
    seconds: float = 0.0


def architectures() -> list[tuple[str, str]]:
    """(model type, task) of every architecture in the two auto mappings of the installed transformers."""
    import tiny

    return [(kind, task) for task, kinds in tiny.NAMES.items() for kind in kinds]


class Walk:
    """Makes tiny models and runs their jobs, each in a process. folder: for models and records; emptied on the way."""

    def __init__(self, folder: Path, fork_server: fork_client.ForkServer):
        self.folder, self.fork_server = folder, fork_server
        self.templates: dict[tuple[str, ...], Record] = {}
        self.composing = threading.Lock()  # Hydra has one global state
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["tiny"])
        with _python_path():
            forkserver.ensure_running()

    def visit(self, kind: str, task: str) -> Result:
        """Make, train, estimate, save and load one architecture."""
        start, folder = time.monotonic(), self.folder / f"{kind}-{task}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        made = self._make(kind, task, folder, plain_step=False)
        if made["not_made"]:
            result = Result(kind, task, NOT_MADE, why=made["not_made"])
        else:
            result = self._run_jobs(Result(kind, task, TRAINED, made["architecture"]), folder)
            if result.status == FAILED:
                reason = self._make(kind, task, folder, plain_step=True)["not_trained"]
                result.status, result.why = (NOT_TRAINABLE, reason) if reason else (FAILED, result.why)
            result.why = result.why or made["said"]
            if result.status in (TRAINED, NOT_ESTIMATED) and made["wrong"]:
                result.status, result.why = FAILED, f"trained wrong: {made['wrong']}"
        result.why = result.why.replace(str(folder), "FOLDER")
        result.seconds = time.monotonic() - start
        if result.status != FAILED:
            shutil.rmtree(folder)
        return result

    def _make(self, kind: str, task: str, folder: Path, plain_step: bool) -> dict[str, Any]:
        """The report of `tiny.save`, in a process of its own."""
        import tiny

        process = self.processes.Process(target=tiny.save, args=(kind, task, folder, plain_step))
        process.start()
        process.join(MAKING_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        report = folder / tiny.REPORT
        if not report.exists():
            return {
                "not_made"
                if not plain_step
                else "not_trained": f"the process ended with {process.exitcode} (limit: {MAKING_SECONDS} s)"
            }
        return json.loads(report.read_text())

    def _run_jobs(self, result: Result, model: Path) -> Result:
        """Train and save, estimate, and evaluate what was saved."""
        trained = self._job(model / "trained", model, "recipe=accelerate", "save.final=true")
        result.attention = (trained.model and trained.model.attention) or ""
        if not note(result, trained, "training"):
            return result
        estimated = self._job(model / "estimated", model, "recipe=estimate", "gpu=rtx4090_24gb", "device=auto")
        if estimated.status == "refused":
            result.status, result.why = NOT_ESTIMATED, line(estimated)
        elif not note(result, estimated, "estimate"):
            return result
        saved = model / "trained" / run_folder.MODEL_FOLDER
        loaded = self._job(
            model / "loaded", saved, "recipe=accelerate", "train.learning_rate=0", "measure.ledger=false"
        )
        if note(result, loaded, "loading"):
            before, after = (run.evaluation.loss if run.evaluation else None for run in (trained, loaded))
            if before is None or after is None or abs(before - after) > SAME_LOSS * abs(before):
                result.status, result.why = FAILED, f"evaluation loss {before} before saving, {after} after loading"
        return result

    def _composed(self, overrides: tuple[str, ...], model: Path) -> Record:
        """The empty record of a job; Hydra, which takes a third of a second, composes it for the first model only."""
        with self.composing:
            if overrides not in self.templates:
                command = [*JOB, *overrides, f"model.pretrained={model}"]
                _, outcome, problems = compose.compose(paths.CONF, *command)
                assert outcome is not None and not problems, problems
                self.templates[overrides] = outcome
            return self.templates[overrides]

    def _job(self, folder: Path, model: Path, *overrides: str) -> Record:
        """The record of one job."""
        folder.mkdir()
        outcome = copy.deepcopy(self._composed(overrides, model))
        outcome.config["model"] |= {"pretrained": str(model)} | model_options.of_pretrained(str(model))
        return supervise.run(launch.Job(outcome, folder), lambda _: None, self.fork_server)


@contextlib.contextmanager
def _python_path() -> Iterator[None]:
    """PYTHONPATH as sys.path is: Python 3.11's fork server has no other way to find what it preloads."""
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    yield
    os.environ.clear()
    os.environ.update(before)


def note(result: Result, run: Record, what: str) -> bool:
    """Whether a job ended well; otherwise its end becomes the result."""
    if run.status == "ok":
        return True
    error = run.error or Error("?", run.status, "")
    result.status, result.why = REFUSED, line(run)
    if run.status != "refused" or what != "training":  # who may train may estimate and load as well
        result.status, result.why = FAILED, f"{what}: {run.status} in {error.phase}: {error.type}: {line(run)}"
    return False


def line(run: Record) -> str:
    """The error of a job in one line of at most 300 characters."""
    return " ".join(run.error.message.split())[:300] if run.error else ""


def run(names: list[str], folder: Path, target: Path | None, at_once: int) -> int:
    """Walk over architectures, print a line for each, and write the page. Returns 1 if one failed.

    names: model types; empty: all. at_once: architectures at a time. folder: for models, and for results.jsonl, which
    a walk over some names updates; without the results of the others it leaves the page as it is.
    """
    everything = architectures()
    unknown = sorted(set(names) - {kind for kind, _ in everything})
    if unknown:
        print(f"no such model type in the auto mappings: {', '.join(unknown)}")
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    results, start = read(folder / "results.jsonl") if names else {}, time.monotonic()
    fork_server = fork_client.ForkServer()
    walk = Walk(folder, fork_server)
    chosen = [each for each in everything if not names or each[0] in names]
    if names and target is not None and set(everything) - set(results) - set(chosen):
        print(f"{target} stays as it is: {folder} has no results of the other architectures.", flush=True)
        target = None
    try:
        with ThreadPoolExecutor(at_once) as pool:
            for result in pool.map(lambda each: walk.visit(*each), chosen):
                results[result.kind, result.task] = result
                write(everything, results, folder, target)
                why = f": {result.why}" if result.why else ""
                print(f"{result.status:<24}{result.seconds:6.1f} s  {result.kind} ({result.task}){why}", flush=True)
    finally:
        fork_server.close()
    counts = Counter(result.status for result in results.values())
    print(f"{', '.join(f'{counts[s]} {s}' for s in MEANINGS)}; {time.monotonic() - start:.0f} s")
    return 1 if counts[FAILED] else 0


def write(
    everything: list[tuple[str, str]], results: dict[tuple[str, str], Result], folder: Path, target: Path | None
) -> None:
    """results.jsonl and the page, in the order of the mappings."""
    ordered = [results[each] for each in everything if each in results]
    lines = [json.dumps(dataclasses.asdict(result)) + "\n" for result in ordered]
    atomic_file.write(folder / "results.jsonl", "".join(lines).encode())
    if target is not None:
        atomic_file.write(target, page(ordered).encode())


def read(path: Path) -> dict[tuple[str, str], Result]:
    """The results of an earlier walk."""
    if not path.exists():
        return {}
    found = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return {(result.kind, result.task): result for result in found}


def page(results: list[Result]) -> str:
    """docs/models.md."""
    versions = ", ".join(f"{name} {host.version(name)}" for name in ("transformers", "torch"))
    rows = [f"| {name} | {meaning} | " + " | ".join(count(results, name, task) for task in TASKS) + " |"
            for name, meaning in MEANINGS.items()]  # fmt: skip
    text = f"""# Models

Every architecture in transformers' auto mappings for causal language modelling and for sequence classification, made
tiny from its configuration class (with is_decoder=true for a causal model, where it has that) and given to Legroom as
`model.pretrained=FOLDER`. Written by `python tests/tools/walk_models.py` with {versions}, on a CPU,
on {datetime.date.today()}; each step in a
process with a time limit. `auto` names what `model.attention=auto` chose.

| result | meaning | {" | ".join(TASKS.values())} |
| --- | --- | ---: | ---: |
{chr(10).join(rows)}
"""
    for task, title in TASKS.items():
        text += f"\n## {title.capitalize()}\n\n"
        text += "| model type | architecture | result | auto | |\n| --- | --- | --- | --- | --- |\n"
        for each in (result for result in results if result.task == task):
            why = each.why.replace("|", "\\|")
            text += f"| {each.kind} | {each.architecture} | {each.status} | {each.attention} | {why} |\n"
    return text


def count(results: list[Result], status: str, task: str) -> str:
    return str(sum(result.status == status and result.task == task for result in results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/models.md", metavar="FILE")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/model_walk", help="for models and results")
    parser.add_argument("--at-once", type=int, default=2, help="architectures at a time")
    options = parser.parse_args()
    return run(options.names, options.folder.absolute(), options.into, options.at_once)


if __name__ == "__main__":
    sys.exit(main())
