"""What each lever does to one encoder and one decoder: tables in docs/results/levers.md, and pictures.

    python scripts/evidence/levers.py              # half an hour on two cores; records go to a temporary folder
    python scripts/evidence/levers.py FOLDER       # keep the records there; a second call runs only what is missing
    python scripts/evidence/levers.py --pairs      # nothing is run: the column "not with" alone

Counted: real training steps of small models on the CPU, under the memory ledger. Predicted: estimates of models of the
usual size on two GPUs. One lever is changed at a time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from checkout import ROOT

from legroom.options import hooks
from legroom.units import GIB, MIB

PAGE, PICTURES = ROOT / "docs" / "results" / "levers.md", ROOT / "docs" / "pictures"
BEGIN, END = "<!-- counted by scripts/evidence/levers.py -->", "<!-- end -->"
GPUS = {"rtx4090_24gb": "RTX 4090", "a100_80gb": "A100 80 GB"}
COUNTED = ["recipe=accelerate", "device=cpu", "train.max_steps=12", "data.samples=96", "eval.enabled=false"]
PREDICTED = ["recipe=estimate", f"gpu={','.join(GPUS)}"]
SIZES = ["model.layers=4", "model.width=256", "model.feed_forward=1024"]
# (what the tables show, what goes with it): one sweep a line. RANKS becomes the number of ranks and their batch.
RANKS = "parallelism.num_processes=2"
SWEEPS = [
    (["precision=fp32,tf32,bf16,bf16_pure"], []),
    (
        [
            "optim=adamw_fused,sgd,adafactor,adam8bit,lion8bit,rmsprop,adagrad,muon,lion,ademamix,ademamix8bit,"
            "stable_adamw,adamw8bit_ao,adamw4bit,adamw_fp8"
        ],
        [],
    ),
    (["optim=schedule_free"], ["train.schedule=constant"]),
    (["optim.in_backward=true"], ["train.max_grad_norm=0"]),
    (["batch.per_device=HALF,QUARTER"], []),
    (["checkpointing=selective,full,offload"], []),
    (["checkpointing.every_n_layers=2"], ["checkpointing=full"]),
    (["loss=chunked"], []),
    (["adapter=lora,qlora"], []),
    (["model.attention=eager"], []),
    (["parallelism=ddp,fsdp"], [RANKS, "batch.per_device=HALF"]),
]
HEAD = [f"{card}: {what}" for card in GPUS.values() for what in ("GiB", "change", "verdict", "step, ms")]
NOT_WITH = "not with"
PARTS = ("parameters", "gradients", "optimizer", "activations", "other")


@dataclass(frozen=True)
class Subject:
    """A model of which every lever is tried. counted, predicted: the overrides of its small and of its usual size.

    The precision is that of the first row, from which one lever at a time is changed.
    """

    title: str
    counted: list[str]
    predicted: list[str]


def batch(rows: int) -> list[str]:
    return [f"batch.effective={rows}", f"batch.per_device={rows}"]


SUBJECTS = {
    "encoder": Subject(
        "BERT-large in fp32, batch 32, rows of 512 tokens",
        ["model=bert_tiny", "precision=fp32", *SIZES, "data.seq_len=256", *batch(16)],
        ["model=bert_large", "precision=fp32", "data.seq_len=512", *batch(32)],
    ),
    "decoder": Subject(
        "a Llama of 1.2 billion parameters in bf16, batch 4, rows of 1,024 tokens",
        ["model=llama_tiny", "precision=fp32", *SIZES, "data.seq_len=128", "model.vocab=32000", *batch(8)],
        ["model=llama_1b", "precision=bf16", "data.seq_len=1024", *batch(4)],
    ),
}
Jobs = dict[str, dict[str, Any]]  # lever -> GPU, or "" for a counted job -> record


def run_sweep(base: list[str], shown: list[str], hidden: list[str], folder: Path) -> list[dict[str, Any]]:
    """The records of one sweep. base: what all jobs of a subject have in common; shown and hidden override it."""
    given = {override.split("=")[0] for override in [*shown, *hidden]}
    kept = [override for override in base if override.split("=")[0] not in given]
    command = [sys.executable, "train.py", "-m", *kept, *hidden, *shown, f"hydra.sweep.dir={folder}"]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)  # the records say how each job ended
    return [json.loads(path.read_text()) for path in sorted(folder.glob("**/result.json"))]


def option(overrides: list[str], key: str) -> str:
    """The value that a list of overrides gives a key."""
    return next(override.partition("=")[2] for override in overrides if override.startswith(f"{key}="))


def collect(base: list[str], folder: Path, again: bool = False) -> Jobs:
    """Every lever's records: the first row's, then in the order of SWEEPS.

    again: measure the first row a second time at the end, which shows how the machine's speed drifted meanwhile.
    """
    rows = int(option(base, "batch.per_device"))

    def with_batch(words: list[str]) -> list[str]:
        return [word.replace("HALF", str(rows // 2)).replace("QUARTER", str(rows // 4)) for word in words]

    first = f"precision={option(base, 'precision')}"
    jobs: Jobs = {first: {}}
    for shown, hidden in SWEEPS:
        shown, hidden = with_batch(shown), with_batch(hidden)
        key, _, values = shown[0].partition("=")
        for value in values.split(","):
            jobs.setdefault(f"{key}={value}", {})
        for record in run_sweep(base, shown, hidden, folder / key):
            gpu = record["config"]["gpu"]["name"] if record["recipe"] == "estimate" else ""
            jobs.setdefault(f"{key}={value_of(record['config'], key)}", {})[gpu] = record
    if again:
        jobs[f"{first}, again"] = {"": run_sweep(base, [first], [], folder / "again")[0]}
    return jobs


def value_of(config: dict, key: str) -> str:
    """The value of `a.b`, or the name of the option of menu `a`, as a person types it."""
    value: Any = config
    for part in key.split("."):
        value = value[part]
    value = value["name"] if isinstance(value, dict) else value
    return str(value).lower() if isinstance(value, bool) else str(value)


def change(value: float, base: float) -> str:
    return "" if value == base else f"{(value - base) / base:+.0%}"


def counted_row(lever: str, record: dict, base: dict) -> str:
    """Peak and parts in MiB, the step in ms, and their changes from the first row."""
    if record["status"] != "ok":
        return f"| `{lever}` | {record['status']} |" + " |" * (len(PARTS) + 4)
    memory, speed = record["memory"], record["speed"]
    peak, step = memory["peak_tensor_bytes"], speed["step_seconds_median"]
    cells = [
        f"{peak / MIB:.1f}",
        change(peak, base["memory"]["peak_tensor_bytes"]),
        *(f"{memory[f'{part}_bytes'] / MIB:.1f}" for part in PARTS),
        f"{step * 1000:.0f}",
        change(step, base["speed"]["step_seconds_median"]),
        f"{record['training']['final_loss']:.3f}",
    ]
    return f"| `{lever}` | {' | '.join(cells)} |"


def needed_bytes(record: dict) -> int:
    """What the device must have for an estimate: all of its capacity but what stays free."""
    return record["estimate"]["capacity_bytes"] - record["estimate"]["margin_bytes"]


def predicted_row(lever: str, records: dict, base: dict) -> str:
    """GiB of the device and ms of the step on each GPU, and the changes from the first row."""
    cells = []
    for gpu in GPUS:
        record, first = records.get(gpu), base[gpu]
        if record is None or record["estimate"] is None:
            cells += ["refused", "", "", ""]
            continue
        needed, step = needed_bytes(record), record["speed"]["step_seconds_median"]
        verdict = record["estimate"].get("verdict") or ("fits" if record["estimate"]["fits"] else "does not fit")
        ours, theirs = needed_bytes(first), first["speed"]["step_seconds_median"]
        time = f"{step * 1000:.0f} {change(step, theirs)}".strip() if step else ""
        cells += [f"{needed / GIB:.1f}", change(needed, ours), verdict, time]
    return f"| `{lever}` | {' | '.join(cells)} |"


def lines_of_table(head: list[str], rows: list[str]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *rows]


def section(name: str, counted: Jobs, predicted: Jobs) -> str:
    """A subject's two tables, with what was run and where."""
    subject = SUBJECTS[name]
    first = next(iter(counted.values()))[""]
    versions = first["environment"]["versions"]
    libraries = ", ".join(f"{library} {versions[library]}" for library in ("torch", "transformers", "accelerate"))
    rows = [counted_row(lever, records[""], first) for lever, records in counted.items()]
    head = ["lever", "peak, MiB", "change", "weights", "gradients", "states", *PARTS[3:], "step, ms", "change", "loss"]
    base = next(iter(predicted.values()))
    return "\n".join(
        [
            f"## {name.capitalize()}",
            "",
            f"Counted on {date.today()}, {first['environment']['cpu']}; {libraries}. The first row:",
            f"`python train.py {' '.join([*COUNTED, *subject.counted])}`.",
            "",
            *lines_of_table(head, rows),
            "",
            f"Predicted for {subject.title}; the first row: `python train.py recipe=estimate "
            f"{' '.join(subject.predicted)}` with `gpu={'` and `gpu='.join(GPUS)}`.",
            "",
            f"![What each lever does to {subject.title}](../pictures/levers_{name}.png)",
            "",
            *lines_of_table(
                ["lever", *HEAD], [predicted_row(lever, records, base) for lever, records in predicted.items()]
            ),
        ]
    )


def not_with(lever: str) -> str:
    """What the levers' rules say does not go with one of them, as typed."""
    key, _, value = lever.partition("=")
    pairs = [(each.this, each.other) for hook in hooks.registered().values() for each in hook.conflicts]
    both = [(*this.partition("=")[::2], other) for pair in pairs for this, other in (pair, pair[::-1])]
    found = [other for name, values, other in both if name == key and (not values or value in values.split(","))]
    return ", ".join(f"`{choice}`" for choice in dict.fromkeys(found))


def with_pairs(page: str) -> str:
    """The page with the last column of the predictions anew."""
    lines, columns, inside = [], 1 + 4 * len(GPUS), False
    for line in page.split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")][:columns]
        inside = line.startswith("|") and (inside or cells[1:] == HEAD)
        if inside:
            made = {"lever": NOT_WITH, "---": "---"}.get(cells[0]) or not_with(cells[0].strip("`"))
            line = f"| {' | '.join([*cells, made])} |"
        lines.append(line)
    return "\n".join(lines)


def draw(name: str, predicted: Jobs) -> None:
    """Two panels of bars, a row for each lever: GiB of the device with the sizes of both GPUs, and ms of the step."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    small, large = GPUS
    rows = {lever: records for lever, records in predicted.items() if (records.get(large) or {}).get("estimate")}
    y = range(len(rows))
    figure, (left, right) = pyplot.subplots(
        1, 2, sharey=True, figsize=(11, 0.3 * len(rows) + 1.6), layout="constrained"
    )
    gib = [needed_bytes(records[large]) / GIB for records in rows.values()]
    limit, limit_large = (next(iter(rows.values()))[gpu]["estimate"]["capacity_bytes"] / GIB for gpu in GPUS)
    left.barh(y, gib, color=["#0072B2" if value <= limit else "#E69F00" for value in gib])
    left.axvline(limit, color="#333333", linestyle="--", linewidth=1)
    left.text(limit, -0.9, f" {GPUS[small]}", fontsize=8, va="bottom")
    if max(gib) > limit_large * 0.8:
        left.axvline(limit_large, color="#333333", linestyle="--", linewidth=1)
        left.text(limit_large, -0.9, f" {GPUS[large]}", fontsize=8, va="bottom")
    left.set_title("memory that the GPU must have, GiB", fontsize=10, loc="left", pad=16)
    left.set_xlabel(f"orange: more than an {GPUS[small]} has", fontsize=9)
    steps = [(records[large]["speed"]["step_seconds_median"] or 0) * 1000 for records in rows.values()]
    right.barh(y, steps, color="#009E73")
    right.axvline(steps[0], color="#333333", linestyle=":", linewidth=1)
    right.set_title(f"predicted step on an {GPUS[large]}, ms", fontsize=10, loc="left", pad=16)
    right.set_xlabel("dotted: the first row, of which one lever at a time is changed", fontsize=9)
    for axes, values, shape in ((left, gib, "{:.1f}"), (right, steps, "{:,.0f}")):
        axes.bar_label(
            axes.containers[0], [shape.format(v) if v else "not predicted" for v in values], padding=3, fontsize=8
        )
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_yticks(
        y, [f"{lever} (first row)" if index == 0 else lever for index, lever in enumerate(rows)], fontsize=9
    )
    left.invert_yaxis()
    figure.suptitle(f"One lever changed at a time: {SUBJECTS[name].title}", fontsize=11)
    figure.savefig(PICTURES / f"levers_{name}.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="keeps the records; a temporary one by default")
    parser.add_argument("--pairs", action="store_true", help='the column "not with" alone; nothing is run')
    asked = parser.parse_args()
    page = PAGE.read_text()
    if not asked.pairs:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (asked.folder or Path(temporary)).absolute()
            sections = []
            for name, subject in SUBJECTS.items():
                counted = collect([*COUNTED, *subject.counted], folder / name / "counted", again=True)
                predicted = collect([*PREDICTED, *subject.predicted], folder / name / "predicted")
                draw(name, predicted)
                sections.append(section(name, counted, predicted))
        before, rest = page.split(BEGIN)
        page = f"{before}{BEGIN}\n" + "\n\n".join(sections) + f"\n{END}{rest.split(END)[1]}"
    PAGE.write_text(with_pairs(page))


if __name__ == "__main__":
    main()
