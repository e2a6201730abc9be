"""checkpointing: recompute activations in the backward pass instead of keeping them."""

from legroom.config import Config
from legroom.options import hooks
from legroom.options.hooks import PASSES, Conflict, Cost, Dimension, Lever

# From little memory saved and little time lost to much of both.
COSTS = {
    "selective": Cost.LITTLE_RECOMPUTATION,
    "selective_half": Cost.LITTLE_RECOMPUTATION,
    "full": Cost.RECOMPUTATION,
    "offload": Cost.HOST_COPIES,
}
LONG_ROW = 8192  # tokens
COPIES = "what its copies between GPU and host take differs by machine, from a fifth to nearly all of the link's rate"


def warnings(cfg: Config) -> list[str]:
    """What offload does not do."""
    if cfg.checkpointing.kind != "offload" or cfg.target.on_gpu:
        return []
    return [
        "checkpointing=offload on a CPU is checkpointing=full: the layers' inputs are in the host's memory already."
    ]


def memory_levers(cfg: Config) -> list[Lever]:
    """Options that keep less than the chosen one; and all layers, where only some are checkpointed."""
    every = cfg.checkpointing.every_n_layers or 1
    alike = _alike(cfg)
    options = list(COSTS)
    stronger = options[options.index(alike) + 1 :] if alike else options
    levers = [
        Lever(f"checkpointing={option}", COSTS[option], (PASSES,))
        for option in stronger
        if not (option == "offload" and not cfg.target.on_gpu)
    ]
    if alike and every > 1:
        levers.insert(0, Lever("checkpointing.every_n_layers=1", COSTS[alike], (PASSES,)))
    return levers


def _alike(cfg: Config) -> str | None:
    """The option of the menu that keeps what the chosen one keeps, by its keys; None for none."""
    chosen = cfg.checkpointing
    if chosen.kind == "selective" and (chosen.every_n_products or 1) > 1:
        return "selective_half"
    return chosen.kind if chosen.kind in COSTS else None


CONFLICTS = (
    Conflict(
        "checkpointing=selective,selective_half,offload",
        "compile=true",
        "",
        "Choose checkpointing=full, or leave compile out.",
    ),
    Conflict(
        "checkpointing=selective,selective_half,offload",
        "parallelism.stage=3",
        ", which gathers weights inside the layers",
        "Choose checkpointing=full, or parallelism=fsdp.",
    ),
    Conflict(
        "checkpointing.mlp_tiles",
        "checkpointing=selective,selective_half",
        ", which keeps the products of these layers",
        "Choose checkpointing=full.",
    ),
    Conflict("checkpointing.mlp_tiles", "compile=true"),
    Conflict("checkpointing.mlp_tiles", "parallelism=dp,fsdp_tp,pipeline,mesh", " yet"),
    Conflict(
        "checkpointing.mlp_tiles",
        "parallelism.stage=3",
        ", which gathers weights inside the layers",
        "Type parallelism.stage=2, or choose parallelism=fsdp.",
    ),
    Conflict(
        "checkpointing.mlp_tiles",
        "parallelism.wrap=size",
        ", which gathers weights inside the layers",
        "Type parallelism.wrap=layer.",
    ),
    Conflict(
        "checkpointing=selective,selective_half",
        "parallelism.wrap=size",
        ", which gathers weights inside the layers",
        "Type parallelism.wrap=layer.",
    ),
)


def reason_not_to_try(cfg: Config) -> str | None:
    """Why fit leaves the chosen checkpointing out, or None."""
    if cfg.checkpointing.kind == "offload":
        return COPIES
    return None


def has_long_rows(cfg: Config) -> bool:
    """Whether fit tries tiles: of short rows, the inner activations of one feed-forward layer are few. Mixtures have
    none of these layers, or few."""
    return (cfg.data.seq_len or 0) >= LONG_ROW and not cfg.model.experts


SEARCH = (
    Dimension("checkpointing", 20, not_tried=reason_not_to_try),
    Dimension("checkpointing.mlp_tiles", 21, values=(None, 8), refuses_others=True, has_effect=has_long_rows),
)


def chosen(cfg: Config) -> bool:
    return cfg.checkpointing.kind != "none" or bool(cfg.checkpointing.mlp_tiles)


hooks.register_module("checkpointing", globals())
