"""measure: what is measured in a run, beside the training itself."""

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks

NOT_SEEN = {
    "dp": "DataParallel runs its replicas in threads of their own, whose operations are not seen",
    "zero": "DeepSpeed's engine takes no step beside the training's own",
}


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Measurements that another option rules out."""
    reason = NOT_SEEN.get(cfg.parallelism.kind)
    if not cfg.measure.operations or reason is None or cfg.predicts:
        return []
    return [
        f"measure.operations=true is not supported with parallelism={cfg.parallelism.name}: {reason}. Leave it out, or "
        "choose parallelism=ddp or fsdp."
    ]


hooks.register_module("measure", globals())
