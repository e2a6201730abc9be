"""LoRA and QLoRA as others measured them: published_adapters.csv beside the predictions of this repository's own step.

The rows are fms-acceleration's, on an A100 80 GB: checkpointing, flash attention 2, AdamW, rows of one length. What
their step did otherwise is done here, too: peft's matrices in 32 bits beside weights in bf16 (`lora`), and what
`prepare_model_for_kbit_training` casts to fp32 (`qlora, prepared`).
"""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import ROOT

import transformers

from legroom import paths
from legroom.compat.patching import patched
from legroom.estimator.speed import roofline
from legroom.foresight import simulation
from legroom.options.compose import compose_valid

PREPARED = "qlora, prepared"
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "granite": "GraniteForCausalLM",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
}
LLAMA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
SIZES: dict[str, dict[str, Any]] = {
    "mistral-7b": dict(model_type="mistral", vocab_size=32000, sliding_window=4096, max_position_embeddings=32768),
    "llama-2-70b": dict(
        model_type="llama",
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=4096,
    ),
    "powerlm-3b": dict(
        model_type="granite",
        vocab_size=49152,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=40,
        num_attention_heads=36,
        num_key_value_heads=36,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    ),
    "santacoder": dict(
        model_type="gpt_bigcode",
        vocab_size=49280,
        n_layer=24,
        n_embd=2048,
        n_head=16,
        n_inner=8192,
        n_positions=2048,
        multi_query=True,
    ),
}


@dataclass(frozen=True)
class Compared:
    """A published run. seconds, peak_bytes: of a step, measured; allocated_bytes: predicted, torch's largest."""

    row: dict[str, str]
    seconds: float
    predicted: roofline.Prediction
    peak_bytes: int
    allocated_bytes: int


@functools.cache
def compared() -> list[Compared]:
    """Every row with its prediction. Takes about a minute."""
    with (ROOT / "docs" / "reference" / "published_adapters.csv").open(newline="") as file:
        return [_predicted(row) for row in csv.DictReader(file)]


def _predicted(row: dict[str, str]) -> Compared:
    lora = row["method"] == "lora"
    with tempfile.TemporaryDirectory() as folder:
        sizes = dict(SIZES[row["model"]])
        config = transformers.AutoConfig.for_model(sizes.pop("model_type"), **sizes)
        config.bos_token_id = config.eos_token_id = None
        config.architectures = [CLASSES[config.model_type]]
        Path(folder, "config.json").write_text(json.dumps(config.to_dict()))
        # peft takes the names that a model has
        wanted = set(row["targets"].split()) - ({"c_attn"} if row["model"] != "santacoder" else set(LLAMA_TARGETS))
        targets = ",".join(sorted(wanted))
        cfg, _ = compose_valid(
            paths.CONF,
            *("recipe=estimate", "gpu=a100_80gb", "optim=adamw", "checkpointing=full", f"model.pretrained={folder}"),
            *(f"adapter={'lora' if lora else 'qlora'}", f"precision={'bf16_pure' if lora else 'bf16'}"),
            "precision.adapter=fp32",
            *(f"adapter.targets=[{targets}]", f"adapter.rank={row['rank']}", "adapter.alpha=16", "adapter.dropout=0.1"),
            *(f"batch.per_device={row['batch']}", f"data.seq_len={row['seq_len']}", "data.samples=64"),
            "model.attention=flash_attention_2",
        )
        with _as_they_did(row["method"]):
            simulated = simulation.simulate_step(cfg, folder)
    assert simulated.demand is not None
    predicted = roofline.predict(simulated.tally, cfg.gpu, cfg.precision.kind, beside_frozen=True)
    seconds, peak = float(row["seconds_per_step"]), int(row["peak_allocated_bytes"])
    return Compared(row, seconds, predicted, peak, simulated.demand.peak_allocated_bytes)


@contextlib.contextmanager
def _as_they_did(method: str) -> Iterator[None]:
    """Inside, adapters are made as in the published runs, and not as this repository does it."""
    import peft

    make = peft.get_peft_model

    def prepared(model: Any, settings: Any) -> Any:
        return make(peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False), settings)

    with contextlib.ExitStack() as patches:
        if method == PREPARED:
            patches.enter_context(patched(peft, get_peft_model=prepared))
        yield
