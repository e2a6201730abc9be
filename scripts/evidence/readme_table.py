"""Estimate which known models fit which cards, and write the table on the README's first screen.

    python scripts/evidence/readme_table.py FOLDER       # no GPU and no network needed; about an hour on two cores

The sweeps of estimates lie in FOLDER, and the same command again computes what is missing there alone. Every cell is an
estimate of `recipe=estimate` for that very card or pair; nothing is derived from another cell.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from pathlib import Path

from checkout import ROOT

from markdown_table import markdown, put_between

from legroom.records import record_file
from legroom.records.record import Record, verdict_of
from legroom.units import GIB

README = ROOT / "README.md"
BEGIN, END = "<!-- begin: scripts/evidence/readme_table.py -->", "<!-- end -->"
MODELS = {  # option of the menu -> how the table calls it
    "mistral_7b": "Mistral 7B",
    "llama_8b": "Llama 3.1 8B",
    "qwen3_14b": "Qwen 3 14B",
    "mistral_small_24b": "Mistral Small 24B",
    "qwen3_32b": "Qwen 3 32B",
    "llama_70b": "Llama 3.1 70B",
}
METHODS = {
    "full": ["precision=bf16_pure"],
    "LoRA": ["precision=bf16_pure", "adapter=lora"],
    "QLoRA": ["precision=bf16", "adapter=qlora"],
}
CARDS = {"rtx4060_8gb": 8, "rtx3060_12gb": 12, "rtx4080_16gb": 16, "rtx4090_24gb": 24, "l40s_48gb": 48, "h100_80gb": 80}
PAIRS = {"rtx4090_24gb": "2 x 24", "h100_80gb": "2 x 80"}
COMMON = ["recipe=estimate", "checkpointing=full", "loss=chunked", "data.seq_len=2048", "batch.per_device=1"]
QUICK = ["estimate.hint_seconds=0", "launch.timeout_seconds=1800"]
PAIR = ["parallelism=fsdp", "parallelism.num_processes=2"]
CAPTION = (
    "GiB of a GPU that one step takes, with batches of 1 x 2048 tokens, AdamW, `checkpointing=full loss=chunked`, and "
    "`precision=bf16_pure` for full and LoRA (16-bit weights), `precision=bf16` for QLoRA (4-bit base). Bold: it fits "
    "that card, and leaves room for what varies between machines. Tight: it fits without that room. Two cards train "
    "with `parallelism=fsdp`, and the figure is that of each card."
)
REFUSED = " -: does not go together, and is refused."


def sweep(folder: Path, overrides: list[str], cards: list[str]) -> dict[str, Record]:
    """Estimate a configuration for each card. Returns card -> its record."""
    words = [*COMMON, *QUICK, *overrides, f"gpu={','.join(cards)}", f"hydra.sweep.dir={folder}"]
    if len(list(folder.glob(f"*/{record_file.FILE_NAME}"))) < len(cards):
        subprocess.run([sys.executable, "train.py", "-m", *words], cwd=ROOT, check=False, stdout=sys.stderr)
    records = [record_file.read(path.parent) for path in folder.glob(f"*/{record_file.FILE_NAME}")]
    return {record.config["gpu"]["name"]: record for record in records}


def cell(record: Record | None) -> str:
    """What a step takes, bold where it fits. Exits for an estimate that gave no verdict for another reason than a
    refusal."""
    if record is not None and record.status == "refused":
        return "-"
    if record is None or record.estimate is None or record.memory.device_used_bytes is None:
        sys.exit(f"no verdict: {record and record.error}. Start it again.")
    needed = f"{record.memory.device_used_bytes / GIB:.3g}"
    return {"fits": f"**{needed}**", "tight": f"{needed} tight"}.get(verdict_of(record.estimate), needed)


def table(folder: Path) -> str:
    """The table in Markdown, with its caption."""
    lines = []
    for model, title in MODELS.items():
        for method, words in METHODS.items():
            place, own = folder / f"{model}-{method}", [f"model={model}", *words]
            alone = sweep(place, own, list(CARDS))
            together = sweep(folder / f"{model}-{method}-pair", [*own, *PAIR], list(PAIRS))
            cells = [*(cell(alone.get(card)) for card in CARDS), *(cell(together.get(card)) for card in PAIRS)]
            lines.append([title, method, *cells])
    headings = ["", "", *(f"{size} GB" for size in CARDS.values()), *(f"{pair} GB" for pair in PAIRS.values())]
    names = ", ".join([*CARDS, *(f"2 x {card}" for card in PAIRS)])
    made = (
        f"Made by `scripts/evidence/readme_table.py` on {datetime.date.today()} for {names}; none of it was measured."
    )
    refused = REFUSED * any("-" in line for line in lines)
    return f"{markdown(headings, lines)}\n\n{CAPTION}{refused} {made}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the sweeps")
    put_between(README, BEGIN, table(parser.parse_args().folder.absolute()), END)


if __name__ == "__main__":
    main()
