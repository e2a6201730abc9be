"""eval: when its keys are refused."""

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
    asked = {key: getattr(cfg.eval, key) for key in ("every_steps", "generate", "window", "stride")}
    typed = {key: f"eval.{key}={value}" for key, value in asked.items() if value is not None}
    every, generate = typed.get("every_steps"), typed.get("generate")
    slides = " and ".join(typed[key] for key in ("window", "stride") if key in typed)
    off, dummy, causal = not cfg.eval.enabled, cfg.data.kind == "dummy", task.is_causal(cfg)
    talks = task.has_conversations(cfg)
    one, sharded = "Leave one of them out.", cfg.parallelism.kind in ("fsdp", "fsdp_tp", "pipeline", "zero")
    typed_precision = cfg.eval.precision and f"eval.precision={cfg.eval.precision}"
    precision = f"{typed_precision}, which rounds the weights that are trained on"
    bound = "eval.max_samples" in given and f"eval.max_samples={cfg.eval.max_samples or 'null'}"
    rules = (
        ("eval.precision" in given and typed_precision, off, f" does not go with eval.enabled=false. {one}"),
        (cfg.eval.max_samples and bound, off, f" does not go with eval.enabled=false. {one}"),
        (bound, own := cfg.data.eval_samples, f" would be ignored beside data.eval_samples={own}. Type that instead."),
        (every or slides, off, f" is not supported with eval.enabled=false. {one}"),
        (every, cfg.eval.precision, f" is not supported with {precision}. {one}"),
        (generate, off, f" does not go with eval.enabled=false. {one}"),
        (generate, dummy, f" does not go with data=dummy, whose ids stand for no text. {one}"),
        (generate, not causal, f" does not go with a model that predicts no next token. {one}"),
        (generate, sharded, f" does not go with parallelism={cfg.parallelism.name}. {one}"),
        (slides, dummy, ": data=dummy has no text for a window to slide over. Leave it out, or choose data=source."),
        (slides, talks, ": a window slides over one long text, not over conversations. Leave it out."),
        (slides, not causal, " is for causal language models, whose evaluation scores each next token. Leave it out."),
    )
    refused = next((f"{what}{why}" for what, holds, why in rules if what and holds), None)
    if refused or not slides:
        return [refused] if refused else []
    window, stride = data_options.window_and_stride(cfg)
    if stride > window:
        return [
            f"eval.stride={stride} is more than eval.window={window} (null: data.seq_len), so tokens between two "
            f"windows would not be scored. Type eval.stride={window} or less."
        ]
    if cfg.data.kind == "source" and stride > cfg.data.seq_len:
        return [
            f"data=source is evaluated in passages of data.seq_len={cfg.data.seq_len} tokens, so a window cannot "
            f"move on by {stride}. Type eval.stride={cfg.data.seq_len} or less."
        ]
    return []


hooks.register_module("eval", globals())
