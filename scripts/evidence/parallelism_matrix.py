"""Train, resume, count and predict every mode of parallelism, and write docs/results/parallelism.md.

python scripts/evidence/parallelism_matrix.py                 all modes; some 15 minutes on two free cores
python scripts/evidence/parallelism_matrix.py fsdp            the rows with this word, printed and not written

Every cell is yes, no, or what refuses it. A mode whose package or GPU is not here has its refusal in each cell.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import ROOT

from markdown_table import markdown
from random_runs import Runs

from legroom.foresight.search import plan, request, runner, space
from legroom.jobs import fork_client
from legroom.machine import host
from legroom.records import checkpoint_files
from legroom.records.record import Record

PAGE = ROOT / "docs" / "results" / "parallelism.md"
RECIPES = ("trainer", "accelerate")
STEPS, SAVED_STEP, ROWS = 4, 2, 8
SAVING = [f"save.every_steps={SAVED_STEP}", "save.keep=3"]
CLOSE, SAME_BYTES, ROUTED_BYTES = 1e-5, 0.005, 0.02  # of a loss; of the peak, and where a router chooses
# Wide enough that weights decide on the peak; optim=sgd without clipping, which would hide a wrong scale.
BASE = f"""device=cpu tracker=none model=llama_tiny model.width=64 model.feed_forward=256 model.vocab=4096 model.heads=4
model.kv_heads=4 model.layers=2 data.seq_len=32 data.samples=24 data.eval_samples=4 batch.per_device=2
batch.effective={ROWS} measure.warmup_steps=0 train.max_steps={STEPS} train.learning_rate=0.05 train.max_grad_norm=0
optim=sgd launch.oversubscribe=true launch.timeout_seconds=300""".split()
ADAPTED = ["optim=adamw", "train.learning_rate=0.01"]  # sgd would hardly move the two matrices, one of which is zero
EVEN_ROUTES = "model.experts_per_token=4"  # to all of mixtral_tiny's
ROUTES = (
    "counted and predicted once more with every token sent to all experts. The second figure is with the router's own "
    "choice: it sends some experts more tokens than others, and the prediction sends all as many "
    "(tests/foresight/test_ledger_ranks.py)"
)
HYBRID = "fsdp parallelism.strategy=hybrid_shard parallelism.shard_size=2"
PARTS = "model.layers=4 batch.per_device=1"  # enough layers and micro-batches for each of them
MODES = (
    "dp",
    *(f"ddp parallelism.num_processes={ranks}" for ranks in (2, 4)),
    *(f"fsdp parallelism.num_processes={ranks}" for ranks in (2, 4)),
    "fsdp parallelism.num_processes=2 parallelism.strategy=shard_grad_op",
    "fsdp parallelism.num_processes=2 parallelism.strategy=no_shard",
    f"{HYBRID} parallelism.num_processes=4",
    "fsdp_tp parallelism.num_processes=4",
    "fsdp_tp parallelism.num_processes=4 model=mixtral_tiny",
    "fsdp_tp parallelism.num_processes=4 parallelism.split=experts model=mixtral_tiny",
    *(
        f"zero parallelism.num_processes={ranks} parallelism.stage={stage}"
        for ranks, stage in ((2, 1), (2, 2), (2, 3), (4, 2))
    ),
    *(
        f"pipeline parallelism.num_processes={ranks} parallelism.stages={stages} parallelism.schedule={schedule} "
        f"{PARTS}"
        for ranks, stages, schedule in (
            (2, 2, "gpipe"),
            (2, 2, "1f1b"),
            (2, 2, "interleaved"),
            (4, 2, "1f1b"),
            (4, 4, "1f1b"),
        )
    ),
    "ddp parallelism.num_processes=2 adapter=qlora",
    "fsdp parallelism.num_processes=2 adapter=lora",
    *(f"fsdp parallelism.num_processes={ranks} adapter=qlora" for ranks in (2, 4)),
    *(
        f"fsdp parallelism.num_processes={ranks} parallelism.experts={size} model=mixtral_tiny"
        for ranks, size in ((2, 2), (4, 2), (4, 4))
    ),
    *(
        f"{mode} parallelism.num_processes={ranks} parallelism.context={size}"
        for mode, ranks, size in (("ddp", 2, 2), ("ddp", 4, 2), ("fsdp", 2, 2), ("fsdp", 4, 2), ("fsdp", 4, 4))
    ),
    "fsdp_tp parallelism.num_processes=4 adapter=qlora",
    "zero parallelism.num_processes=2 adapter=qlora",
)
CELLS = ("trains", "equals one process", "resumes", "on one process", "ledger = estimate", "in fit")
YES = "yes"
LIBRARIES = ("torch", "transformers", "accelerate", "deepspeed")


@dataclass
class Row:
    """A mode in a recipe. cells: of CELLS, in their order."""

    mode: str
    recipe: str
    cells: list[str]


class Matrix:
    """Runs the jobs of the rows."""

    def __init__(self, folder: Path, fork_server: fork_client.ForkServer):
        self.runs, self.folder, self.count = Runs(folder, fork_server), folder, 0
        self.alone: dict[tuple[str, ...], Record] = {}

    def job(self, *words: str, folder: Path | None = None) -> tuple[Record | None, str, Path]:
        """(the record of a job that ended well, or None; why not; its folder)."""
        self.count += 1
        folder = folder or self.folder / str(self.count)
        typed = {word.partition("=")[0] for word in words}
        base = [word for word in BASE if word.partition("=")[0] not in typed]
        record, refused = self.runs.job(folder, *base, *words)
        if record is None:
            return None, f"refused: {' '.join(refused)}", folder
        if record.status != "ok":
            return None, f"no: {record.status}, {record.error and record.error.message}", folder
        return record, "", folder

    def row(self, mode: str, recipe: str) -> Row:
        """Everything about a mode in a recipe."""
        words = [f"recipe={recipe}", f"parallelism={mode.split()[0]}"]
        words += mode.split()[1:] + (ADAPTED if "adapter=" in mode else [])
        others = tuple(word for word in words if not word.startswith("parallelism"))
        saving = [] if mode.startswith("zero") else SAVING  # which saves none, and would be refused as a whole
        record, why, folder = self.job(*words, *saving)
        cells = [why] * len(CELLS) if record is None else [YES, *self._checked(record, words, others, folder)]
        if record is None:  # `estimate` and `fit` have their own reasons
            cells[4] = self._estimated(None, words)
        return Row(mode, recipe, [*cells[:5], in_fit(mode)])

    def _checked(self, record: Record, words: list[str], others: tuple[str, ...], folder: Path) -> list[str]:
        if others not in self.alone:
            alone, why, _ = self.job(*others)
            assert alone is not None, why
            self.alone[others] = alone
        expected: list[Any] = self.alone[others].training.losses
        assert abs(expected[-1] / expected[0] - 1) > 1e-3, f"nothing is learned that could differ: {expected}"
        step = folder / "checkpoints" / checkpoint_files.folder_name(SAVED_STEP)
        if step.is_dir():
            resumed = self._resumed(step, words, record, exactly=True)
            elsewhere = self._resumed(step, [*others], record, exactly=False)
        else:
            resumed = elsewhere = self.job(*words, *SAVING)[1] or "no: no checkpoint"
        return [apart(record.training.losses, expected), resumed, elsewhere, self._estimated(record, words)]

    def _resumed(self, step: Path, words: list[str], record: Record, exactly: bool) -> str:
        folder = self.folder / f"again-{self.count}"
        shutil.copytree(step, folder / "checkpoints" / step.name)
        resumed, why, _ = self.job(*words, "resume=latest", folder=folder)
        if resumed is None:
            return why
        if resumed.training.resumed_from_step != SAVED_STEP:
            return f"no: went on from step {resumed.training.resumed_from_step}"
        if exactly and resumed.training.losses != record.training.losses:
            return f"no: {resumed.training.losses} and not {record.training.losses}"
        return "yes, to the bit" if exactly else apart(resumed.training.losses, record.training.losses)

    def _estimated(self, record: Record | None, words: list[str]) -> str:
        error, why = self._error(record, words)
        if error is None:
            return why
        if not any("mixtral" in word for word in words):
            return f"{YES if abs(error) <= SAME_BYTES else 'no'} ({error:+.2%})"
        counted, why, _ = self.job(*words, EVEN_ROUTES)
        even, why = self._error(counted, [*words, EVEN_ROUTES]) if counted else (None, why)
        if even is None:
            return why
        same = abs(even) <= SAME_BYTES and abs(error) <= ROUTED_BYTES
        return f"{YES if same else 'no'} ({even:+.2%}, {error:+.2%}): {ROUTES}"

    def _error(self, record: Record | None, words: list[str]) -> tuple[float | None, str]:
        """(the share by which the predicted peak is too high, ""), or (None, why there is none)."""
        estimate, why, _ = self.job(*(word for word in words if not word.startswith("recipe=")), "recipe=estimate")
        if estimate is None or record is None:
            return None, why or "no: nothing to compare with"
        counted, foreseen = record.memory.per_rank, estimate.memory.peak_tensor_bytes
        rank = estimate.memory.per_rank[0]["rank"]
        peak = counted[rank]["peak_tensor_bytes"] if counted else record.memory.peak_tensor_bytes
        assert peak and foreseen, "the ledger of a training and an estimate have a peak"
        return foreseen / peak - 1, ""


def apart(losses: list, expected: list) -> str:
    """How far two trainings are from each other."""
    error = max(abs(one / other - 1) for one, other in zip(losses, expected, strict=True))
    return f"{YES if error <= CLOSE else 'no'} ({error:.0e})"


class _AtOnce:
    """An executor that runs each call at once, in this process."""

    def submit(self, function: Any, *args: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*args))
        return future


def in_fit(mode: str) -> str:
    """Whether fit finds a step with a mode that is typed, with the adapter beside it."""
    option, *more = mode.split()
    words = [f"parallelism={option}", *(more or ["parallelism.num_processes=2"]), "gpu=l4_24gb"]
    typed = {word.partition("=")[0] for word in words}
    base = [word for word in BASE if word.partition("=")[0] not in typed | {"device", "batch.per_device"}]
    kept = [lever for lever in space.DIMENSIONS if lever != space.BATCH and not lever.startswith("parallelism")]
    search, problems = plan.plan([*base, *words], request.Options(top=1, keep=tuple(kept)))
    if search is None:
        return f"refused: {' '.join(map(str, problems))}"
    result = runner.run(search, 1, _AtOnce())  # type: ignore[arg-type]
    return YES if result.fits else f"no: {' '.join(result.refused) or 'nothing fits'}"


def page(rows: Iterable[Row]) -> str:
    """The whole page: a table, and the refusals below it, each once."""
    notes: dict[str, int] = {}

    def cell(text: str) -> str:
        kind, _, why = text.partition(": ")
        return f"{kind} ({notes.setdefault(why, len(notes) + 1)})" if why else text

    lines = [[f"`{row.mode}`", row.recipe, *map(cell, row.cells)] for row in rows]
    table = markdown(["`parallelism=`", "recipe", *CELLS], lines)
    listed = "\n".join(f"{number}. {why}" for why, number in notes.items())
    versions = ", ".join(f"{name} {host.version(name) or 'not installed'}" for name in LIBRARIES)
    return f"""# Modes of parallelism

Made by `python scripts/evidence/parallelism_matrix.py` on {datetime.date.today()}, on CPU ranks (gloo) with {versions}.
What each mode is for: [several GPUs](../parallelism.md).

`{" ".join(word for word in BASE if not word.startswith(("tracker", "launch", "device")))}`

Trains: {STEPS} steps. Equals one process: the largest relative difference of a loss from one process with the same
effective batch; yes up to {CLOSE:.0e}. Resumes: from step {SAVED_STEP}, with the losses of the run that was left alone.
On one process: its checkpoint goes on without ranks; yes up to {CLOSE:.0e}. Ledger = estimate: the predicted peak of
rank 0, of a pipeline the fullest, against the counted one; yes up to {SAME_BYTES:.1%},
and with a router's own choice up to {ROUTED_BYTES:.0%}. In fit: `fit` finds a step for
the typed mode on L4s; untyped it searches {", ".join(space.MODES)},
and with `fit.allow` also {", ".join(space.MORE_MODES)}.

{table}

{listed}
"""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only the rows with this word, which are printed")
    word, fork_server = parser.parse_args().word, fork_client.ForkServer()
    folder = Path(tempfile.mkdtemp(prefix="legroom-parallelism-"))
    try:
        matrix, rows = Matrix(folder, fork_server), []
        for mode in (mode for mode in MODES if word in mode):
            for recipe in RECIPES:
                rows.append(matrix.row(mode, recipe))
                print(rows[-1], flush=True)
    finally:
        fork_server.close()
        shutil.rmtree(folder)
    if word:
        print(page(rows))
    else:
        PAGE.write_text(page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
