"""Record what CUDA's allocator is asked in some steps, and compare the model of the allocator with what it reserved.

    python scripts/evidence/record_trace.py [--into docs/results/traces]

Each configuration runs in a process of its own, for a few seconds. A test replays every trace in the default folder.
The modules that import torch are imported where there is a GPU only.
Exit code 1 when the model is off by more than 1 %, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from checkout import ROOT

from legroom import paths
from legroom.machine import host

FOLDER = ROOT / "docs" / "results" / "traces"
TOLERANCE = 0.01  # of peak allocated and peak reserved memory
SMALL = ["model.layers=2", "data.samples=64", "data.seq_len=128"]
CONFIGURATIONS = {
    "bert_fp32": ["model=bert_base", *SMALL],
    "bert_fp16_adam8bit": ["model=bert_base", "precision=fp16", "optim=adam8bit", *SMALL],
    "gpt2_bf16_checkpointing": ["model=gpt2", "precision=bf16", "checkpointing=full", "accumulation=x2", *SMALL],
    "llama_bf16_pure_adafactor": ["model=llama_1b", "precision=bf16_pure", "optim=adafactor", *SMALL],
}


def trace_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json.gz"


def record(name: str, folder: Path) -> None:
    """Record one configuration. Nothing else may have used the GPU in this process."""
    import allocator_traces

    with tempfile.TemporaryDirectory() as scratch:
        trace = allocator_traces.record(paths.CONF, CONFIGURATIONS[name], Path(scratch))
    allocator_traces.write(trace, trace_file(folder, name))


def errors(name: str, folder: Path) -> tuple[int, float, float]:
    """(number of events, signed error of peak allocated, signed error of peak reserved memory) of a recorded trace."""
    import allocator_traces
    from error_stats import signed

    from legroom.estimator.memory import allocator

    trace = allocator_traces.read(trace_file(folder, name))
    demand = allocator.replay(trace.events, trace.capacity_bytes)
    allocated = signed(demand.peak_allocated_bytes, trace.peak_allocated_bytes)
    reserved = signed(demand.peak_reserved_bytes, trace.peak_reserved_bytes)
    assert allocated is not None and reserved is not None, "a trace without requests"
    return len(trace.events), allocated, reserved


def run(folder: Path, only: str | None) -> int:
    """Record every configuration, each in its own process, or `only` one in this process; print the model's errors.

    Returns the exit code: 1 when an error is above
    the tolerance, 2 without a GPU. Raises subprocess.CalledProcessError if a configuration cannot be recorded.
    """
    if not host.gpus():
        print("There is no GPU that torch could use here; nothing was recorded.", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    if only:
        record(only, folder)
        return 0
    worst = 0.0
    for name in CONFIGURATIONS:
        subprocess.run([sys.executable, __file__, "--only", name, "--into", folder], check=True)
        events, allocated, reserved = errors(name, folder)
        worst = max(worst, abs(allocated), abs(reserved))
        print(f"{name:<28}{events:>8} events  allocated {allocated:+.3%}  reserved {reserved:+.3%}")
    return 1 if worst > TOLERANCE else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=FOLDER)
    parser.add_argument("--only", choices=CONFIGURATIONS, help="one configuration, in this process")
    options = parser.parse_args()
    return run(options.into, options.only)


if __name__ == "__main__":
    sys.exit(main())
