"""Settings of a launcher (accelerate launch, torchrun) that contradict the recipe's options."""

from __future__ import annotations

import os

from legroom.config import Config

# Variable of `accelerate launch` -> the options of parallelism that mean the same.
LAUNCHER_MODES = {
    "ACCELERATE_USE_FSDP": ("fsdp", "fsdp_tp"),
    "ACCELERATE_USE_DEEPSPEED": ("zero",),
    "ACCELERATE_USE_MEGATRON_LM": (),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("fsdp_tp",),
}
OUT = "out of accelerate's configuration."


def problems(cfg: Config) -> list[str]:
    """What a file of `accelerate config` or a flag of the launcher sets otherwise than the recipe's options."""
    found = []
    for name, modes in LAUNCHER_MODES.items():
        if _is_true(name) and cfg.parallelism.name not in modes:
            mode = name.removeprefix("ACCELERATE_USE_").lower()
            found.append(
                f"the launcher asks for {mode}, and the recipe for parallelism={cfg.parallelism.name}. "
                + (f"Type parallelism={modes[0]}, or take" if modes else "Take")
                + f" {mode} {OUT}"
            )
    mixed = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")  # 'no' is also what a launcher sets by default
    if mixed not in ("no", cfg.precision.name):
        found.append(
            f"the launcher asks for mixed precision {mixed}, and the recipe for precision="
            f"{cfg.precision.name}. Type precision={mixed}, or take it {OUT}"
        )
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("1", str(cfg.accumulation.steps)):
        found.append(
            f"the launcher asks for {steps} accumulation steps, and the recipe for {cfg.accumulation.steps}. "
            f"Type accumulation.steps={steps}, or take it {OUT}"
        )
    if _is_true("ACCELERATE_USE_FSDP") and cfg.parallelism.name in ("fsdp", "fsdp_tp"):
        found += _fsdp_problems(cfg)
    if os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower() != "no" and not cfg.compile:
        found.append(
            f"the launcher asks for torch.compile, and the recipe does not. Type compile=true, or take it {OUT}"
        )
    return found


def _fsdp_problems(cfg: Config) -> list[str]:
    own = cfg.parallelism
    asked = {
        "FSDP_OFFLOAD_PARAMS": ("parallelism.cpu_offload=true", own.cpu_offload),
        "FSDP_ACTIVATION_CHECKPOINTING": ("checkpointing=full", cfg.checkpointing.name == "full"),
    }
    found = [
        f"the launcher asks for {name.lower()}, and the recipe does not. Type {override}, or take it {OUT}"
        for name, (override, ours) in asked.items()
        if _is_true(name) and not ours
    ]
    if os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "").lower() == "false" and own.strategy == "full_shard":
        found.append(
            "the launcher asks for fsdp_reshard_after_forward: false, and the recipe for full_shard. Type "
            f"parallelism.strategy=shard_grad_op, or take it {OUT}"
        )
    return found


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() == "true"
