"""Rows for the oracle's list that have every pair of two levers' options: a covering array, drawn greedily.

    python tests/tools/oracle_cover.py >> tests/tools/oracle_rows.txt

A pair that is refused beside the usual options of the other levers is left out.
"""

from __future__ import annotations

import itertools
import random
import sys

from checkout import ROOT

from legroom.options.compose import compose

TRIED = 25  # rows drawn for each one that is chosen
SMALL = "data.seq_len=256 batch.per_device=2"
OPTIMIZERS = [
    "adamw",
    "adamw_fused",
    "sgd",
    "adafactor",
    "adam8bit",
    "lion8bit",
    "paged_adam8bit",
    "adagrad",
    "rmsprop",
]
OPTIMIZERS += ["lion", "muon", "schedule_free", "stable_adamw", "ademamix"]
FACTORS = {
    "gpu": ["v100_16gb", "t4_16gb", "a100_40gb", "a10_24gb", "rtx4090_24gb", "h100_80gb", "b200_180gb", "rtx5090_32gb"],
    "recipe": ["accelerate", "trainer"],
    "model": [
        "model=gpt2 model.layers=2",
        "model=bert_base model.layers=2",
        "model=distilbert model.layers=2",
        "model=qwen2_5_0_5b model.layers=2",
        "model=gemma3_1b model.layers=2",
        "model=modernbert_base model.layers=3",
        "model=smollm2_135m model.layers=3",
    ],
    "precision": [f"precision={name}" for name in ("fp32", "tf32", "fp16", "bf16", "bf16_pure")],
    "optim": [f"optim={name}" for name in OPTIMIZERS],
    "accumulation": [f"accumulation={name}" for name in ("none", "x2", "x4")],
    "checkpointing": [f"checkpointing={name}" for name in ("none", "full", "selective", "offload")],
    "adapter": ["", "adapter=lora", "adapter=lora adapter.dora=true", "adapter=qlora"],
    "loss": ["", "loss=chunked"],
    "attention": ["", "model.attention=eager"],
    "in_backward": ["", "optim.in_backward=true train.max_grad_norm=0"],
    "parallelism": [
        "",
        *(
            f"parallelism={kind} parallelism.num_processes={ranks}"
            for kind, ranks in (("ddp", 2), ("fsdp", 2), ("fsdp", 8), ("ddp", 8))
        ),
    ],
}

USUAL = {name: options[0] for name, options in FACTORS.items()} | {"gpu": "rtx4090_24gb", "precision": "precision=bf16"}


def is_allowed(row: dict[str, str]) -> bool:
    """Whether both the training and its estimate would be accepted."""
    overrides = [word for name, text in row.items() if name not in ("gpu", "recipe") for word in text.split()]
    overrides += SMALL.split()
    _, _, problems = compose(ROOT / "conf", *overrides, "recipe=estimate", f"gpu={row['gpu']}")
    return not problems


def pairs_of(row: dict[str, str]) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def drawn(start: dict[str, str], draw: random.Random) -> dict[str, str]:
    """A row that has `start`; rare levers stay at their defaults more often than not."""
    row = {}
    for name, options in FACTORS.items():
        usual = options[0] if options[0] == "" and draw.random() < 0.5 else draw.choice(options)
        row[name] = start.get(name, usual)
    return row


def cover(seed: int = 0) -> list[dict[str, str]]:
    """Rows that have every pair that is allowed."""
    draw, rows, refused = random.Random(seed), [], set()
    factors = list(itertools.combinations(FACTORS, 2))
    missing = {
        frozenset([(first, one), (second, other)])
        for first, second in factors
        for one in FACTORS[first]
        for other in FACTORS[second]
    }
    while missing:
        pair = min(missing, key=sorted)
        chosen = None
        if is_allowed({**USUAL, **dict(pair)}):
            candidates = [drawn(dict(pair), draw) for _ in range(TRIED)]
            candidates.sort(key=lambda row: len(pairs_of(row) & missing), reverse=True)
            chosen = next((row for row in candidates if is_allowed(row)), {**USUAL, **dict(pair)})
        if chosen is None:
            refused.add(pair)
            missing.discard(pair)
            continue
        rows.append(chosen)
        missing -= pairs_of(chosen)
    print(f"{len(rows)} rows, {len(refused)} pairs refused", file=sys.stderr)
    return rows


def main() -> None:
    for row in sorted(cover(), key=lambda row: (row["gpu"], "num_processes" in row["parallelism"], row["parallelism"])):
        print(" ".join([*(text for text in row.values() if text), SMALL]))


if __name__ == "__main__":
    main()
