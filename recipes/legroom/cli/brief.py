"""A finished run in about six lines: what happened, then what most want to know; --verbose adds every figure."""

import math
import os
import re
import shutil
import textwrap
from collections.abc import Collection
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from legroom import invocation, units
from legroom.cli import summary
from legroom.config import GROUPS, kind_of
from legroom.machine import host
from legroom.options import data_sources, own_weights, train
from legroom.options.model import AUTO
from legroom.records import checkpoint_files, model_card
from legroom.records.record import FITS, HOST, Record, evaluated_in, quality, shown_status, verdict_of
from legroom.records.run_folder import MODEL_FOLDER, PAGE_FILES, log_name
from legroom.report import predicted
from legroom.report.page import settings
from legroom.units import GIB, MIB, PARTS

NARROWEST, WIDEST = 40, 100  # columns
BETWEEN_KEYS = re.compile(r"(\S+=[^\s,]+) (?=[\w.]+=)")  # of a command: it stands on one line, to be copied
NO_BREAK = "\0"  # in place of such a space while lines are wrapped
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
    outcome: Record, folder: Path, answered: bool = False, printed: Collection[str] = (), verbose: bool = False
) -> str:
    """What a run came to.

    folder: the run's. answered: `answer` has been printed, and the rest follows. printed: warnings that were printed
    already. verbose: with every figure of the record.
    """
    lines = []
    if not answered:
        lines.append(answer(outcome))
    if verbose:
        lines += summary.figure_lines(outcome)
        if outcome.operations is not None and outcome.estimate is not None:  # a run's own stand in its answer
            lines += summary.lines_of(summary.operations_of(outcome.operations))
    if outcome.estimate is not None:
        lines += summary.lines_of(summary.explanation(outcome.estimate))
    lines += [_wrapped("", text) for text in _advice(outcome, folder)]
    lines += [_wrapped("Data", text) for text in _data_wait(outcome)]
    for text in outcome.warnings:
        if text not in printed and not text.startswith(own_weights.RANDOM):  # of which the answer tells
            lines.append(_wrapped("Warning", text))
    lines += _generated(outcome)
    lines.append(_details(outcome, folder, printed, verbose))
    lines += _model(outcome, folder)
    lines += _next_command(outcome)
    return "\n".join(lines)


def _next_command(outcome: Record) -> list[str]:
    """What to type after an estimate, unwrapped, to be copied: the training, or the estimate, of what has room."""
    found = settings.next_command(outcome)
    if found is None:
        return []
    return [f"  {found.title.split()[0]:<{LABEL - 2}}{found.command}"]


def _details(outcome: Record, folder: Path, printed: Collection[str], verbose: bool) -> str:
    """Where the rest is: the page or the record, and warnings that were printed before."""
    page = folder / PAGE_FILES[0]
    text = shorter(page if page.is_file() else folder / "result.json")
    if not verbose:
        text = f"--verbose, or {text}"
    count = sum(warning in printed for warning in outcome.warnings)
    if count == 1:
        text += ", 1 warning above"
    elif count > 1:
        text += f", {count} warnings above"
    return f"  {'Details':<{LABEL - 2}}{text}"


# --- the answer ----------------------------------------------------------------------------------------


def answer(outcome: Record) -> str:
    """The verdict or the status, the figures, and what went wrong."""
    lines = []
    for text in outcome.warnings:
        if text.startswith(own_weights.RANDOM):
            lines.append(_filled(f"warning: {text}", "", "  "))
    lines.append(_filled(_heading(outcome), "", "  "))
    rows = {
        "Rows": _rows(outcome),
        "Lengths": _lengths(outcome),
        "Time": _time(outcome),
        "Run": _run(outcome),
        "Loss": _loss(outcome),
        "Memory": _memory(outcome),
        "Setup": _setup(outcome),
    }
    lines += [_wrapped(name, text) for name, text in rows.items() if text]
    lines += summary.lines_of(summary.phases(outcome.memory))
    if outcome.estimate is not None:
        lines += summary.lines_of(summary.lengths(outcome.estimate))
        lines += summary.lines_of(summary.evaluation(outcome.estimate, outcome.memory))
    elif outcome.operations is not None:  # measure.operations=true asks for them
        lines += summary.lines_of(summary.operations_of(outcome.operations))
    return "\n".join([*lines, *_errors(outcome)])


def _heading(outcome: Record) -> str:
    """The first line: the verdict of an estimate, or the status of a run."""
    config = outcome.config
    model = config["model"]["pretrained"] or config["model"]["name"]
    if config["model"].get("weights"):
        model += " from random weights"
    device = outcome.environment["device_name"]
    estimate = outcome.estimate
    if estimate is None and outcome.recipe == "estimate":
        return f"{outcome.status}: no verdict about {model} on {device}"
    if estimate is None:
        return f"{shown_status(outcome)}: {model} on {config['data']['name']}, {device}"
    verdict = verdict_of(estimate)
    kept = ""
    if estimate.kept_bytes and verdict != FITS and estimate.decided_by != HOST:
        kept = f" ('fits' keeps {units.size(estimate.kept_bytes)} free)"
    return f"{verdict}: {model} on {device}: {predicted.margin_text(outcome)}{kept}; all predicted"


def _rows(outcome: Record) -> str:
    """What texts are counted in, where that is bytes and the model has another vocabulary; else nothing."""
    data, model = outcome.config["data"], outcome.config["model"]
    if data["name"] not in data_sources.TEXTS or data.get("tokenizer") != "bytes":
        return ""
    if model.get("pretrained") or (model.get("vocab") or 0) <= LARGEST_BYTE_VOCAB:
        return ""
    if any(STAND_INS in text for text in outcome.warnings):
        return ""
    return (
        "a token is a byte (data.tokenizer=bytes), so they are three to four times as long as in the model's own "
        "tokens: type data.tokenizer= or model.pretrained="
    )


def _lengths(outcome: Record) -> str:
    """What the rows of an estimate are, or are taken to be."""
    if outcome.lengths is None:
        return ""
    return predicted.lengths_text(outcome.lengths)


def _run(outcome: Record) -> str:
    """The whole run of an estimate: its time, what it costs, and its parts."""
    run = outcome.whole_run
    if run is None:
        return ""
    return f"{predicted.run_text(run)}: {predicted.run_parts_text(run)}"


def _time(outcome: Record) -> str:
    speed = outcome.speed
    parts = []
    step = predicted.step_seconds(outcome)
    if step is not None:
        parts.append(f"{predicted.step_text(step)} a step, bound by {speed.bound_by}")
    elif speed.train_seconds is not None:
        resumed_from = outcome.training.resumed_from_step or 0
        text = f"{speed.train_seconds:.2f} s for {outcome.training.steps - resumed_from} steps"
        if resumed_from:
            text += f" since step {resumed_from}"
        parts.append(text)
        if speed.step_seconds_median is not None:
            parts.append(f"{units.digits(speed.step_seconds_median * 1000)} ms a step (median)")
    if speed.samples_per_second is not None:
        samples, tokens = speed.samples_per_second, speed.tokens_per_second or 0
        if step is not None:
            samples, tokens = float(predicted.two_digits(samples)), float(predicted.two_digits(tokens))
        parts.append(f"{units.digits(samples)} samples/s, {tokens:,.0f} tokens/s")
    cost = predicted.cost_of_million_tokens(outcome)
    if cost is not None:
        parts.append(f"{predicted.two_digits(cost)} for a million tokens")
    return ", ".join(parts)


def _loss(outcome: Record) -> str:
    training, evaluation = outcome.training, outcome.evaluation
    parts = []
    if training.losses:
        parts.append(f"{_number(training.final_loss)} from {_number(training.losses[0])}")
    if evaluation is not None:
        samples = f"{evaluation.samples} {evaluated_in(outcome.config)}"
        parts.append(f"evaluation {_number(evaluation.loss)}, {quality(evaluation)}, on {samples}")
    return "; ".join(parts)


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "not a number"
    return f"{value:.4f}"


def _memory(outcome: Record) -> str:
    memory = outcome.memory
    parts = []
    if memory.device_used_bytes is not None:
        if outcome.estimate is not None:
            parts.append(predicted.needed_text(outcome))
        else:
            parts.append(f"{units.size(memory.device_used_bytes)} of the GPU")
    if memory.peak_tensor_bytes is not None:
        parts.append(_tensors(outcome, memory.peak_tensor_bytes))
    if outcome.status == "oom" and outcome.estimate is None:
        parts += _in_use(outcome)
    return "; ".join(parts)


def _tensors(outcome: Record, peak_bytes: int) -> str:
    """The peak of the tensors, and its parts from half a per cent on."""
    memory = outcome.memory
    unit, name = (GIB, "GiB") if peak_bytes >= GIB else (MIB, "MiB")
    parts = []
    for part, field in PARTS:
        size = getattr(memory, f"{field}_bytes") or 0
        if size * 200 >= peak_bytes:
            parts.append(f"{part} {units.digits(size / unit, 2)}")
    phase = ""
    if memory.peak_phase:
        phase = f" (in the {memory.peak_phase})"
        if (predicted.evaluation_bytes(outcome) or 0) > (memory.device_used_bytes or 0):
            phase = f" of the step{phase}"
    return f"{units.digits(peak_bytes / unit)} {name} of tensors at the peak{phase}: {', '.join(parts)}"


def _in_use(outcome: Record) -> list[str]:
    """What a run that is out of memory was using, where `_memory` does not say, and what there was."""
    memory = outcome.memory
    parts = []
    if memory.device_used_bytes is None:
        if memory.peak_reserved_bytes:
            parts.append(f"{units.size(memory.peak_reserved_bytes)} reserved by CUDA's allocator")
        elif memory.host_peak_rss_bytes:
            host_memory = units.size(memory.host_peak_rss_bytes)
            parts.append(f"{host_memory} of the host's memory in use at most, with the libraries")
    limit = outcome.config["launch"].get("memory_limit_gib")
    device_bytes = outcome.environment.get("device_memory_bytes")
    if limit is not None:
        parts.append(f"the limit is {limit:g} GiB (launch.memory_limit_gib)")
    elif device_bytes:
        parts.append(f"{outcome.environment['device_name']} has {device_bytes / GIB:.3g} GiB")
    return parts


def _setup(outcome: Record) -> str:
    """Recipe, precision, optimizer, batch, and the levers that are on."""
    config = outcome.config
    parts = [outcome.recipe, _precision(config), _optimizer(config), f"batch {_batch(config)}"]
    for menu in GROUPS:
        option = (config.get(menu) or {}).get("name")
        if menu in NAMED_APART or option in OFF:
            continue
        if menu == "adapter" and config["adapter"].get("peft"):
            option = f"{option} {config['adapter']['peft'].get('peft_type')}"
        parts.append(option if menu in KNOWN_BY_NAME else f"{menu} {option}")
    mode = config["parallelism"]
    keys = ["experts", "context"]
    if mode.get("kind") == "mesh":
        keys += ["tensor_size", "stages", "shard_size", "replicate_size"]
    for key in keys:
        if (mode.get(key) or 1) > 1:
            parts.append(f"{key} {mode[key]}")
    if config["train"].get("ema") is not None:
        parts.append(f"running mean {config['train']['ema']:g}")
    gpu = config.get("gpu") or {}
    if (gpu.get("machines") or 1) > 1:
        parts.append(f"{gpu['machines']} machines, {gpu['machine_link_gb_per_second']:g} GB/s each way between them")
    if outcome.model is not None and outcome.model.attention:
        text = f"attention {outcome.model.attention}"
        if config["model"]["attention"] == AUTO:
            text += " (auto)"
        parts.append(text)
    return ", ".join(parts)


def _optimizer(config: dict[str, Any]) -> str:
    """The option, and of a class that was named the class."""
    name = config["optim"]["name"]
    factory = config["optim"].get("factory")
    if not factory:
        return name
    return f"{name} ({factory.rpartition(':')[2].rpartition('.')[2]})"


def _batch(config: dict[str, Any]) -> str:
    """The batch of a step: rows a GPU, accumulation steps, and ranks."""
    batch = str(config["batch"]["per_device"])
    accumulation_steps = config["accumulation"]["steps"]
    if accumulation_steps > 1:
        batch += f" x {accumulation_steps}"
    replicas = config["parallelism"]["replicas"] or 1
    if replicas > 1:
        batch += f" x {replicas} ranks"
    return batch


def _precision(config: dict[str, Any]) -> str:
    """The option, with the types that it stores where they are not those of a plain training."""
    precision = config["precision"]
    types = []
    if precision.get("base"):
        bits, of_experts = (config["adapter"].get(key) for key in ("bits", "expert_bits"))
        quantised = f"{bits} bits and " if bits else ""
        if bits and of_experts not in (None, bits):
            quantised = f"{bits} bits, of experts {of_experts} bits, and "
        types.append(f"frozen weights {quantised}{precision['base']}, adapter {precision['adapter']}")
    elif precision.get("weights") == "bf16" and precision["kind"] == "bf16":
        types.append("weights bf16")
    if precision.get("copies"):
        types.append(f"{precision['copies']} copies")
    if precision.get("reduction"):
        types.append(f"gradients added up in {precision['reduction']}")
    return f"{precision['name']} ({', '.join(types)})" if types else precision["name"]


def _errors(outcome: Record) -> list[str]:
    """What went wrong; where something does not fit, the verdict has said so."""
    error = outcome.error
    if error is None or (outcome.estimate is not None and outcome.status == "oom"):
        return []
    place = error.phase
    if outcome.config["parallelism"]["num_processes"] > 1:
        place += f" on rank {error.rank}"
    return [_wrapped("", f"{error.type} in {place}: {error.message.splitlines()[0]}")]


# --- what follows it -----------------------------------------------------------------------------------


def _advice(outcome: Record, folder: Path) -> list[str]:
    """What to do about an error."""
    error = outcome.error
    if error is None:
        return []
    advice = []
    if error.hint:
        advice.append(error.hint)
    if outcome.status == "failed":
        advice.append(f"The libraries' output: {folder / log_name(error.rank)}")
    return advice


def _data_wait(outcome: Record) -> list[str]:
    """What to type where the steps wait long for their batches."""
    share = outcome.speed.data_wait_share or 0.0
    if share <= LONG_WAIT or outcome.status != "ok":
        return []
    data = outcome.config["data"]
    overrides = f"data.workers={2 * data['workers'] or 2}"
    if outcome.environment["device"] == "cuda" and not data["pin_memory"]:  # which only a copy to a GPU needs
        overrides += " data.pin_memory=true"
    return [f"{share:.0%} of a step's time passes until its batches are there; to prepare them meanwhile: {overrides}"]


def _generated(outcome: Record) -> list[str]:
    """What the model said before and after the training (eval.generate)."""
    if outcome.evaluation is None:
        return []
    lines = []
    for texts in outcome.evaluation.generated:
        lines.append(f"  Text:   ...{texts['prompt'][-SHOWN_CHARACTERS:]!r}")
        lines.append(f"  before: {texts['before'][:SHOWN_CHARACTERS]!r}")
        lines.append(f"  after:  {texts['after'][:SHOWN_CHARACTERS]!r}")
    return lines


def _model(outcome: Record, folder: Path) -> list[str]:
    """Where the trained model is and what to type to use it, or how to save one."""
    if outcome.estimate is not None:
        return []
    if outcome.status != "ok":
        return _way_on(outcome, folder)
    asked = outcome.config["save"]["final"]
    if asked and outcome.training.diverged:
        return ["  Model: not saved, since its weights are not numbers."]
    is_kept = asked and (folder / MODEL_FOLDER).is_dir()  # without being asked for, it is that of a shorter training
    lines = _not_learned(outcome, is_kept)
    if not is_kept:
        return [*lines, "  Model: not saved. Type save.final=true to keep what is trained."]
    lines.append(f"  Model: {shorter(folder / MODEL_FOLDER)}")
    usage = model_card.usage(outcome, shorter(folder), invocation.command("chat"))
    if usage is not None:
        lines.append(f"  Use it: {usage}")
    return lines


def _way_on(outcome: Record, folder: Path) -> list[str]:
    """How a run that did not end ok can go on."""
    checkpoints = checkpoint_files.in_run(folder)
    if outcome.status == "diverged":
        return [_wrapped("", line) for line in _last_good(outcome, checkpoints)]
    if checkpoints:
        step = checkpoint_files.step_of(checkpoints[0])
        return [f"  Go on: the same command with resume=latest, from step {step}"]
    if outcome.status in LOSES_STEPS and outcome.training.losses:
        return ["  Go on: not possible, for nothing was saved. save.every_steps=100 saves."]
    return []


def _last_good(outcome: Record, checkpoints: list[Path]) -> list[str]:
    """From which checkpoint a training that diverged can go on, and how. checkpoints: the run's, newest first."""
    if not checkpoints:
        return ["Nothing is saved: no checkpoint was due before, and weights that are not numbers are never saved."]
    step = checkpoint_files.step_of(checkpoints[0])
    place = f"step {step}"
    losses = outcome.training.losses
    if 0 < step <= len(losses):
        loss = losses[step - 1]
        if loss is not None:
            place += f", at a loss of {loss:.4g}"
    lines = [f"The last good checkpoint is of {place}: {shorter(checkpoints[0])}"]
    if outcome.error is not None and outcome.error.type == "Diverged":
        rate = train.lower_rate(host.configuration(outcome.config))
        overrides = f"resume=latest resume_allow=[learning_rate] train.learning_rate={rate:g}"
        lines.append(f"Go on from it: the same command with {overrides}")
    return lines


def _not_learned(outcome: Record, is_kept: bool) -> list[str]:
    """A line where the loss rose over many steps by more than its noise, or of a model that is kept did not fall.

    Compared are the means of the first and the last quarter. Random ids of a model that is not kept are for the figures
    alone.
    """
    losses = [loss for loss in outcome.training.losses if loss is not None and math.isfinite(loss)]
    if len(losses) < 2 or (not is_kept and kind_of(outcome.config, "data") == "dummy"):
        return []
    count = max(1, len(losses) // 4)
    first, last = losses[:count], losses[-count:]
    before, after = fmean(first), fmean(last)
    noise = ((pvariance(first) + pvariance(last)) / count) ** 0.5
    when = f"in {len(losses)} steps at train.learning_rate={outcome.config['train']['learning_rate']:g}"
    if len(losses) >= MANY_STEPS and after - before > 2 * noise:
        means = f"from {before:.4g} to {after:.4g} (means of the first and the last quarter)"
        return [_wrapped("Note", f"The loss rose {when}, {means}: type a smaller one first.")]
    has_fallen = after <= 0.99 * before
    # Where some losses are no numbers, a warning says to lower the rate.
    if not is_kept or has_fallen or len(losses) < len(outcome.training.losses):
        return []
    return [_wrapped("Note", f"The loss did not fall {when}: type a larger one, or a larger train.max_steps.")]


# --- lines ---------------------------------------------------------------------------------------------


def shorter(path: Path) -> str:
    """The path, absolute or relative to the working directory, whichever is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


def _wrapped(name: str, text: str) -> str:
    """A line of the summary, wrapped between words; a path, a word or the keys of a command stay whole."""
    first, rest = "  ", "  "
    if name:
        first = f"  {name:<{LABEL - 2}}"
        rest = " " * LABEL
    whole = BETWEEN_KEYS.sub(rf"\1{NO_BREAK}", text)
    return _filled(whole, first, rest).replace(NO_BREAK, " ")


def _filled(text: str, first: str, rest: str) -> str:
    columns = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    return textwrap.fill(
        text, columns, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
