"""precision: which floats the weights and the arithmetic use."""

from __future__ import annotations

from recipes.machine import host

AUTOCAST = {"fp16": "fp16", "bf16": "bf16"}  # option -> Accelerate's mixed_precision


def arguments(cfg) -> dict:
    """Entries for TrainingArguments."""
    return {
        "fp16": cfg.precision.name == "fp16",
        "bf16": cfg.precision.name == "bf16",
        "tf32": cfg.precision.name == "tf32" if host.device(cfg) == "cuda" else None,
    }


def problems(cfg) -> list[str]:
    """What this machine's arithmetic cannot do."""
    name = cfg.precision.name
    if host.device(cfg) == "cpu":
        if name == "tf32":
            return [
                "precision=tf32 needs an NVIDIA GPU: TF32 is a mode of its matrix units. "
                "On a CPU choose precision=fp32 or precision=bf16."
            ]
        if name == "fp16":
            return ["precision=fp16 needs a GPU: its loss scaling has no use on a CPU. Choose precision=bf16."]
        return []
    gpu = host.gpu(cfg)
    if gpu is None:
        return []
    if name in ("tf32", "bf16", "bf16_pure") and gpu.capability < (8, 0):
        instead = "precision=fp32" if name == "tf32" else "precision=fp16"
        return [
            f"precision={name} needs compute capability 8.0 (Ampere) or newer; {gpu.name} has "
            f"{gpu.capability[0]}.{gpu.capability[1]}. Choose {instead}."
        ]
    return []


def apply_tf32(cfg) -> None:
    """Say once more whether matrix units may use TF32, after Accelerate is built: with compile it turns TF32 on."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = cfg.precision.name == "tf32"


def weights_dtype(cfg):
    """The torch dtype in which the model's weights are kept."""
    import torch

    return torch.bfloat16 if cfg.precision.name == "bf16_pure" else torch.float32
