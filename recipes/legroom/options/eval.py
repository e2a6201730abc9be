"""eval: when its keys are refused."""

from __future__ import annotations

from collections.abc import Collection

from legroom.config import Config
from legroom.options import data as data_options
from legroom.options import hooks, task


def resolve(cfg: Config) -> list[str]:
    """None stands for 0: the key is recorded where something is asked for."""
    cfg.eval.generate = cfg.eval.generate or None
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A sliding window where there is no text for it, or one that leaves tokens out; an evaluation between steps that
    would change the training."""
    every = cfg.eval.every_steps
    if every is not None and not cfg.eval.enabled:
        return [f"eval.every_steps={every} is not supported with eval.enabled=false. Leave one of them out."]
    if every is not None and cfg.eval.precision:
        return [
            f"eval.every_steps={every} is not supported with eval.precision={cfg.eval.precision}, which rounds the "
            "weights that are trained on. Leave one of them out."
        ]
    impossible = {
        "eval.enabled=false": not cfg.eval.enabled,
        "data=dummy, whose ids stand for no text": cfg.data.name == "dummy",
        "a model that predicts no next token": not task.is_causal(cfg),
        f"parallelism={cfg.parallelism.name}": cfg.parallelism.name in ("fsdp", "fsdp_tp", "zero"),
    }
    if cfg.eval.generate and any(impossible.values()):
        why = next(why for why, holds in impossible.items() if holds)
        return [f"eval.generate={cfg.eval.generate} does not go with {why}. Leave one of them out."]
    asked = {f"eval.{key}": getattr(cfg.eval, key) for key in ("window", "stride")}
    typed = " and ".join(f"{key}={value}" for key, value in asked.items() if value is not None)
    if not typed:
        return []
    if not cfg.eval.enabled:
        return [f"{typed} is not supported with eval.enabled=false. Leave one of them out."]
    if cfg.data.name == "dummy":
        return [f"{typed}: data=dummy has no text for a window to slide over. Leave it out, or choose data=source."]
    if not task.is_causal(cfg):
        return [f"{typed} is for causal language models, whose evaluation scores each next token. Leave it out."]
    window, stride = data_options.window_and_stride(cfg)
    if stride > window:
        return [
            f"eval.stride={stride} is more than eval.window={window} (null: data.seq_len), so tokens between two "
            f"windows would not be scored. Type eval.stride={window} or less."
        ]
    if cfg.data.name == "source" and stride > cfg.data.seq_len:
        return [
            f"data=source is evaluated in passages of data.seq_len={cfg.data.seq_len} tokens, so a window cannot "
            f"move on by {stride}. Type eval.stride={cfg.data.seq_len} or less."
        ]
    return []


hooks.register_module("eval", globals())
