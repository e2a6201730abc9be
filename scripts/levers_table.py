"""Count what each lever does to the memory of one small training, and write the table into docs/levers.md.

    python scripts/levers_table.py              # a few minutes on a CPU; the jobs' records go to a temporary folder
    python scripts/levers_table.py FOLDER       # keep the records there; a second call runs only what is missing

Each row is a real run of one optimizer step after two others, whose tensors were counted by the memory ledger.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recipes.units import MIB

PAGE = ROOT / "docs" / "levers.md"
BEGIN, END = "<!-- counted by scripts/levers_table.py -->", "<!-- end -->"

BASE = [
    *("recipe=accelerate", "device=cpu", "train.max_steps=3", "eval.enabled=false"),
    *("model=gpt2_tiny", "model.layers=4", "model.width=256", "model.feed_forward=1024"),
    *("data.samples=64", "data.seq_len=128", "batch.per_device=8"),
]
BATCH = ["batch.effective=8"]
RANKS = ["parallelism.num_processes=2", "batch.effective=8", "batch.per_device=4"]
# One sweep a line: the overrides that the table shows, and those that only keep the effective batch at 8 samples.
SWEEPS = [
    (["precision=fp32,bf16,bf16_pure"], []),
    (["optim=adamw_fused,sgd,adafactor,adam8bit,lion8bit,rmsprop,adagrad,muon,lion,ademamix,ademamix8bit"], []),
    (["batch.per_device=4,2"], BATCH),
    (["checkpointing=selective,full"], []),
    (["checkpointing.every_n_layers=2"], ["checkpointing=full"]),
    (["loss=chunked"], []),
    (["model.attention=eager"], []),
    (["compile=true"], []),
    (["parallelism=ddp,fsdp"], RANKS),
]
PARTS = ("parameters", "gradients", "optimizer", "activations", "other")


def run_sweep(shown: list[str], hidden: list[str], folder: Path) -> list[dict]:
    """The records of one sweep, each with `lever`: its value of what the table shows."""
    key, _, values = shown[0].partition("=")
    folder = folder / key
    overrides = [*BASE, *hidden]
    given = {override.split("=")[0] for override in [*hidden, *shown]}
    overrides = [o for o in dict.fromkeys(overrides) if o not in BASE or o.split("=")[0] not in given]
    command = [sys.executable, "train.py", "-m", *overrides, *shown, f"hydra.sweep.dir={folder}"]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)  # the records say how each job ended
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))]
    by_value = {value_of(record["config"], key): record for record in found}
    return [{"lever": f"{key}={value}", **by_value[value]} for value in values.split(",") if value in by_value]


def value_of(config: dict, key: str) -> str:
    """The value of `a.b`, or the name of the option of menu `a`, as a person types it."""
    value = config
    for part in key.split("."):
        value = value[part]
    value = value["name"] if isinstance(value, dict) else value
    return str(value).lower() if isinstance(value, bool) else str(value)


def row(record: dict, base: dict) -> str:
    """One line of the table: MiB of the peak and of its parts, and the peak's difference from the first line."""
    if record["status"] != "ok":
        return f"| `{record['lever']}` | {record['status']} |" + " |" * (len(PARTS) + 2)
    memory = record["memory"]
    parts = [f"{memory[f'{part}_bytes'] / MIB:.1f}" for part in PARTS]
    peak = memory["peak_tensor_bytes"]
    change = (peak - base["memory"]["peak_tensor_bytes"]) / MIB
    loss = f"{record['training']['final_loss']:.4f}"
    shown = "" if record is base else f"{change:+.1f}"
    return f"| `{record['lever']}` | {peak / MIB:.1f} | {shown} | " + " | ".join([*parts, loss]) + " |"


def table(records: list[dict]) -> str:
    """The table and a line that says where and with what it was counted."""
    base, versions = records[0], records[0]["environment"]
    libraries = ", ".join(f"{name} {versions['versions'][name]}" for name in ("torch", "transformers", "accelerate"))
    head = ["one lever changed", "peak, MiB", "change", "weights", "gradients", "optimizer states", *PARTS[3:], "loss"]
    lines = [
        f"Counted on {date.today()}, {versions['cpu']}; {libraries}. The first row:",
        f"`python train.py {' '.join(BASE)}`.",
        "",
        f"| {' | '.join(head)} |",
        "|" + " --- |" * len(head),
        *[row(record, base) for record in records],
    ]
    return "\n".join(lines)


def main(*folders: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(folders[0] if folders else temporary).absolute()
        records = [record for shown, hidden in SWEEPS for record in run_sweep(shown, hidden, folder)]
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(records)}\n{END}{after}")
    print(table(records))


if __name__ == "__main__":
    main(*sys.argv[1:])
