"""Record what CUDA's allocator is really asked in some steps, and hold the model of it to what it really reserved.

    python scripts/record_trace.py [--into tests/foresight/traces]

Each configuration runs in a process of its own, for a few seconds. The traces become fixtures: a test replays every one in
the folder. Exit code 1 when the model is off by more than 1 %, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SMALL = ["model.layers=2", "data.samples=64", "data.seq_len=128"]
CONFIGURATIONS = {
    "bert_fp32": ["model=bert_base", *SMALL],
    "bert_fp16_adam8bit": ["model=bert_base", "precision=fp16", "optim=adam8bit", *SMALL],
    "gpt2_bf16_checkpointing": ["model=gpt2", "precision=bf16", "checkpointing=full", "accumulation=x2", *SMALL],
    "llama_bf16_pure_adafactor": ["model=llama_1b", "precision=bf16_pure", "optim=adafactor", *SMALL],
}


def record(name: str, into: Path) -> None:
    """Record one configuration; alone in its process."""
    from recipes.foresight.validation import allocator_traces

    with tempfile.TemporaryDirectory() as scratch:
        allocator_traces.write(
            allocator_traces.record(ROOT / "conf", CONFIGURATIONS[name], Path(scratch)), into / f"{name}.json.gz"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "tests/foresight/traces")
    parser.add_argument("--only", choices=CONFIGURATIONS, help="one configuration, in this process")
    options = parser.parse_args()
    from recipes.foresight.memory import allocator
    from recipes.foresight.validation import allocator_traces
    from recipes.machine import host

    if not host.gpus():
        print("There is no GPU that torch could use here; nothing was recorded.", file=sys.stderr)
        return 2
    options.into.mkdir(parents=True, exist_ok=True)
    if options.only:
        record(options.only, options.into)
        return 0
    worst = 0.0
    for name in CONFIGURATIONS:
        subprocess.run([sys.executable, __file__, "--only", name, "--into", options.into], check=True)
        trace = allocator_traces.read(options.into / f"{name}.json.gz")
        told = allocator.replay(trace.events, trace.capacity_bytes)
        errors = [
            told.peak_allocated_bytes / trace.peak_allocated_bytes - 1,
            told.peak_reserved_bytes / trace.peak_reserved_bytes - 1,
        ]
        worst = max(worst, *map(abs, errors))
        print(f"{name:<28}{len(trace.events):>8} events  allocated {errors[0]:+.3%}  reserved {errors[1]:+.3%}")
    return 1 if worst > 0.01 else 0


if __name__ == "__main__":
    sys.exit(main())
