"""A finished run in about six lines: what happened, then what most want to know; --verbose adds every figure."""

import math
import os
import re
import shutil
import textwrap
from collections.abc import Collection
from pathlib import Path
from statistics import fmean, pvariance

from legroom import invocation, units
from legroom.cli import summary
from legroom.config import GROUPS, kind_of
from legroom.machine import host
from legroom.options import data_sources, own_weights, train
from legroom.options.model import AUTO
from legroom.records import checkpoint_files, model_card
from legroom.records.record import FITS, Record, evaluated_in, quality, shown_status, verdict_of
from legroom.records.run_folder import MODEL_FOLDER, PAGE_FILES, log_name
from legroom.report import predicted
from legroom.units import GIB, MIB, PARTS

NARROWEST, WIDEST = 40, 100  # columns
BETWEEN_KEYS = re.compile(r"(\S+=[^\s,]+) (?=[\w.]+=)")  # of a command: it stands on one line, to be copied
STAND_INS = "is not on this machine"  # in the warning of an estimate about rows that it could not read
LARGEST_BYTE_VOCAB = 512  # a larger vocabulary is not one of bytes
MANY_STEPS = 20  # after which the losses of a run say something
LOSES_STEPS = ("interrupted", "failed", "killed", "timeout")  # how a run may end that leaves no checkpoint
LONG_WAIT = 0.05  # of a step's time, for batches
SHOWN_CHARACTERS = 68  # of a text that the model was given, and of what it said
# Menus whose option is said by itself; of the others, those whose option tells what it is, and options that do nothing.
NAMED_APART = {"recipe", "model", "data", "precision", "optim", "accumulation", "tracker", "gpu"}
KNOWN_BY_NAME = {"parallelism", "adapter"}  # of menus of levers
OFF = (None, "none", "single", "standard")  # their options
LABEL = 10  # columns of the name of a line, with what stands before and behind it


def brief(
    outcome: Record, folder: Path, answered: bool = False, said: Collection[str] = (), verbose: bool = False
) -> str:
    """What a run came to. folder: the run's. answered: `answer` has been printed, and the rest follows. said: warnings
    that were printed already. verbose: with every figure of the record."""
    lines = [] if answered else [answer(outcome)]
    if verbose:
        lines += summary.figure_lines(outcome)
        if outcome.operations is not None and outcome.estimate is not None:  # a run's own stand in its answer
            lines += summary.lines_of(summary.operations_of(outcome.operations))
    lines += summary.lines_of(summary.explanation(outcome.estimate)) if outcome.estimate is not None else []
    lines += [_wrapped("", text) for text in _advice(outcome, folder)]
    lines += [_wrapped("Data", text) for text in _data_wait(outcome)]
    beside = [text for text in outcome.warnings if not text.startswith(own_weights.RANDOM)]
    lines += [_wrapped("Warning", text) for text in beside if text not in said]
    lines += _generated(outcome)
    page = folder / PAGE_FILES[0]
    count = sum(text in said for text in outcome.warnings)
    above = f", {count} warning{'s' * (count > 1)} above" if count else ""
    file = shorter(page if page.is_file() else folder / "result.json")
    details = f"{'' if verbose else '--verbose, or '}{file}{above}"
    return "\n".join([*lines, f"  {'Details':<{LABEL - 2}}{details}", *_model(outcome, folder)])


def answer(outcome: Record) -> str:
    """The verdict or the status, the figures, and what went wrong."""
    config = outcome.config
    model, device = config["model"]["pretrained"] or config["model"]["name"], outcome.environment["device_name"]
    head, estimate = f"{shown_status(outcome)}: {model} on {config['data']['name']}, {device}", outcome.estimate
    if estimate is None and outcome.recipe == "estimate":
        head = f"{outcome.status}: no verdict about {model} on {device}"
    if estimate is not None:
        verdict = verdict_of(estimate)
        tells = estimate.kept_bytes and verdict != FITS
        kept = f" ('fits' keeps {units.size(estimate.kept_bytes or 0)} free)" if tells else ""
        head = f"{verdict}: {model} on {device}: {predicted.margin_text(outcome)}{kept}; all predicted"
    rows = {
        "Rows": _rows(outcome),
        "Time": _time(outcome),
        "Loss": _loss(outcome),
        "Memory": _memory(outcome),
        "Setup": _setup(outcome),
    }
    lines = [_wrapped(name, text) for name, text in rows.items() if text]
    if estimate is not None:
        lines += summary.lines_of([*summary.lengths(estimate), *summary.evaluation(estimate, outcome.memory)])
    elif outcome.operations is not None:  # measure.operations=true asks for them
        lines += summary.lines_of(summary.operations_of(outcome.operations))
    first = [_filled(f"warning: {text}", "", "  ") for text in outcome.warnings if text.startswith(own_weights.RANDOM)]
    return "\n".join([*first, _filled(head, "", "  "), *lines, *_errors(outcome)])


def _rows(outcome: Record) -> str:
    """What texts are counted in, where that is bytes and the model has another vocabulary; else nothing."""
    data, vocab = outcome.config["data"], outcome.config["model"].get("vocab")
    of_texts = data["name"] in data_sources.TEXTS and data.get("tokenizer") == "bytes"
    if not of_texts or outcome.config["model"].get("pretrained") or (vocab or 0) <= LARGEST_BYTE_VOCAB:
        return ""
    if any(STAND_INS in text for text in outcome.warnings):
        return ""
    return (
        "a token is a byte (data.tokenizer=bytes), so they are three to four times as long as in the model's own "
        "tokens: type data.tokenizer= or model.pretrained="
    )


def _time(outcome: Record) -> str:
    speed, training, step = outcome.speed, outcome.training, predicted.step_seconds(outcome)
    found = []
    if step is not None:
        found.append(f"{predicted.interval_text(step, 1e-3)} ms a step, bound by {speed.bound_by}")
    elif speed.train_seconds is not None:
        since = f" since step {training.resumed_from_step}" if training.resumed_from_step else ""
        found.append(
            f"{speed.train_seconds:.2f} s for {training.steps - (training.resumed_from_step or 0)} steps{since}"
        )
        if speed.step_seconds_median is not None:
            found.append(f"{units.digits(speed.step_seconds_median * 1000)} ms a step")
    if speed.samples_per_second is not None:
        rates = (speed.samples_per_second, speed.tokens_per_second or 0)
        samples, tokens = (float(predicted.two_digits(rate)) for rate in rates) if step is not None else rates
        found.append(f"{units.digits(samples)} samples/s, {tokens:,.0f} tokens/s")
    cost = predicted.cost_of_million_tokens(outcome)
    found += [f"{predicted.two_digits(cost)} for a million tokens"] if cost is not None else []
    return ", ".join(found)


def _loss(outcome: Record) -> str:
    training, evaluation = outcome.training, outcome.evaluation
    found = [f"{_number(training.final_loss)} from {_number(training.losses[0])}"] if training.losses else []
    if evaluation is not None:
        loss, scores = _number(evaluation.loss), quality(evaluation)
        found.append(f"evaluation {loss}, {scores}, on {evaluation.samples} {evaluated_in(outcome.config)}")
    return "; ".join(found)


def _memory(outcome: Record) -> str:
    memory, found = outcome.memory, []
    if outcome.estimate is not None and memory.device_used_bytes is not None:
        found.append(predicted.needed_text(outcome))
    elif memory.device_used_bytes is not None:
        found.append(f"{units.size(memory.device_used_bytes)} of the GPU")
    if memory.peak_tensor_bytes is not None:
        unit, name = (GIB, "GiB") if memory.peak_tensor_bytes >= GIB else (MIB, "MiB")
        parts = [(part, getattr(memory, f"{field}_bytes") or 0) for part, field in PARTS]
        shown = ", ".join(
            f"{part} {units.digits(size / unit, 2)}" for part, size in parts if size * 200 >= memory.peak_tensor_bytes
        )
        when = f" (in the {memory.peak_phase})" if memory.peak_phase else ""
        if memory.peak_phase and (predicted.evaluation_bytes(outcome) or 0) > (memory.device_used_bytes or 0):
            when = f" of the step (in the {memory.peak_phase})"
        found.append(f"{units.digits(memory.peak_tensor_bytes / unit)} {name} of tensors at the peak{when}: {shown}")
    return "; ".join(found + _had(outcome) * (outcome.status == "oom" and outcome.estimate is None))


def _had(outcome: Record) -> list[str]:
    """What a run that is out of memory was using, where `_memory` does not say, and what there was."""
    reserved, host = outcome.memory.peak_reserved_bytes, outcome.memory.host_peak_rss_bytes
    limit, whole = outcome.config["launch"].get("memory_limit_gib"), outcome.environment.get("device_memory_bytes")
    found = []
    if outcome.memory.device_used_bytes is None and reserved:
        found.append(f"{units.size(reserved)} reserved by CUDA's allocator")
    elif outcome.memory.device_used_bytes is None and host:
        found.append(f"{units.size(host)} of the host's memory in use at most, with the libraries")
    if limit is not None:
        found.append(f"the limit is {limit:g} GiB (launch.memory_limit_gib)")
    elif whole:
        found.append(f"{outcome.environment['device_name']} has {whole / GIB:.3g} GiB")
    return found


def _setup(outcome: Record) -> str:
    config = outcome.config
    size, steps = config["batch"]["per_device"], config["accumulation"]["steps"]
    gpu = config.get("gpu") or {}
    replicas = config["parallelism"]["replicas"] or 1
    shared = [f"{key} {config['parallelism'][key]}" for key in ("experts", "context") if config["parallelism"].get(key)]
    batch = f"{size}{f' x {steps}' * (steps > 1)}{f' x {replicas} ranks' * (replicas > 1)}"
    named = [_precision(config["precision"]), config["optim"]["name"], f"batch {batch}"]
    levers = {menu: (config.get(menu) or {}).get("name") for menu in GROUPS if menu not in NAMED_APART}
    named += [name if menu in KNOWN_BY_NAME else f"{menu} {name}" for menu, name in levers.items() if name not in OFF]
    named += shared
    if (gpu.get("machines") or 1) > 1:
        named.append(f"{gpu['machines']} machines, {gpu['machine_link_gb_per_second']:g} GB/s each way between them")
    attention = outcome.model.attention if outcome.model is not None else None
    named += [f"attention {attention}{' (auto)' * (config['model']['attention'] == AUTO)}"] if attention else []
    return ", ".join([outcome.recipe, *named])


def _precision(precision: dict) -> str:
    """The option, with the types that it stores beside an adapter."""
    if not precision.get("base"):
        return precision["name"]
    return f"{precision['name']} (frozen weights {precision['base']}, adapter {precision['adapter']})"


def _errors(outcome: Record) -> list[str]:
    """What went wrong; where something does not fit, the verdict has said so."""
    error = outcome.error
    if error is None or (outcome.estimate is not None and outcome.status == "oom"):
        return []
    rank = f" on rank {error.rank}" if outcome.config["parallelism"]["num_processes"] > 1 else ""
    return [_wrapped("", f"{error.type} in {error.phase}{rank}: {error.message.splitlines()[0]}")]


def _advice(outcome: Record, folder: Path) -> list[str]:
    """What to do about it."""
    error = outcome.error
    if error is None:
        return []
    output = [f"The libraries' output: {folder / log_name(error.rank)}"] * (outcome.status == "failed")
    return [hint for hint in (error.hint,) if hint] + output


def _data_wait(outcome: Record) -> list[str]:
    """What to type where the steps wait long for their batches."""
    share, data = outcome.speed.data_wait_share or 0.0, outcome.config["data"]
    if share <= LONG_WAIT or outcome.status != "ok":
        return []
    pins = data["pin_memory"] or outcome.environment["device"] != "cuda"  # only a copy to a GPU needs pinned memory
    try_this = f"data.workers={2 * data['workers'] or 2}" + ("" if pins else " data.pin_memory=true")
    return [f"{share:.0%} of a step's time passes until its batches are there; to prepare them meanwhile: {try_this}"]


def _generated(outcome: Record) -> list[str]:
    """What the model said before and after the training (eval.generate)."""
    lines = []
    for each in outcome.evaluation.generated if outcome.evaluation is not None else []:
        lines.append(f"  Text:   ...{each['prompt'][-SHOWN_CHARACTERS:]!r}")
        lines += [f"  {when + ':':<8}{each[when][:SHOWN_CHARACTERS]!r}" for when in ("before", "after")]
    return lines


def _model(outcome: Record, folder: Path) -> list[str]:
    """Where the trained model is and what to type to use it, or how to save one."""
    if outcome.estimate is not None:
        return []
    if outcome.status != "ok":
        kept, lost = checkpoint_files.found(folder), outcome.status in LOSES_STEPS and outcome.training.losses
        if outcome.status == "diverged":
            return [_wrapped("", line) for line in _last_good(outcome, kept)]
        if kept:
            return [f"  Go on: the same command with resume=latest, from step {checkpoint_files.step_of(kept[0])}"]
        return ["  Go on: not possible, for nothing was saved. save.every_steps=100 saves."] * bool(lost)
    kept = outcome.config["save"]["final"] and (folder / MODEL_FOLDER).is_dir()  # not that of a shorter training
    said = _not_learned(outcome, kept)
    if outcome.config["save"]["final"] and outcome.training.diverged:
        return ["  Model: not saved, since its weights are not numbers."]
    if not kept:
        return [*said, "  Model: not saved. Type save.final=true to keep what is trained."]
    use = model_card.usage(outcome, shorter(folder), invocation.command("chat"))
    return [*said, f"  Model: {shorter(folder / MODEL_FOLDER)}"] + [f"  Use it: {use}"] * (use is not None)


def _last_good(outcome: Record, kept: list[Path]) -> list[str]:
    """From which checkpoint a training that diverged can go on, and how. kept: the run's checkpoints, newest first."""
    if not kept:
        return ["Nothing is saved: no checkpoint was due before, and weights that are not numbers are never saved."]
    step, losses = checkpoint_files.step_of(kept[0]), outcome.training.losses
    loss = losses[step - 1] if 0 < step <= len(losses) else None
    at = f"step {step}" + ("" if loss is None else f", at a loss of {loss:.4g}")
    lines = [f"The last good checkpoint is of {at}: {shorter(kept[0])}"]
    if outcome.error is not None and outcome.error.type == "Diverged":
        rate = train.lower_rate(host.configuration(outcome.config))
        again = f"resume=latest resume_allow=[learning_rate] train.learning_rate={rate:g}"
        lines.append(f"Go on from it: the same command with {again}")
    return lines


def _not_learned(outcome: Record, kept: bool) -> list[str]:
    """A line where the loss rose over many steps by more than its noise, or of a model that is kept did not fall: the
    means of the first and the last quarter. Random ids of a model that is not kept are for the figures alone."""
    losses = [loss for loss in outcome.training.losses or [] if loss is not None and math.isfinite(loss)]
    count = max(1, len(losses) // 4)
    first, last = losses[:count], losses[-count:]
    if len(losses) < 2 or not (kept or kind_of(outcome.config, "data") != "dummy"):
        return []
    before, after = fmean(first), fmean(last)
    at = f"in {len(losses)} steps at train.learning_rate={outcome.config['train']['learning_rate']:g}"
    if len(losses) >= MANY_STEPS and after - before > 2 * ((pvariance(first) + pvariance(last)) / count) ** 0.5:
        means = f"from {before:.4g} to {after:.4g} (means of the first and the last quarter)"
        return [_wrapped("Note", f"The loss rose {at}, {means}: type a smaller one first.")]
    if not kept or after <= 0.99 * before:
        return []
    if len(losses) < len(outcome.training.losses):  # some are no numbers, and a warning says to lower the rate
        return []
    return [_wrapped("Note", f"The loss did not fall {at}: type a larger one, or a larger train.max_steps.")]


def _number(value: float | None) -> str:
    return "not a number" if value is None or value != value else f"{value:.4f}"


def shorter(path: Path) -> str:
    """The path, absolute or relative to the working directory, whichever is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


def _wrapped(name: str, text: str) -> str:
    """A line of the summary, wrapped between words; a path, a word or the keys of a command stay whole."""
    first = f"  {name:<{LABEL - 2}}" if name else "  "
    rest = " " * LABEL if name else "  "
    whole = BETWEEN_KEYS.sub("\\1\0", text)
    return _filled(whole, first, rest).replace("\0", " ")


def _filled(text: str, first: str, rest: str) -> str:
    columns = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    return textwrap.fill(
        text, columns, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
