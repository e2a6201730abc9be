"""The memory of really compiled steps on this CPU beside what an estimate with compile=true predicts for them.

    python tests/tools/compiled_memory.py     # the rows of docs/foresight.md: some ten minutes on two cores; needs g++
    python tests/tools/compiled_memory.py "model=llama_tiny precision=bf16"

Measured is what torch's CPU allocator gives out in a step, as its profiler reports it, and the tensors alive before.
Prints a table in Markdown; MiB of live tensors at the peak of a step. docs/foresight.md has it, and what it shows.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

import checkout  # noqa: F401 - `legroom` beside this file

import torch
import transformers
from markdown_table import markdown
from torch.profiler import ProfilerActivity, profile

from legroom import config, paths
from legroom.config import Config
from legroom.foresight import simulation
from legroom.measure.op_flops import tensors_in
from legroom.options import compose
from legroom.parallelism import unwrap
from legroom.third_party import torch_private
from legroom.training import setup
from legroom.units import MIB

BASE = ("recipe=estimate", "device=cpu", "tracker=none", "eval.enabled=false", "optim=sgd", "batch.per_device=16")
BASE += ("data.samples=64", "data.seq_len=128", "model.layers=2", "model.width=128", "model.vocab=512")
DROPOUT = "model.dropout=0.1"
ROWS = [
    *(f"model={model}{more}" for model in ("bert_tiny", "llama_tiny") for more in ("", f" {DROPOUT}")),
    *(f"model={model} precision=bf16{more}" for model in ("bert_tiny", "llama_tiny") for more in ("", f" {DROPOUT}")),
    f"model=gpt2_tiny precision=bf16 {DROPOUT}",
    *(f"model={model} checkpointing=full" for model in ("bert_tiny", "llama_tiny")),
    f"model=bert_tiny precision=bf16 {DROPOUT} checkpointing=full",
    f"model=llama_tiny precision=bf16 {DROPOUT} checkpointing=full",
]

WARM_UP_STEPS = 2  # the first compiles, and the second finds the optimizer's states


@dataclass(frozen=True)
class Row:
    """overrides: of the configuration. written, compiled, predicted: bytes at the peak. note: why none is predicted."""

    overrides: str
    written: int
    compiled: int
    predicted: int
    note: str = ""


def compare(overrides: str) -> Row:
    """Train a few compiled steps of a configuration and a few as written, and estimate the compiled one."""
    cfg = _config(*overrides.split())
    with tempfile.TemporaryDirectory() as folder:
        written = measured_peak(replace(cfg, compile=False, compile_mode=None), folder)
        compiled = measured_peak(cfg, folder)
        step = simulation.simulate_step(cfg, folder)
    notes = [line for line in step.warnings if "as written, since" in line]
    return Row(overrides, written, compiled, step.parts["peak_tensor_bytes"], *notes[:1])


def _config(*overrides: str) -> Config:
    _, job, problems = compose.compose(paths.CONF, *BASE, *overrides, "compile=true")
    if job is None or problems:
        raise ValueError("; ".join(problems))
    return config.from_dict(job.config, Config)


def measured_peak(cfg: Config, folder: str) -> int:
    """Bytes of live tensors at the peak of a real step on the CPU, after a few others."""
    torch.compiler.reset()
    loop = setup.build(replace(cfg, recipe=replace(cfg.recipe, name="accelerate")), folder).loop
    for _ in range(WARM_UP_STEPS):
        loop.one_more_step(contextlib.nullcontext())
    peaks: list[int] = []
    loop.one_more_step(_counted(loop, peaks))
    return peaks[0]


@contextlib.contextmanager
def _counted(loop: setup.Loop, peaks: list[int]) -> Iterator[None]:
    live = most = _bytes_alive(loop)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        yield
    for size in torch_private.allocated_bytes(found):
        live += size
        most = max(most, live)
    peaks.append(most)


def _bytes_alive(loop: setup.Loop) -> int:
    """Of what lives between two steps: weights, buffers, gradients and the optimizer's states."""
    model, optimizer = loop.bare_model, unwrap.inner_optimizer(loop.optimizer)
    found = [*model.parameters(), *model.buffers(), *(w.grad for w in model.parameters() if w.grad is not None)]
    found += tensors_in(optimizer.state.values())
    storages = [tensor.untyped_storage() for tensor in found]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def page(rows: list[Row]) -> str:
    """The rows as a table in Markdown; MiB."""
    cells = [
        [
            row.overrides,
            *(f"{size / MIB:.1f}" for size in (row.written, row.compiled, row.predicted)),
            row.note or f"{row.predicted / row.compiled - 1:+.1%}",
        ]
        for row in rows
    ]
    return markdown(
        ["configuration", "as written, measured", "compiled, measured", "compiled, predicted", "error"], cells
    )


def main(rows: list[str]) -> int:
    if any(row.startswith("-") for row in rows):
        print(__doc__)
        return 0 if {*rows} & {"-h", "--help"} else 2
    transformers.logging.set_verbosity_error()
    found = []
    for row in rows or ROWS:
        try:
            found.append(compare(row))
        except ValueError as error:
            print(f"refused: {error}", file=sys.stderr)
            return 2
        print(f"{len(found)} of {len(rows or ROWS)}: {row}", file=sys.stderr, flush=True)
    print(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
