"""Published trainings that could not be typed before, as overrides: predicted beside published.

    python scripts/evidence/published_typed.py [TEXT]      # rows whose name has this text; no GPU and no network needed

Their types of storage, 8-bit optimizers under FSDP and adapters beside a 16-bit base came later than the rows were
found. A row is kept in docs/results/published_typed.jsonl, and docs/results/published_typed.md is written from what is
kept.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from checkout import ROOT  # isort: skip (it puts tests/tools on the path)
from markdown_table import markdown

from legroom.jobs import fork_client, launch, supervise
from legroom.options.compose import compose

KEPT = ROOT / "docs" / "results" / "published_typed.jsonl"
PAGE = ROOT / "docs" / "results" / "published_typed.md"
TABLE = "## The table\n"  # what stands below it in the page is written here
QUICK = ["estimate.hint_seconds=0", "tracker=none"]
GIB = 2**30

GPT_OSS = "model=gpt_oss_20b precision=bf16 data.seq_len=4096 batch.per_device=1 checkpointing=offload loss=chunked"
# Trained with optim=adamw8bit_ao, whose compiled step is not estimated; SGD's momentum is 2 bytes a parameter, too.
WHOLE = f"{GPT_OSS} precision.weights=bf16 optim=sgd accumulation=x2 parallelism=fsdp"
# Qwen-7B, whose code is not transformers': Qwen 2.5's layers of its sizes, which have biases in the same places.
QWEN = (
    "gpu=a100_80gb model=qwen2_5_7b model.layers=32 model.width=4096 model.heads=32 model.kv_heads=32 "
    "model.feed_forward=11008 model.vocab=151936 adapter=lora adapter.rank=64 adapter.alpha=16 adapter.dropout=0.05 "
    "precision=bf16 checkpointing=full accumulation=x8 batch.per_device=1 model.attention=flash_attention_2"
)
EMBEDDINGS = "adapter.modules_to_save=[embed_tokens,lm_head] precision.weights=bf16"


@dataclass(frozen=True)
class Row:
    """A published figure. figure: of the record's memory, in GiB, or tokens_per_second of one GPU. note: beside it."""

    name: str
    overrides: str
    figure: str
    published: float
    note: str = ""


@dataclass
class Predicted:
    """value: in the unit of the row; lowest, highest: of its interval, where it is a speed. date: when."""

    value: float
    verdict: str
    date: str
    lowest: float | None = None
    highest: float | None = None


ROWS = [
    Row(
        "OpenRLHF 698: Llama 3 8B, ZeRO-2 on one A100, after the backward pass",
        "gpu=a100_80gb model=llama_8b parallelism=zero parallelism.num_processes=1 precision=bf16 optim=adamw_fused "
        "data.seq_len=128 batch.per_device=1 checkpointing=full model.attention=flash_attention_2",
        "after_backward",
        61.0,
        "46 GB after the preparation, 61 GB after the backward pass, then out of memory in the step",
    ),
    Row(
        "gpt-oss-20B, LoRA of rank 8, one card of 48 GB",
        f"gpu=l40s_48gb {GPT_OSS} optim=adamw_fused adapter=lora adapter.rank=8 adapter.alpha=16 accumulation=x8",
        "peak_reserved_bytes",
        44.0,
    ),
    Row(
        "gpt-oss-20B whole, 4 x 80 GB",
        f"gpu=h100_80gb {WHOLE} parallelism.num_processes=4",
        "peak_reserved_bytes",
        46.0,
    ),
    Row(
        "gpt-oss-20B whole, 8 x 48 GB",
        f"gpu=l40s_48gb {WHOLE} parallelism.num_processes=8",
        "peak_reserved_bytes",
        36.0,
    ),
    *(
        Row(f"Qwen-7B, LoRA, {tokens:,} tokens", f"{QWEN} data.seq_len={tokens}", "device_used_bytes", published)
        for tokens, published in ((256, 20.1), (1024, 21.5), (4096, 29.7), (8192, 36.6))
    ),
    *(
        Row(
            f"Qwen-7B, LoRA (emb), {tokens:,} tokens",
            f"{QWEN} {EMBEDDINGS} data.seq_len={tokens}",
            "device_used_bytes",
            published,
        )
        for tokens, published in ((1024, 35.2), (8192, 48.5))
    ),
    Row(
        "Yi-34B-200K whole, 8,192 tokens, ZeRO-3 on 32 A100",
        "gpu=a100_80gb model=yi_34b model.positions=8192 parallelism=zero parallelism.stage=3 "
        "parallelism.num_processes=32 precision=bf16 checkpointing=full data.seq_len=8192 batch.per_device=1 "
        "model.attention=flash_attention_2",
        "tokens_per_second",
        485.1,
    ),
]


def predict(row: Row) -> Predicted:
    """What an estimate says of a row. Raises RuntimeError where it says nothing."""
    _, asked, problems = compose(ROOT / "conf", *row.overrides.split(), "recipe=estimate", *QUICK)
    if problems or asked is None:
        raise RuntimeError(f"refused: {problems[0]}")
    with tempfile.TemporaryDirectory(prefix="published_") as folder:
        outcome = supervise.run(launch.Job(asked, Path(folder)), lambda _: None, fork_client.ForkServer())
    if outcome.estimate is None:
        raise RuntimeError(f"{outcome.status}: {outcome.error and outcome.error.message}")
    verdict, today = outcome.estimate.verdict or "", datetime.date.today().isoformat()
    memory, speed = outcome.memory, outcome.speed
    if row.figure == "tokens_per_second":
        tokens = int(_key(row, "data.seq_len"))
        low, middle, high = speed.step_seconds_low, speed.step_seconds_median, speed.step_seconds_high
        assert low and middle and high, "an estimate has a time"
        return Predicted(tokens / middle, verdict, today, tokens / high, tokens / low)
    if row.figure == "after_backward":  # gradients are in the type of the weights until the step
        largest = memory.largest_bytes
        return Predicted((2 * largest["parameters"] + largest["weight_copies"]) / GIB, verdict, today)
    return Predicted(getattr(memory, row.figure) / GIB, verdict, today)


def _key(row: Row, key: str) -> str:
    return next(word.partition("=")[2] for word in row.overrides.split() if word.startswith(f"{key}="))


def kept() -> dict[str, Predicted]:
    """The rows that were predicted, by name."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return {row["name"]: Predicted(**row["predicted"]) for row in map(json.loads, lines)}


def keep(predicted: dict[str, Predicted]) -> None:
    """Write them, in the order of ROWS."""
    rows = [{"name": row.name, "predicted": asdict(predicted[row.name])} for row in ROWS if row.name in predicted]
    KEPT.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_page(predicted: dict[str, Predicted]) -> None:
    """Write the part of the page below its heading TABLE anew."""
    lines, typed = [], []
    for row in ROWS:
        if row.name not in predicted:
            continue
        found = predicted[row.name]
        shown = f"{found.value:,.1f} GiB"
        if found.lowest is not None:
            shown = f"{found.value:,.0f} tokens/s ({found.lowest:,.0f} to {found.highest:,.0f})"
        published = f"{row.published:,.1f}"
        if row.note:
            published += f": {row.note}"
        lines.append([row.name, published, shown, f"{found.value / row.published - 1:+.0%}", found.verdict])
        typed.append([row.name, f"`{row.overrides}`"])
    dates = sorted({predicted[row.name].date for row in ROWS if row.name in predicted})
    table = markdown(["row", "published", "predicted", "apart", "verdict"], lines)
    made = (
        f"Predicted on {' and '.join(dict.fromkeys([dates[0], dates[-1]]))} by `scripts/evidence/published_typed.py`."
    )
    head = PAGE.read_text().partition(TABLE)[0]
    PAGE.write_text(f"{head}{TABLE}\n{made}\n\n{table}\n\n{markdown(['row', 'typed'], typed)}\n")


def main() -> int:
    text = sys.argv[1] if len(sys.argv) > 1 else ""
    for row in ROWS:
        if text not in row.name:
            continue
        try:
            found = predict(row)
        except RuntimeError as error:
            print(f"{row.name}: {error}", flush=True)
            continue
        keep({**kept(), row.name: found})
        print(row.name, row.published, found, flush=True)
    if kept():
        write_page(kept())
    return 0


if __name__ == "__main__":
    sys.exit(main())
