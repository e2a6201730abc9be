"""parallelism=mesh: the sizes of its axes, and when they are refused."""

from legroom.config import Config
from legroom.config.menus import Parallelism
from legroom.levers.parallelism import fsdp_rules, pipeline_rules
from legroom.options import model_families
from legroom.options.hooks import Conflict

MODE = "parallelism=mesh"
SIZES = ("replicate_size", "shard_size", "tensor_size", "context", "stages")
NONE_OF_ONE = ("tensor_size", "context", "stages")  # a group of one rank is none

CONFLICTS = (  # beside those of pipelines, which a mesh has without stages, too
    Conflict(MODE, "model.attention=eager", "", "Choose sdpa."),
    Conflict(MODE, "data.packing=true", " yet", "Leave data.packing out."),
)


def product(own: Parallelism) -> int:
    """How many ranks the sizes make, where shard_size is 1 unless it is typed."""
    count = 1
    for key in SIZES:
        count *= getattr(own, key) or 1
    return count


def resolve(own: Parallelism) -> None:
    """Fill in the shards that the other sizes leave, and take groups of one rank for none."""
    others = product(own) // own.shard_ranks
    if own.shard_size is None:
        own.shard_size = max(1, own.world_size // others)
    for key in NONE_OF_ONE:
        if getattr(own, key) == 1:
            setattr(own, key, None)
    if own.sync_each_batch is None:
        own.sync_each_batch = own.stages is None


def problems(cfg: Config) -> list[str]:
    """For parallelism=mesh alone."""
    own = cfg.parallelism
    found = []
    count = own.num_processes
    if count is not None and count != product(own):
        sizes = " x ".join(f"{key}={getattr(own, key) or 1}" for key in SIZES)
        found.append(
            f"{MODE}: {sizes} are {product(own)} ranks, and parallelism.num_processes={count}. Change one of them, or "
            "leave parallelism.num_processes or parallelism.shard_size out."
        )
    if own.strategy not in ("full_shard", "shard_grad_op"):
        found.append(f"parallelism.strategy={own.strategy} is not for mesh. Type full_shard or shard_grad_op.")
    if cfg.optim.facts.needs_whole_weights or cfg.optim.facts.needs_rows:
        found.append(f"optim={cfg.optim.name} does not work on the parts of weights that {MODE} has. Type optim=adamw.")
    if own.tensor_size:
        found += _tensor_problems(cfg, own.tensor_size)
        if cfg.loss.kind == "chunked":
            found.append(
                f"loss=chunked works on the whole output layer, and parallelism.tensor_size={own.tensor_size} splits "
                "it, with its logits. Choose loss=standard."
            )
    if own.experts:
        found += fsdp_rules.experts_problems(cfg)
    if own.context:
        found += _context_problems(cfg, own.context, own.tensor_ranks)
    found += fsdp_rules.machines_problems(cfg, "tensor_size x context", own.tensor_ranks * own.context_ranks)
    if cfg.data.seq_len % own.token_parts:
        found.append(
            f"data.seq_len={cfg.data.seq_len} cannot be shared out over {own.token_parts} ranks (context and, with "
            "sequence_parallel, tensor_size). Change one of them."
        )
    if own.splits_tokens and cfg.data.kind not in ("dummy", "source"):
        multiple = cfg.data.pad_to_multiple_of or 1
        if multiple % own.token_parts:
            found.append(
                f"data.pad_to_multiple_of={multiple}: the tokens of a padded row cannot be shared out over "
                f"{own.token_parts} ranks (context and, with sequence_parallel, tensor_size). Type "
                f"data.pad_to_multiple_of={own.token_parts}."
            )
    if own.stages:
        found += pipeline_rules.problems(cfg)
        if cfg.save.every_steps or cfg.save.best or cfg.resume:
            found.append(
                f"save.every_steps, save.best and resume: checkpoints of {MODE} with stages are not written yet. Leave "
                "them out, or choose parallelism=pipeline or fsdp."
            )
    elif own.chunks:
        found.append("parallelism.chunks is for a pipeline, parallelism.stages=2 or more. Leave it out.")
    return found


def _tensor_problems(cfg: Config, size: int) -> list[str]:
    typed = f"parallelism.tensor_size={size}"
    found = fsdp_rules.since(typed)
    if cfg.model.pretrained:
        return found  # whether it has a plan is checked when it is loaded
    if cfg.model.experts:
        found.append(
            f"{typed}: experts are not split with tensor_size yet. Type tensor_size=1, or parallelism=fsdp_tp."
        )
    elif cfg.model.family in model_families.NO_TENSOR_PLAN:
        found.append(
            f"model={cfg.model.name}: transformers has no plan for tensor parallelism of its family. Choose another "
            "model, or parallelism.tensor_size=1."
        )
    return found + fsdp_rules.split_problems(cfg, typed, size, ("heads", "kv_heads", "feed_forward"))


def _context_problems(cfg: Config, size: int, tensor_size: int) -> list[str]:
    """Heads are divided by both sizes, since attention of a rank has some of the heads that the matrices give it."""
    typed = f"parallelism.context={size}"
    if tensor_size > 1:
        typed += f" x tensor_size={tensor_size}"
    if cfg.model.pretrained:
        return []  # they are checked when it is loaded
    return fsdp_rules.split_problems(cfg, typed, size * tensor_size, ("heads", "kv_heads"))


def warnings(cfg: Config) -> list[str]:
    """For parallelism=mesh alone."""
    own = cfg.parallelism
    if not cfg.predicts:
        if own.stages and cfg.save.on_signal:
            return [f"{MODE} with stages saves no checkpoint when a signal ends it: the run cannot be resumed."]
        return []
    if own.tensor_ranks * own.stage_ranks == 1:
        return []
    return [
        f"{MODE}: a rank is taken to compute nothing while it waits for what the ranks of its layers' matrices or a "
        "neighbouring stage send; what FSDP sends overlaps with the computation."
    ]
