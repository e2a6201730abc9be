"""model: sizes, trained weights, and when they are refused."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.machine import host
from recipes.options import model_families, task

SET_BY_WEIGHTS = {
    "layers",
    "width",
    "heads",
    "kv_heads",
    "feed_forward",
    "vocab",
    "positions",
    "tied",
    "dropout",
    "experts",
    "experts_per_token",
}


def problems(cfg) -> list[str]:
    """Sizes that make no model, and data that does not suit it."""
    model, found = cfg.model, []
    if model.attention == "flash_attention_2":
        if host.device(cfg) == "cpu":
            found.append("model.attention=flash_attention_2 needs a GPU. Choose model.attention=sdpa.")
        elif host.gpu(cfg) and host.gpu(cfg).capability < (8, 0):
            found.append(
                f"model.attention=flash_attention_2 needs compute capability 8.0 (Ampere) or newer, which "
                f"{host.gpu(cfg).name} has not. Choose model.attention=sdpa."
            )
        elif not host.has("flash_attn") and cfg.recipe.name != "estimate":
            found.append(
                "model.attention=flash_attention_2 needs the package flash-attn: "
                "pip install flash-attn --no-build-isolation, or choose model.attention=sdpa."
            )
        elif cfg.precision.name not in ("fp16", "bf16", "bf16_pure"):
            found.append(
                "model.attention=flash_attention_2 works in 16 bits only. "
                "Choose precision=bf16, or model.attention=sdpa."
            )
    if model.pretrained:
        return found + _folder_problems(model.pretrained)
    if model.width % model.heads:
        found.append(f"model.width={model.width} is not a multiple of model.heads={model.heads}.")
    elif model.family in model_families.ROTARY and model.width // model.heads % 2:
        found.append(
            f"model.width={model.width} over model.heads={model.heads} gives heads of odd size, "
            "which rotary embeddings cannot turn. Change one of them."
        )
    if model.kv_heads and model.heads % model.kv_heads:
        found.append(f"model.heads={model.heads} is not a multiple of model.kv_heads={model.kv_heads}.")
    if model.experts and model.experts_per_token:
        if model.experts_per_token > model.experts:
            found.append(
                f"model.experts_per_token={model.experts_per_token} is more than model.experts={model.experts}."
            )
        uneven = [f"model.{key}={getattr(model, key)}" for key in ("width", "feed_forward") if getattr(model, key) % 8]
        if uneven:
            found.append(f"{' and '.join(uneven)}: the grouped product of the experts needs multiples of 8.")
    for key, length in lengths(cfg).items():
        if length > model.positions:
            found.append(
                f"{key}={length} is longer than model.positions={model.positions}. "
                f"Type {key}={model.positions}, or raise model.positions."
            )
    if model.family in model_families.ENCODERS and task.task(cfg) == "language_modelling":
        found.append(
            f"data={cfg.data.name} is causal language modelling here, and model={model.name} is an encoder, "
            "which sees the tokens it should predict. Choose model=gpt2_tiny or another decoder."
        )
    if task.task(cfg) == "classification" and model.classes < 2:
        found.append(f"model.classes={model.classes}: a classification needs 2 or more.")
    return found


def given_problems(cfg, given: set[str]) -> list[str]:
    """Keys that a person typed and that trained weights bring themselves."""
    if not cfg.model.pretrained:
        return []
    typed = sorted(f"model.{key}" for key in SET_BY_WEIGHTS if f"model.{key}" in given)
    return [
        f"{key} has no meaning with model.pretrained: the trained weights have their own. Leave it out."
        for key in typed
    ]


def warnings(cfg) -> list[str]:
    """Sizes that matrix units do not like; the published vocabularies of BERT and GPT-2 are nobody's slip."""
    if cfg.model.pretrained:
        return []
    sizes = {key: getattr(cfg.model, key) for key in ("width", "feed_forward", "vocab")}
    odd = [f"model.{key}={size}" for key, size in sizes.items() if size % 8 and size not in (30522, 50257)]
    return [f"{', '.join(odd)}: not a multiple of 8, which leaves part of a GPU's matrix units idle."] if odd else []


def _folder_problems(pretrained: str) -> list[str]:
    """What is wrong with `model.pretrained` where it is a folder; a hub id is checked when it is loaded."""
    folder = Path(pretrained).expanduser()
    if not folder.exists():
        if pretrained.count("/") > 1 or pretrained.startswith((".", "/", "~")):
            return [f"model.pretrained={pretrained}: there is no such folder."]
        return []
    if not (folder / "config.json").is_file():
        return [f"model.pretrained={pretrained}: the folder has no config.json, so it is no saved model."]
    if not list(folder.glob("*.safetensors")):
        return [
            f"model.pretrained={pretrained}: the folder has no .safetensors file. Pickled weights can run code "
            "and are not loaded; save the model again with save_pretrained."
        ]
    try:
        json.loads((folder / "config.json").read_text())
    except (ValueError, OSError) as error:
        return [f"model.pretrained={pretrained}: config.json cannot be read ({error})."]
    return []


def lengths(cfg) -> dict[str, int]:
    """The keys that say how long a sequence the model is given."""
    return {"data.seq_len": cfg.data.seq_len} | ({"eval.window": cfg.eval.window} if cfg.eval.window else {})
