"""eval: when its keys are refused."""

from collections.abc import Collection

from legroom.config import Config
from legroom.options import data as data_options
from legroom.options import hooks, task

# The figures by which evaluations of a task can be compared.
METRICS = {
    "classification": ("loss", "accuracy"),
    "multi_label": ("loss", "f1", "exact_match"),
    "regression": ("loss", "pearson"),
    "question_answering": ("loss", "f1", "exact_match"),
}
ONE_METRIC = ("loss",)
LEAVE_ONE_OUT = "Leave one of them out."


def resolve(cfg: Config) -> list[str]:
    """None stands for 0: the key is recorded where something is asked for."""
    if cfg.eval.generate == 0:
        cfg.eval.generate = None
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Keys of an evaluation that cannot be done as asked, the first of them alone."""
    for check in (_bounds, _between_steps, _comparison, _generation, _sliding_window):
        problem = check(cfg, given)
        if problem is not None:
            return [problem]
    return []


def _bounds(cfg: Config, given: Collection[str]) -> str | None:
    """A precision or a number of samples that nothing uses."""
    section = cfg.eval
    if not section.enabled:
        if "eval.precision" in given and section.precision:
            return f"eval.precision={section.precision} does not go with eval.enabled=false. {LEAVE_ONE_OUT}"
        if "eval.max_samples" in given and section.max_samples:
            return f"eval.max_samples={section.max_samples} does not go with eval.enabled=false. {LEAVE_ONE_OUT}"
    if "eval.max_samples" in given and cfg.data.eval_samples:
        typed = f"eval.max_samples={section.max_samples or 'null'}"
        return f"{typed} would be ignored beside data.eval_samples={cfg.data.eval_samples}. Type that instead."
    return None


def _typed_window(cfg: Config) -> str | None:
    """The keys of a sliding window as typed; None where there is none."""
    typed = []
    if cfg.eval.window is not None:
        typed.append(f"eval.window={cfg.eval.window}")
    if cfg.eval.stride is not None:
        typed.append(f"eval.stride={cfg.eval.stride}")
    return " and ".join(typed) or None


def _between_steps(cfg: Config, given: Collection[str]) -> str | None:
    """An evaluation between steps, or a window, without an evaluation; or one that would change the training."""
    every_steps = cfg.eval.every_steps
    if not cfg.eval.enabled:
        typed = _typed_window(cfg) if every_steps is None else f"eval.every_steps={every_steps}"
        if typed is not None:
            return f"{typed} is not supported with eval.enabled=false. {LEAVE_ONE_OUT}"
    if every_steps is not None and cfg.eval.precision:
        return (
            f"eval.every_steps={every_steps} is not supported with eval.precision={cfg.eval.precision}, which rounds "
            f"the weights that are trained on. {LEAVE_ONE_OUT}"
        )
    return None


def _comparison(cfg: Config, given: Collection[str]) -> str | None:
    """Evaluations that are to be compared, of which there are none, or by a figure that they do not have."""
    section = cfg.eval
    compares = f"eval.patience={section.patience}" if section.patience else "save.best=true" if cfg.save.best else None
    if compares is None:
        if section.metric is None:
            return None
        return f"eval.metric={section.metric} is what eval.patience and save.best compare. Type one of them too."
    if section.every_steps is None:
        return f"{compares} compares evaluations between steps, and there are none. Type eval.every_steps= too."
    asked = task.task(cfg)
    metrics = METRICS.get(asked, ONE_METRIC) if asked else ()  # of pretrained weights it is known when they are loaded
    if section.metric and metrics and section.metric not in metrics:
        return (
            f"eval.metric={section.metric}: an evaluation of {asked} has no such figure. Type "
            f"eval.metric={' or '.join(metrics)}."
        )
    return None


def _generation(cfg: Config, given: Collection[str]) -> str | None:
    """Generated answers of a model or a training that has none."""
    if cfg.eval.generate is None:
        return None
    if not cfg.eval.enabled:
        other = "eval.enabled=false"
    elif cfg.data.kind == "dummy":
        other = "data=dummy, whose ids stand for no text"
    elif not task.is_causal(cfg):
        other = "a model that predicts no next token"
    elif cfg.parallelism.kind in ("fsdp", "fsdp_tp", "pipeline", "mesh", "zero"):
        other = f"parallelism={cfg.parallelism.name}"
    else:
        return None
    return f"eval.generate={cfg.eval.generate} does not go with {other}. {LEAVE_ONE_OUT}"


def _sliding_window(cfg: Config, given: Collection[str]) -> str | None:
    """A sliding window where there is no text for it, or one that leaves tokens out."""
    typed = _typed_window(cfg)
    if typed is None:
        return None
    if cfg.data.kind == "dummy":
        return f"{typed}: data=dummy has no text for a window to slide over. Leave it out, or choose data=source."
    if task.has_conversations(cfg):
        return f"{typed}: a window slides over one long text, not over conversations. Leave it out."
    if not task.is_causal(cfg):
        return f"{typed} is for causal language models, whose evaluation scores each next token. Leave it out."
    window, stride = data_options.window_and_stride(cfg)
    if stride > window:
        return (
            f"eval.stride={stride} is more than eval.window={window} (null: data.seq_len), so tokens between two "
            f"windows would not be scored. Type eval.stride={window} or less."
        )
    if cfg.data.kind == "source" and stride > cfg.data.seq_len:
        return (
            f"data=source is evaluated in passages of data.seq_len={cfg.data.seq_len} tokens, so a window cannot "
            f"move on by {stride}. Type eval.stride={cfg.data.seq_len} or less."
        )
    return None


hooks.register_module("eval", globals())
