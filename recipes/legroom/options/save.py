"""save: what is written while a training runs and after it."""

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks


def final_by_default(cfg: Config, in_sweep: bool) -> bool:
    """What save.final=null means: the model of a fine-tuning is saved, but those of a sweep would fill a disk.

    in_sweep: the configuration is that of a sweep's job.
    """
    if cfg.predicts or cfg.data.kind == "dummy":  # of random ids only the figures are wanted
        return False
    return bool(cfg.model.pretrained) and not in_sweep


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A merged model that is asked for and cannot be written; files of a size that nothing is written in."""
    return _shard_problems(cfg) or _merge_problems(cfg)


def _shard_problems(cfg: Config) -> list[str]:
    if cfg.save.max_shard_gb is None:
        return []
    typed = f"save.max_shard_gb={cfg.save.max_shard_gb:g}"
    if not cfg.save.final:
        return [f"{typed} is about the trained model, and none is saved. Type save.final=true too."]
    if cfg.adapter.is_used and not cfg.save.merge:
        return [f"{typed} does not go with an adapter, which is one file. Type save.merge=true, or leave it out."]
    return []


def _merge_problems(cfg: Config) -> list[str]:
    if not cfg.save.merge:
        return []
    if not cfg.adapter.is_used:
        return ["save.merge=true adds an adapter to the weights, and adapter=none trains none. Leave it out."]
    if not cfg.save.final:
        return [
            "save.merge=true is about the trained model, and save.final=false writes none. Type save.final=true too."
        ]
    if cfg.parallelism.sharded:
        return [
            f"save.merge=true does not go with parallelism={cfg.parallelism.name}. Leave it out, and merge what is "
            "saved with peft's merge_and_unload; or choose parallelism=ddp."
        ]
    return []


def warnings(cfg: Config) -> list[str]:
    """Merged weights of a quantised model are not those that were loaded."""
    if not cfg.save.merge or not cfg.adapter.bits:
        return []
    return [
        f"save.merge=true: the merged weights are those in {cfg.adapter.bits} bits, dequantised, with the adapter "
        "added; what rounding took from the loaded weights does not come back."
    ]


hooks.register_module("save", globals())
