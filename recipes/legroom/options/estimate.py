"""estimate: when its keys are refused. What an estimate does not support stands in the facts of an option."""

from collections.abc import Collection

from legroom.config import Config
from legroom.options import hooks, short_run


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Typed keys that only an estimate reads, and a short run that is none."""
    if cfg.predicts:
        return short_run.problems(cfg)
    lines = []
    for key in ("estimate.explain", "estimate.hint_seconds", "estimate.short_run"):
        if key in given:
            lines.append(f"{key} belongs to recipe=estimate. Leave it out, or add recipe=estimate.")
    if "estimate.margin" in given and cfg.accumulation.kind != "auto":
        lines.append(
            "estimate.margin belongs to recipe=estimate and to accumulation=auto. Leave it out, or add one of them."
        )
    return lines


hooks.register_module("estimate", globals())
