"""parallelism.context: what does not go with ranks that share out the tokens of each row."""

from __future__ import annotations

from legroom.config import Config
from legroom.levers.parallelism import fsdp_rules

ATTENTIONS = ("eager", "flex_attention")  # a model's own function, and one with a mask of its own kind


def problems(cfg: Config) -> list[str]:
    """For configurations with parallelism.context."""
    own, size, count = cfg.parallelism, cfg.parallelism.context or 1, cfg.parallelism.num_processes
    typed = f"parallelism.context={size}"
    found = [
        f"{typed} does not go with {other}. {instead}"
        for other, instead, chosen in (
            (f"parallelism.experts={own.experts}", "Leave one of them out.", own.experts),
            ("data.packing", "Leave data.packing out: a sample may lie on several ranks.", cfg.data.packing),
            (f"model.attention={cfg.model.attention}", "Choose sdpa.", cfg.model.attention in ATTENTIONS),
            (f"kernels={cfg.kernels.name}", "Choose kernels=none.", cfg.kernels.name != "none"),
            ("compile=true yet", "Leave one of them out.", cfg.compile),
            ("precision=fp8 yet", "Choose precision=bf16.", cfg.precision.name == "fp8"),
        )
        if chosen
    ]
    if count is not None and count % size:
        found.append(f"{count} ranks cannot be put into groups of {typed}. Change one of them.")
    if cfg.data.seq_len % size:
        found.append(f"data.seq_len={cfg.data.seq_len} cannot be shared out over {typed} ranks. Change one of them.")
    sizes = [] if cfg.model.pretrained else fsdp_rules.split_problems(cfg, typed, size, ("heads", "kv_heads"))
    return found + sizes + fsdp_rules.machines_problems(cfg, "parallelism.context", size)
