"""parallelism.context: what does not go with ranks that share out the tokens of each row."""

from legroom.config import Config
from legroom.levers.parallelism import fsdp_rules
from legroom.options.hooks import Conflict

KEY = "parallelism.context"
CONFLICTS = (
    Conflict(KEY, "parallelism.experts"),
    # A model's own function, and one with a mask of its own kind.
    Conflict(KEY, "model.attention=eager,flex_attention", "", "Choose sdpa."),
    Conflict(KEY, "compile=true", " yet"),
    Conflict(KEY, "precision=fp8", " yet", "Choose precision=bf16."),
)


def problems(cfg: Config) -> list[str]:
    """For configurations with parallelism.context."""
    size, count = cfg.parallelism.context_ranks, cfg.parallelism.num_processes
    typed, found = f"{KEY}={size}", []
    if count is not None and count % size:
        found.append(f"{count} ranks cannot be put into groups of {typed}. Change one of them.")
    if cfg.data.seq_len % size:
        found.append(f"data.seq_len={cfg.data.seq_len} cannot be shared out over {typed} ranks. Change one of them.")
    sizes = [] if cfg.model.pretrained else fsdp_rules.split_problems(cfg, typed, size, ("heads", "kv_heads"))
    return found + sizes + fsdp_rules.machines_problems(cfg, KEY, size)
