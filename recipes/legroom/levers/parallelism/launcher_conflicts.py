"""Settings of a launcher (accelerate launch, torchrun) that contradict the recipe's options."""

import os

from legroom.config import Config

# Variable of `accelerate launch` -> the options of parallelism that mean the same.
LAUNCHER_MODES = {
    "ACCELERATE_USE_FSDP": ("fsdp", "fsdp_tp"),
    "ACCELERATE_USE_DEEPSPEED": ("zero",),
    "ACCELERATE_USE_MEGATRON_LM": (),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("fsdp_tp", "mesh"),
}
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")  # numbered from 1
WRAPS = {"transformer_based_wrap": "layer", "size_based_wrap": "size", "no_wrap": "none"}
Setting = tuple[str, str, str, object]
"""A key of accelerate's configuration, what it comes to here, our key, and its value."""
OUT = "out of accelerate's configuration."


def problems(cfg: Config) -> list[str]:
    """What a file of `accelerate config` or a flag of the launcher sets otherwise than the recipe's options."""
    found = []
    for name, modes in LAUNCHER_MODES.items():
        if _is_true(name) and cfg.parallelism.kind not in modes:
            mode = name.removeprefix("ACCELERATE_USE_").lower()
            found.append(
                f"the launcher asks for {mode}, and the recipe for parallelism={cfg.parallelism.name}. "
                + (f"Type parallelism={modes[0]}, or take" if modes else "Take")
                + f" {mode} {OUT}"
            )
    mixed = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")  # 'no' is also what a launcher sets by default
    if mixed not in ("no", cfg.precision.kind):
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
    settings: list[Setting] = []
    if _is_true("ACCELERATE_USE_FSDP") and cfg.parallelism.kind in ("fsdp", "fsdp_tp"):
        settings += _fsdp_settings(cfg)
    if _is_true("ACCELERATE_USE_DEEPSPEED") and cfg.parallelism.kind == "zero":
        settings += _zero_settings(cfg)
        found += _unread(cfg)
    if _is_true("ACCELERATE_USE_CPU") and cfg.target.on_gpu:
        settings.append(("use_cpu", "cpu", "device", cfg.device))
    found += [
        f"the launcher has {key}, and the recipe {ours}={value}. Type {ours}={asked}, or take it {OUT}"
        for key, asked, ours, value in settings
        if value is not None and _differs(asked, value)
    ]
    if os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower() != "no" and not cfg.compile:
        found.append(
            f"the launcher asks for torch.compile, and the recipe does not. Type compile=true, or take it {OUT}"
        )
    return found


def _fsdp_settings(cfg: Config) -> list[Setting]:
    """What a file says of FSDP."""
    own, found = cfg.parallelism, []
    strategy = _asked("FSDP_SHARDING_STRATEGY") if _asked("FSDP_VERSION") != "2" else "full_shard"
    strategy = STRATEGIES[int(strategy) - 1] if strategy.isdecimal() else strategy
    if strategy not in ("", "full_shard"):  # which the launcher says where nothing is typed
        found.append(("fsdp_sharding_strategy", strategy, "parallelism.strategy", own.strategy))
    elif _asked("FSDP_RESHARD_AFTER_FORWARD") == "false" and own.strategy == "full_shard":
        found.append(("fsdp_reshard_after_forward: false", "shard_grad_op", "parallelism.strategy", own.strategy))
    if wrap := WRAPS.get(_asked("FSDP_AUTO_WRAP_POLICY")):
        found.append(("fsdp_auto_wrap_policy", wrap, "parallelism.wrap", own.wrap))
        if wrap == "size":
            least = _asked("FSDP_MIN_NUM_PARAMS")
            found.append(("fsdp_min_num_params", least, "parallelism.wrap_min_parameters", own.wrap_min_parameters))
    if _is_true("FSDP_OFFLOAD_PARAMS"):
        found.append(("fsdp_offload_params", "true", "parallelism.cpu_offload", own.cpu_offload))
    if _is_true("FSDP_ACTIVATION_CHECKPOINTING"):
        kind = "offload" if _is_true("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD") else "full"
        found.append(("fsdp_activation_checkpointing", kind, "checkpointing", cfg.checkpointing.kind))
    return found


def _zero_settings(cfg: Config) -> list[Setting]:
    """What a file says of DeepSpeed."""
    own, found = cfg.parallelism, []
    states, weights = (_asked(f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_DEVICE") for part in ("OPTIMIZER", "PARAM"))
    if stage := _asked("ACCELERATE_DEEPSPEED_ZERO_STAGE"):
        found.append(("zero_stage", stage, "parallelism.stage", own.stage))
    if (states or weights) and "nvme" not in (states, weights):  # which `_unread` refuses
        wanted = "all" if weights not in ("", "none") else "none" if states in ("", "none") else "optimizer"
        found.append(("offload_optimizer_device and offload_param_device", wanted, "parallelism.offload", own.offload))
    if clipping := _asked("ACCELERATE_GRADIENT_CLIPPING"):
        found.append(("gradient_clipping", clipping, "train.max_grad_norm", cfg.train.max_grad_norm))
    return found


def _unread(cfg: Config) -> list[str]:
    """What a file asks for and nothing here does."""
    found = []
    if "nvme" in {_asked(f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_DEVICE") for part in ("OPTIMIZER", "PARAM")}:
        found.append(f"the launcher asks to offload to nvme, which is not done here. Type cpu, or take it {OUT}")
    if _asked("ACCELERATE_DEEPSPEED_CONFIG_FILE"):
        found.append(
            "the launcher names a deepspeed_config_file, which is not read: type parallelism.stage= and "
            f"parallelism.offload=, and take it {OUT}"
        )
    return found


def _differs(asked: str, ours: object) -> bool:
    """Whether a setting is another one than ours; numbers are compared as numbers."""
    try:
        return float(asked) != float(str(ours))
    except ValueError:
        return asked != str(ours).lower()


def _asked(variable: str) -> str:
    return os.environ.get(variable, "").lower()


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() == "true"
