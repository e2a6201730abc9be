"""What tables and summaries say of a predicted step: its interval with the digits that are known, and what it costs."""

from typing import NamedTuple

from legroom import units
from legroom.records.record import EVALUATION, HOST, STEP, WEIGHTS, Estimate, Lengths, Record, WholeRun
from legroom.units import two_digits

MILLION = 1e6
HOUR_SECONDS = 3600
# What the interval of a predicted time is called wherever it is shown, and what it rests on.
LIKELY = (
    "Of predicted times and speeds two digits are known. In brackets is the likely range: nine of ten published steps "
    "lay in theirs."
)


class Interval(NamedTuple):
    """A predicted figure, and the range that nine of ten measured ones lie in."""

    median: float
    low: float
    high: float


def interval_text(interval: Interval, unit: float = 1) -> str:
    """A figure in a unit, and its interval: '330 (260 to 680)'."""
    median, low, high = (two_digits(value / unit) for value in interval)
    return f"{median} ({low} to {high})"


# --- time and cost -------------------------------------------------------------------------------------


def step_seconds(record: Record) -> Interval | None:
    """Of a predicted step; None for a measured one."""
    speed = record.speed
    if speed.step_seconds_median is None or speed.step_seconds_low is None or speed.step_seconds_high is None:
        return None
    return Interval(speed.step_seconds_median, speed.step_seconds_low, speed.step_seconds_high)


def samples_per_second(record: Record) -> Interval | None:
    """Of a predicted step; None for a measured one. The longest step has the lowest figure."""
    seconds = step_seconds(record)
    speed = record.speed.samples_per_second
    if seconds is None or speed is None or not seconds.low:
        return None
    return Interval(speed, speed * seconds.median / seconds.high, speed * seconds.median / seconds.low)


def cost_of_million_tokens(record: Record) -> float | None:
    """What training on a million tokens of the data costs, in the currency of gpu.price_per_hour.

    None where that is not given. Padding is no data.
    """
    gpu = record.config.get("gpu") or {}
    price = gpu.get("price_per_hour")
    tokens_per_second = _unpadded_tokens_per_second(record)
    if price is None or not tokens_per_second:
        return None
    mode = record.config.get("parallelism") or {}
    gpus = max(mode.get("num_processes") or 1, mode.get("replicas") or 1)  # with dp one process has several
    return price * gpus / HOUR_SECONDS / tokens_per_second * MILLION


def _unpadded_tokens_per_second(record: Record) -> float | None:
    if record.estimate is not None and record.estimate.unpadded_tokens_per_second:
        return record.estimate.unpadded_tokens_per_second
    if record.speed.tokens_per_second is None:
        return None
    return record.speed.tokens_per_second * (1 - (record.training.padding_share or 0))


LONG_STEP = 10  # seconds, from which on a step is given in seconds


def step_text(step: Interval) -> str:
    """How long a predicted step takes: '330 (260 to 680) ms', '21 (17 to 40) s'."""
    if step.median >= LONG_STEP:
        return f"{interval_text(step)} s"
    return f"{interval_text(step, 1e-3)} ms"


# --- the whole run -------------------------------------------------------------------------------------

TIME_UNITS = (
    ("days", 48 * HOUR_SECONDS, 24 * HOUR_SECONDS),
    ("hours", 1.5 * HOUR_SECONDS, HOUR_SECONDS),
    ("min", 90, 60),
)
SHORT = 0.01  # of a run: parts that are shown together
# Of what 400 steps on rows of different lengths make the allocator reserve, beyond a step on the longest rows
# (docs/results/estimates.md, Batches of different lengths).
UNEVEN = "28 % for GPT-2, simulated"


def duration_text(interval: Interval) -> str:
    """A predicted time in the unit that people use: '4.1 (3.2 to 6.3) hours'."""
    name, unit = "s", 1
    for larger, least, seconds in TIME_UNITS:
        if interval.median >= least:
            name, unit = larger, seconds
            break
    return f"{interval_text(interval, unit)} {name}"


def run_seconds(run: WholeRun) -> Interval:
    """How long a whole run takes."""
    return Interval(run.seconds, run.seconds_low, run.seconds_high)


def run_text(run: WholeRun) -> str:
    """The time of a whole run and what it costs, for how many steps: a sentence's first half."""
    text = f"{duration_text(run_seconds(run))} for {units.plural(run.steps, 'step')}"
    if run.epochs is not None and run.rows is not None:
        text += f" ({units.digits(run.epochs)} x {units.plural(run.rows, 'row')})"
    cost = cost_text(run)
    if cost:
        text += f", {cost}"
    return text


def cost_text(run: WholeRun) -> str:
    """What a whole run costs; '' where no price is known."""
    if run.cost is None or run.cost_low is None or run.cost_high is None:
        return ""
    cost = interval_text(Interval(run.cost, run.cost_low, run.cost_high))
    return f"costs {cost} at {units.digits(run.price_per_hour or 0)} an hour"


def run_parts_text(run: WholeRun) -> str:
    """The parts of a whole run with their times, the longest first; short ones together."""
    texts, rest = [], 0.0
    for part in sorted(run.parts, key=lambda part: -part["seconds"]):
        if part["seconds"] < SHORT * run.seconds:
            rest += part["seconds"]
            continue
        text = part["name"]
        if part["count"] > 1 and part["name"] != "steps":
            text = f"{part['count']:,} {text}"
        seconds = Interval(part["seconds"], part["seconds_low"], part["seconds_high"])
        texts.append(f"{text} {duration_text(seconds)}")
    if rest:
        texts.append(f"the rest {two_digits(rest)} s")
    return ", ".join(texts)


def lengths_text(lengths: Lengths) -> str:
    """The lengths of the rows that an estimate counts on."""
    if not lengths.from_rows:
        return (
            f"all rows are taken to have {lengths.longest:,} tokens (data.seq_len). Rows of different lengths take "
            f"more memory ({UNEVEN}); yours are counted once data.path= names them and their tokenizer is here"
        )
    if lengths.shortest == lengths.longest:
        return f"{units.plural(lengths.rows, 'row')} of {lengths.longest:,} tokens"
    return (
        f"{units.plural(lengths.rows, 'row')} of {lengths.shortest:,} to {lengths.longest:,} tokens, "
        f"{lengths.median:,} in the median"
    )


# --- memory --------------------------------------------------------------------------------------------


def margin_text(record: Record) -> str:
    """What stays free or is missing of an estimate's device, and where: in the training step or in the evaluation."""
    estimate = record.estimate
    assert estimate is not None
    if estimate.decided_by == HOST:
        return _host_text(record, estimate)
    text = f"{_margin(estimate.margin_bytes)} of {_capacity(record, estimate)}"
    evaluation = evaluation_name(record)
    if estimate.decided_by == EVALUATION:
        return f"{text} in {evaluation}"
    if estimate.decided_by == WEIGHTS:
        return f"{text} for the weights alone"
    if estimate.decided_by not in (None, STEP):
        return f"{text} in {phase_name(estimate.decided_by)}"
    step_lacks = estimate.decided_by == STEP and estimate.margin_bytes < 0
    free = estimate.evaluation_margin_bytes
    if free is not None and (free < estimate.margin_bytes or (step_lacks and free < 0)):
        return f"{text} in the training step, and {_margin(free)} in {evaluation}"
    if step_lacks:
        return f"{text} in the training step"
    return text


def _host_text(record: Record, estimate: Estimate) -> str:
    """What the host lacks, in the first phase in which it does."""
    known = record.memory.host_memory_bytes or 0
    needed = 0
    for phase in record.memory.phases:
        if phase["phase"] == estimate.first_lacking:
            needed = phase["host_bytes"] or 0
    missing, whole = units.size(needed - known), units.size(known)
    return f"{missing} of the host's memory are missing of {whole} in {phase_name(estimate.first_lacking)}"


def phase_name(phase: str | None) -> str:
    """A phase in a sentence."""
    if phase == STEP:
        return "the training step"
    if phase in ("loading", "preparing", "generation"):
        return f"{phase}"
    return f"the {phase}"


def _margin(margin_bytes: int) -> str:
    if margin_bytes < 0:
        return f"{units.size(-margin_bytes)} are missing"
    return f"{units.size(margin_bytes)} stay free"


def _capacity(record: Record, estimate: Estimate) -> str:
    """What an estimate's device has, or what a limit leaves of it."""
    whole = units.size(estimate.capacity_bytes)
    if estimate.limit_bytes is None:  # a limit above the card has no effect
        return whole
    launch = record.config.get("launch") or {}
    limit_gib = launch.get("memory_limit_gib")
    if limit_gib is not None:
        return f"{limit_gib:g} GiB (launch.memory_limit_gib)"
    used_gib = (record.config.get("gpu") or {}).get("used_gib")
    if used_gib:
        return f"{units.size(estimate.limit_bytes)}, which other processes leave of {whole} (gpu.used_gib)"
    return f"a limit of {units.size(estimate.limit_bytes)} on {whole}"  # of PYTORCH_ALLOC_CONF


def needed_text(record: Record) -> str:
    """How much of the device the training step needs, and how much the evaluation if that is more."""
    used = record.memory.device_used_bytes
    if record.estimate is not None and record.estimate.decided_by == WEIGHTS:
        return f"more than {units.size(used or 0)} of the GPU"
    evaluation = evaluation_bytes(record)
    if evaluation is not None and evaluation > (used or 0):
        return f"{units.size(evaluation)} of the GPU in {evaluation_name(record)}, {units.size(used or 0)} in a step"
    if used is None:
        return ""
    return f"{units.size(used)} of the GPU"


def evaluation_bytes(record: Record) -> int | None:
    """The device memory that the evaluation of an estimate needs; None where there is none."""
    estimate = record.estimate
    if estimate is None or estimate.evaluation_margin_bytes is None:
        return None
    return (estimate.limit_bytes or estimate.capacity_bytes) - estimate.evaluation_margin_bytes


def evaluation_name(record: Record) -> str:
    """The evaluation, with the key that makes it smaller."""
    evaluation = record.config.get("eval") or {}
    return f"the evaluation with eval.batch={evaluation.get('batch')}"
