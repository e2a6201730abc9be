"""Rows for the oracle's list that have every pair of two levers' options: a covering array, drawn greedily.

    python tests/tools/oracle_cover.py > rows.txt

Each row is composed, and where it is refused one lever goes back to its usual option. A pair that is refused beside the
usual options of all other levers is left out. About ten minutes: a configuration takes half a second to compose.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator

from checkout import ROOT

from legroom.options.compose import compose

TRIED = 40  # rows drawn for each one that is chosen
GPUS = ["rtx4090_24gb", "v100_16gb", "t4_16gb", "a100_40gb", "a10_24gb", "h100_80gb", "b200_180gb", "rtx5090_32gb"]
# Without torchao's, which compile their step.
OPTIMIZERS = ["adamw", "adamw_fused", "sgd", "adafactor", "adam8bit", "lion8bit", "paged_adam8bit", "paged_adamw"]
OPTIMIZERS += ["adagrad", "rmsprop", "lion", "muon", "schedule_free", "stable_adamw", "ademamix", "ademamix8bit"]
RANKS = "parallelism.num_processes"
FACTORS = {
    "gpu": GPUS,
    "recipe": ["accelerate", "trainer"],
    "model": [
        "model=gpt2 model.layers=2",
        "model=bert_base model.layers=2",
        "model=distilbert model.layers=2",
        "model=qwen2_5_0_5b model.layers=2",
        "model=gemma3_1b model.layers=2",
        "model=modernbert_base model.layers=3",
        "model=smollm2_135m model.layers=3",
        "model=mixtral_tiny",
    ],
    "precision": [f"precision={name}" for name in ("bf16", "fp32", "tf32", "fp16", "bf16_pure")],
    "optim": [f"optim={name}" for name in OPTIMIZERS],
    "accumulation": [f"accumulation={name}" for name in ("none", "x2", "x4")],
    "checkpointing": [
        *(f"checkpointing={name}" for name in ("none", "full", "selective", "offload")),
        "checkpointing=full checkpointing.every_n_layers=2",
    ],
    "adapter": [
        "",
        "adapter=lora",
        "adapter=lora adapter.dora=true",
        "adapter=lora adapter.dropout=0.1",
        "adapter=qlora",
        "adapter=qlora adapter.bits=8",
    ],
    "base": ["", "precision.base=fp32"],
    "loss": ["", "loss=chunked"],
    "attention": ["", "model.attention=eager"],
    "dropout": ["", "model.dropout=0.1"],
    "in_backward": ["", "optim.in_backward=true train.max_grad_norm=0"],
    "parallelism": [
        "",
        f"parallelism=ddp {RANKS}=2",
        f"parallelism=ddp {RANKS}=8",
        f"parallelism=ddp {RANKS}=2 parallelism.gradient_as_bucket_view=false",
        f"parallelism=fsdp {RANKS}=2",
        f"parallelism=fsdp {RANKS}=8",
        f"parallelism=fsdp {RANKS}=2 parallelism.strategy=shard_grad_op",
        f"parallelism=fsdp {RANKS}=4 parallelism.strategy=hybrid_shard parallelism.shard_size=2",
    ],
    "rows": ["data.seq_len=256 batch.per_device=2", "data.seq_len=128 batch.per_device=3"],
}
USUAL = {name: options[0] for name, options in FACTORS.items()}

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def is_allowed(row: Row) -> bool:
    """Whether both the training and its estimate would be accepted."""
    overrides = [word for name, text in row.items() if name not in ("gpu", "recipe") for word in text.split()]
    _, _, problems = compose(ROOT / "conf", *overrides, "recipe=estimate", f"gpu={row['gpu']}")
    return not problems


def pairs_of(row: Row) -> set[Pair]:
    return set(itertools.combinations(row.items(), 2))


def drawn(pair: Pair, draw: random.Random) -> Row:
    """A row that has the pair; levers that can be left out are, more often than not."""
    row = {}
    for name, options in FACTORS.items():
        is_left_out = options[0] == "" and draw.random() < 0.5
        row[name] = options[0] if is_left_out else draw.choice(options)
    return row | dict(pair)


def accepted(row: Row, pair: Pair) -> Row | None:
    """The row, or one that has the pair and differs from it in few levers; None: the pair itself is refused."""
    if is_allowed(row):
        return row
    others = [name for name in row if row[name] != USUAL[name] and name not in dict(pair)]
    for name in others:
        changed = row | {name: USUAL[name]}
        if is_allowed(changed):
            return changed
    for count in range(2, len(others) + 1):  # the levers at the end are those that are refused most often
        changed = row | {name: USUAL[name] for name in others[-count:]}
        if is_allowed(changed):
            return changed
    return None


def cover(seed: int = 0) -> Iterator[Row]:
    """Rows that have every pair that is allowed."""
    draw, refused = random.Random(seed), 0
    missing = {
        ((first, one), (second, other))
        for first, second in itertools.combinations(FACTORS, 2)
        for one in FACTORS[first]
        for other in FACTORS[second]
    }
    while missing:
        pair = min(missing)
        candidates = [drawn(pair, draw) for _ in range(TRIED)]
        best = max(candidates, key=lambda row: len(pairs_of(row) & missing))
        row = accepted(best, pair)
        if row is None:
            refused += 1
            missing.discard(pair)
            continue
        missing -= pairs_of(row)
        print(f"{len(missing)} pairs to go, {refused} refused", file=sys.stderr)
        yield row


def line_of(row: Row) -> str:
    """The row as oracle_rows.txt has it."""
    return " ".join(text for text in row.values() if text)


def main() -> None:
    for row in cover():
        print(line_of(row), flush=True)


if __name__ == "__main__":
    main()
