"""Whole estimates of small configurations on several GPUs, every figure of their records, as they are kept here.

Of further variants of a configuration what differs from the first is kept. The figures are those of
the libraries that constraints.txt names: others may compute the same step by other operations.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, compose
from support.known_values import known

from legroom.foresight import estimate
from legroom.machine.worker_environment import SIMULATIONS
from legroom.records.messages import Progress

PINNED = dict(re.findall(r"^(\S+)==([^\s+]+)", (ROOT / "constraints.txt").read_text(), re.M))
OTHERS = [
    name
    for name in ("torch", "transformers", "accelerate")
    if importlib.metadata.version(name).partition("+")[0] != PINNED[name]
]
pytestmark = pytest.mark.skipif(bool(OTHERS), reason=f"kept are the figures of other versions of {', '.join(OTHERS)}")

RANKS, LIMIT = "parallelism.num_processes=", "launch.memory_limit_gib="
# Name -> (words, what each variant adds to them). Variants share a simulation where their GPUs have the same rules.
CONFIGURATIONS = {
    "plain": (
        "model=bert_tiny model.layers=1",
        "gpu=rtx4090_24gb",
        "gpu=gtx1080ti_11gb",
        "gpu=v100_16gb gpu.host_factor=0.1",
        f"gpu=l4_24gb {LIMIT}0.134",
        f"gpu=rtx4090_24gb {LIMIT}0.1",
    ),
    "odd_sizes": (
        "model=gpt2_tiny model.layers=1 model.vocab=50257 model.width=200 model.heads=4 model.feed_forward=801 "
        "precision=fp16 batch.per_device=16 data.seq_len=256",
        "gpu=rtx4090_24gb",
        "gpu=t4_16gb",
    ),
    "paged": (
        "model=gpt2_tiny model.layers=1 model.width=512 optim=paged_adam8bit batch.per_device=2 data.seq_len=64",
        "gpu=l4_24gb",
        f"gpu=l4_24gb {LIMIT}0.055 gpu.host_link_gb_per_second=4",
    ),
    "compiled": (
        "model=llama_tiny model.layers=1 precision=bf16 compile=true checkpointing=full",
        f"gpu=rtx4090_24gb {LIMIT}0.05",
        "gpu=rtx4090_24gb",
    ),
    "adapter": ("model=llama_tiny model.layers=1 precision=bf16_pure adapter=lora accumulation=x4", "gpu=a100_80gb"),
    "ddp": (f"model=bert_tiny model.layers=1 parallelism=ddp {RANKS}16", "gpu=a100_80gb", "gpu=rtx4090_24gb"),
    "machines": (
        f"model=llama_tiny model.layers=1 parallelism=fsdp {RANKS}16 precision=bf16 accumulation=x2",
        "gpu=a100_80gb gpu.machines=2 gpu.machine_link_gb_per_second=5 gpu.host_factor=0.2",
        "gpu=a100_80gb gpu.machines=2 gpu.machine_link_gb_per_second=200",
    ),
    "offloaded": (
        f"model=llama_tiny model.layers=1 parallelism=fsdp {RANKS}2 parallelism.cpu_offload=true",
        "gpu=a100_80gb",
    ),
    "experts": (
        f"model=mixtral_tiny model.layers=1 parallelism=fsdp {RANKS}2 parallelism.experts=2",
        "gpu=a100_80gb",
    ),
    "pipeline": (
        f"model=gpt2_tiny model.layers=4 parallelism=pipeline {RANKS}4 parallelism.stages=4 accumulation=x4 "
        "batch.per_device=1 data.seq_len=64 precision=bf16",
        "gpu=a100_80gb",
    ),
    "replicas": (f"model=bert_tiny model.layers=1 parallelism=dp {RANKS}4 batch.per_device=8", "gpu=rtx4090_24gb"),
    "padded": (
        "model=bert_tiny model.layers=1 data=text data.path={rows} data.task=classification batch.per_device=8 "
        "data.seq_len=256 model.vocab=4096 model.width=256 model.feed_forward=1024 eval.batch=2",
        "gpu=l4_24gb",
        f"gpu=l4_24gb {LIMIT}0.099",
        f"gpu=l4_24gb {LIMIT}0.07",
    ),
    "cpu": ("model=bert_tiny model.layers=1", "device=cpu"),
}
NOT_KEPT = {"seconds", "largest", "levers"}  # of the estimate: how long it took; what only estimate.explain has


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """Texts of 5 to 250 bytes."""
    chance = random.Random(1)
    texts = [{"text": "w" * chance.randint(5, 250), "label": number % 2} for number in range(64)]
    file = tmp_path_factory.mktemp("data") / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return file


def told(value: Any) -> Any:
    """Without what is None or empty."""
    if isinstance(value, dict):
        return {key: told(inner) for key, inner in value.items() if inner not in (None, {}, [])}
    return [told(inner) for inner in value] if isinstance(value, list) else value


def figures(words: list[str], rows: Path, folder: Path) -> dict[str, Any]:
    """Every figure of an estimate's record, without what is None or empty."""
    usual = ["recipe=estimate", "device=auto", "estimate.hint_seconds=0"]
    cfg, outcome, problems = compose(*usual, *words)
    assert not problems, problems
    estimate.run(cfg, outcome, folder, Progress(lambda _: None, outcome), advise=False)
    assert outcome.operations is not None
    rank, outcome.memory.per_rank = outcome.memory.per_rank, []
    seen = {"status": outcome.status, "rank": rank[0].pop("rank")}
    assert rank == [{key: value for key, value in asdict(outcome.memory).items() if key in rank[0]}]
    for key in ("model", "memory", "speed", "estimate", "error"):
        part = getattr(outcome, key)
        seen[key] = {} if part is None else {k: v for k, v in asdict(part).items() if k not in NOT_KEPT}
    seen["operations"] = [" ".join(map(str, known(list(row.values())))) for row in outcome.operations.groups]
    seen["largest"] = [" ".join(map(str, known(list(row.values())))) for row in outcome.operations.largest[:6]]
    seen["notes"] = [note.replace(f"{rows.parent}/", "") for note in outcome.warnings]
    return told(seen)


def changed(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What of another record differs from the first."""
    keys = [*first, *(other.keys() - first.keys())]
    found = {}
    for key in keys:
        mine, its = first.get(key), other.get(key)
        if mine != its:
            found[key] = changed(mine, its) if isinstance(mine, dict) and isinstance(its, dict) else its
    return found


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_figure_of_an_estimate_is_as_it_was(name, rows, data_regression, tmp_path, monkeypatch):
    monkeypatch.setenv(SIMULATIONS, str(tmp_path))
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(variable, raising=False)
    words, first, *others = CONFIGURATIONS[name]
    typed = words.replace("{rows}", str(rows)).split()
    if "data=text" not in typed:
        typed.append("data.samples=64")
    seen = figures([*typed, *first.split()], rows, tmp_path)
    kept = {first: seen}
    for other in others:
        kept[other] = changed(seen, figures([*typed, *other.split()], rows, tmp_path))
    data_regression.check(known(kept))
