"""Records -> a table, CSV and pictures. All of it is made from the records alone, and the same each time.

A row of the table is a configuration: its repeats (`measure.repeat`, `train.seed`) are one row, with
medians and the spread from the least to the most. What differs between the jobs makes the label.

Imports nothing heavy: the parent process reads it; matplotlib comes with `plots.draw`.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import json
import math
import os
import re
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, NamedTuple

from recipes import record
from recipes.record import Error, Evaluation, Memory, Record, Speed, Training
from recipes.refusal import Refusal
from recipes.screen import MIB

GIB = 2**30
DONE = ("ok", "preempted")  # their figures stand
# What the table calls memory: the first of these that all jobs have, so that the jobs can be compared.
MEMORY_KINDS = {"device_used_bytes": ("device", "what the whole device had in use, by NVML"),
                "peak_reserved_bytes": ("reserved", "the most that CUDA's allocator reserved"),
                "peak_tensor_bytes": ("tensor", "the largest sum of live tensors")}
NOT_IN_LABELS = ("launch", "tracker", "train.log_seconds", "train.seed", "measure.repeat", "measure.repeats",
                 "model.learning_rate", "experiment")
PACKAGES = ("torch", "transformers", "accelerate", "bitsandbytes")
# Stated once above the table when all jobs have the same.
CONTEXT = ("experiment", "recipe", "model", "data", "data.seq_len", "batch.per_device", "accumulation.steps", "precision",
           "optim", "checkpointing", "parallelism", "device_name", *PACKAGES, "git_revision")
COLUMNS_AT_MOST = 6  # keys that have a column each; with more, a job is named by what sets it apart from the most
# What the types' names in the record's classes stand for.
KINDS = {"int": (int, float), "float": (int, float), "str": str, "list": list, "dict": dict,
         **{kind.__name__: kind for kind in (Training, Evaluation, Speed, Memory, Error)}}


class Spread(NamedTuple):
    """A figure of a row: the median of its repeats, the least and the most."""

    median: float
    low: float
    high: float


@dataclass
class Row:
    """One configuration: a job, or its repeats."""

    label: dict[str, str]  # key -> value, of the keys that tell the jobs apart; without those it does not use
    runs: list[Record]
    facts: dict[str, str]  # every key of the configuration, and where it ran
    name: str = ""  # the label as words that can be typed
    published: dict = field(default_factory=dict)  # device_used_bytes, samples_per_second, source

    @property
    def estimate(self) -> bool:
        """Predicted, not measured."""
        return self.runs[0].recipe == "estimate"

    @property
    def counted(self) -> list[Record]:
        """The runs whose figures stand. An estimate's do even where it says that memory will not do."""
        return [run for run in self.runs if run.status in DONE or (self.estimate and run.status == "oom")]

    @property
    def done(self) -> bool:
        return any(run.status in DONE for run in self.runs)

    @property
    def status(self) -> str:
        """One word, or how many of the repeats ended how."""
        ended = [run.status for run in self.runs]
        words = list(dict.fromkeys(ended))
        text = words[0] if len(words) == 1 else ", ".join(f"{ended.count(word)} {word}" for word in words)
        return text + (" (estimate)" if self.estimate else "")

    @property
    def at_once(self) -> int:
        """How many jobs ran side by side while this one did."""
        return max([1, *(at for at in (run.environment.get("jobs_at_once") for run in self.runs) if isinstance(at, int))])

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures must know: errors with their hints, and jobs side by side."""
        notes = []
        for error in (run.error for run in self.runs):
            if error is not None:
                first = next(iter(error.message.splitlines()), error.type).strip()
                notes.append(f"in {error.phase}: {first}{'' if first.endswith(('.', '?')) else '.'} {error.hint or ''}".rstrip())
        if self.at_once > 1:
            notes.append(f"{self.at_once} jobs side by side: they disturb each other's times and device memory.")
        return list(dict.fromkeys(notes))

    def spread(self, part: str, key: str) -> Spread | None:
        """A figure of the runs that count, such as ("speed", "samples_per_second"); None: not to be had."""
        values = [getattr(getattr(run, part) or object(), key, None) for run in self.counted]
        values = [value for value in values if value is not None and math.isfinite(value)]
        return Spread(statistics.median(values), min(values), max(values)) if values else None


@dataclass
class Table:
    """All rows, in order. memory_kind: which of MEMORY_KINDS stands for memory. baseline: a row, or None."""

    keys: list[str]
    rows: list[Row]
    memory_kind: str = ""
    baseline: Row | None = None

    @property
    def labels(self) -> dict[str, list[str]]:
        """The columns that tell the rows apart: heading -> a word for each row."""
        if len(self.keys) > COLUMNS_AT_MOST:
            return {"job": [row.name for row in self.rows]}
        return {key: [row.label.get(key, "") for row in self.rows] for key in self.keys}

    @property
    def common(self) -> dict[str, str]:
        """The most common value of each key that the jobs differ in."""
        return {key: statistics.mode(row.label.get(key, "") for row in self.rows) for key in self.keys}

    @property
    def memory_name(self) -> str:
        """The heading for memory, without its unit."""
        return f"{MEMORY_KINDS[self.memory_kind][0]} memory"

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of the memory columns, and its bytes."""
        most = max((m.high for m in map(self.memory, self.rows) if m), default=0)
        return ("GiB", GIB) if most >= GIB else ("MiB", MIB)

    def memory(self, row: Row) -> Spread | None:
        """Bytes of what the table calls memory."""
        return row.spread("memory", self.memory_kind)

    def speed(self, row: Row) -> Spread | None:
        """Samples per second."""
        return row.spread("speed", "samples_per_second")


# --- reading -------------------------------------------------------------------------------------


def read_all(folders: list[Path | str]) -> tuple[list[Record], list[str]]:
    """Every record in and below the folders, once each, and a line on each file that is none.

    Raises Refusal when a folder is not there.
    """
    records, warnings, seen = [], [], set()
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise Refusal(f"{folder} is no folder.")
        for path in sorted(folder.rglob(record.FILE_NAME)):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            try:
                found = record.read(path.parent)
                _check(found)
                records.append(found)
            except (OSError, ValueError, TypeError) as error:  # TypeError: parts or keys that a record has not
                warnings.append(f"{path} is left out, it is no whole record: {' '.join(str(error).split())}")
    return records, warnings


def _check(part) -> None:
    """Raise ValueError unless the values of a record, or of a part of it, are of the kinds that its class says."""
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if value is None and "None" in f.type:
            continue
        if not isinstance(value, KINDS[re.match(r"\w+", f.type)[0]]):
            raise ValueError(f"{f.name} is not {f.type}")
        if dataclasses.is_dataclass(value):
            _check(value)
    if isinstance(part, Record) and part.status not in record.STATUSES:
        raise ValueError(f"there is no status {part.status}")


# --- labels --------------------------------------------------------------------------------------


def facts(found: Record) -> dict[str, str]:
    """A record's configuration as flat words, and where it ran: what may tell it from another.

    A group's option stands under the group's name (`optim`), its keys under theirs (`optim.beta1`).
    """
    words = {"experiment": _experiment(found)}
    for section, values in found.config.items():
        for key, value in (values if isinstance(values, dict) else {"name": values}).items():
            words[section if key == "name" else f"{section}.{key}"] = _word(value)
    limit = words.get("launch.memory_limit_gib")
    words = {key: value for key, value in words.items()
             if key == "experiment" or not {key, key.split(".")[0]} & set(NOT_IN_LABELS)}
    if limit is not None:
        words["launch.memory_limit_gib"] = limit  # the one key of launch that changes the result
    environment = found.environment
    words["device"] = _word(environment.get("device", words.get("device")))
    words["device_name"] = _word(environment.get("device_name"))
    words["git_revision"] = _word(environment.get("git_revision"))
    versions = environment.get("versions") or {}
    return words | {name: _word(versions.get(name)) for name in PACKAGES}


def _word(value) -> str:
    """A value as it would be typed."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _experiment(found: Record) -> str:
    """The experiment file that made it (`+experiment/guide=vanilla`: vanilla), or null."""
    told = found.config.get("experiment")
    if isinstance(told, dict):
        told = told.get("name")
    typed = [match[1] for match in (re.match(r"\+{0,2}experiment(?:/\w+)*=(.+)", word) for word in found.overrides) if match]
    return _word(told or "+".join(typed) or None)


def _context(key: str, words: dict[str, str]) -> tuple:
    """The facts from which `key` follows. It is worth showing only if it differs between jobs that share them."""
    get, group = words.get, key.split(".")[0]
    if key in ("experiment", "device"):
        return ()
    if key == "device_name":
        return (get("device"),)
    if key in PACKAGES or key == "git_revision":  # only where they tell apart what is otherwise the same
        return tuple(value for name, value in words.items() if name not in PACKAGES and name != "git_revision")
    if key == "train.learning_rate":
        return get("experiment"), get("model"), get("model.pretrained")
    if key == "accumulation.steps" and get("batch.effective", "null") != "null":  # derived from the batch
        return tuple(value for name, value in words.items() if name.split(".")[0] in ("experiment", "batch", "parallelism"))
    return get("experiment"), get(group) if key != group else None


def label_keys(all_facts: list[dict[str, str]]) -> list[str]:
    """The keys in which jobs differ, without those that merely follow from another one's option."""
    shown = []
    for key in dict.fromkeys(key for words in all_facts for key in words):
        values: dict[tuple, set] = {}
        for words in all_facts:
            if key in words and not (key == "train.learning_rate" and words[key] == "null"):  # refused before it was filled in
                values.setdefault(_context(key, words), set()).add(words[key])
        if any(len(several) > 1 for several in values.values()):
            shown.append(key)
    return shown or ["model"]


def _label(words: dict[str, str], keys: list[str], used: set[tuple[str, str]]) -> dict[str, str]:
    """The label of a job. used: (option, key) of the keys that have a value with some job of that option."""
    label = {}
    for key in keys:
        value, option = words.get(key), words.get(key.split(".")[0])
        unused = value == "null" and option is not None and "." in key and (option, key) not in used
        if value is not None and not unused and (key, value) != ("experiment", "null"):
            label[key] = value
    return label


# --- rows ----------------------------------------------------------------------------------------


def table(records: list[Record], baseline: str | None = None, published: dict[str, dict] | None = None) -> Table:
    """The records as rows.

    baseline: the start of a config_key, or words that a job's configuration has, such as
    "precision=fp32 optim=adamw"; the first job that fits. None: the first job that ended ok.
    published: figures that others measured, by the same kind of words or by an experiment's name:
    {"device_used_bytes": bytes, "samples_per_second": ..., "source": text}.

    Raises Refusal when there are no records, or no job fits the baseline.
    """
    if not records:
        raise Refusal("There are no records to report on.")
    described = [(found, facts(found)) for found in records]
    keys = label_keys([words for _, words in described])
    used = {(words.get(key.split(".")[0]), key) for _, words in described for key in words if words[key] != "null"}
    rows: dict[tuple, Row] = {}
    for found, words in sorted(described, key=_order(described, keys)):
        label = _label(words, keys, used)
        rows.setdefault(tuple(label.items()), Row(label, [], words)).runs.append(found)
    made = Table(keys, list(rows.values()))
    common = made.common if len(keys) > COLUMNS_AT_MOST else {}
    for row in made.rows:
        words = [f"{key}={value}" for key, value in row.label.items() if value != common.get(key)]
        row.name = " ".join(words) or "the most common"
    made.memory_kind = _memory_kind(made.rows)
    made.baseline = _baseline(made.rows, baseline)
    for row in made.rows:
        told = row.runs[0].config.get("experiment")
        row.published = dict(told.get("published") or {}) if isinstance(told, dict) else {}
        fitting = [words for words in published or {} if _fits(row, words)]
        if fitting:
            row.published = published[max(fitting, key=lambda words: len(words.split()))]  # the most particular
    return made


def _order(described: list, keys: list[str]) -> Callable:
    """The sort key of (record, facts): as the jobs were given, or started, or else by their words."""
    numbers = [found.environment.get("job_number") for found, _ in described]
    one_sweep = None not in numbers and len(set(numbers)) == len(numbers)  # else several, each counted from 0

    def order(job):
        found, words = job
        number, started = found.environment.get("job_number"), _timestamp(found.environment.get("started_at"))
        natural = [[(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", words.get(key, ""))]
                   for key in keys]
        measure, train = found.config.get("measure") or {}, found.config.get("train") or {}
        return (number if one_sweep else 0, started, number or 0, natural, str(found.config_key),
                str(measure.get("repeat")), str(train.get("seed")), record.to_json(found))

    return order


def _timestamp(text) -> float:
    """Seconds of an ISO time; what has none comes last."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return math.inf


def _memory_kind(rows: list[Row]) -> str:
    """The first kind that every row with any has, or the one that most have."""
    having = {kind: sum(row.spread("memory", kind) is not None for row in rows) for kind in MEMORY_KINDS}
    every = sum(any(row.spread("memory", kind) for kind in MEMORY_KINDS) for row in rows)
    return next((kind for kind in having if having[kind] == every), max(having, key=having.get))


def _fits(row: Row, words: str) -> bool:
    """Whether a row is meant by words: key=value pairs, an experiment's name, or the start of a config_key."""
    def fits(word):
        key, equals, value = word.partition("=")
        if equals:
            return row.facts.get(key) == value
        return word == row.facts["experiment"] or (len(word) >= 4 and any(r.config_key.startswith(word) for r in row.runs))

    return bool(words.split()) and all(map(fits, words.split()))


def _baseline(rows: list[Row], words: str | None) -> Row | None:
    """The row that the others are compared with. Raises Refusal when none fits, or none that does has figures."""
    named = [row for row in rows if row.name == words]
    fitting = rows if words is None else named or [row for row in rows if _fits(row, words)]
    if words is not None and not fitting:
        raise Refusal(f"No job fits the baseline '{words}'. The jobs are: {'; '.join(row.name for row in rows)}.")
    done = [row for row in fitting if row.done]
    if words is not None and not done:
        raise Refusal(f"The baseline '{fitting[0].name}' has no figures: it ended {fitting[0].status}.")
    return done[0] if done else None


# --- files ---------------------------------------------------------------------------------------


def make(folders: list[Path | str], target: Path | str, baseline: str | None = None,
         published: dict[str, dict] | None = None, warn: Callable[[str], None] | None = None) -> list[Path]:
    """Read all records in and below the folders, and write table, CSV and pictures into the folder `target`.

    baseline, published: see `table`. warn: is given a line on each file left out (default: to stderr).
    Returns the paths written. Raises Refusal (no folder, no records, an unknown baseline) or OSError (`target`).
    """
    records, warnings = read_all(folders)
    warn = warn or _to_stderr
    for line in warnings:
        warn(line)
    if not records:
        raise Refusal(f"There are no records in {', '.join(map(str, folders))}.")
    return write(table(records, baseline, published), target, warn)


def write(made: Table, target: Path | str, warn: Callable[[str], None] | None = None) -> list[Path]:
    """Write a table's files and pictures, each whole or not at all. Returns their paths. Raises OSError."""
    from recipes import plots

    try:
        pictures = plots.draw(made)
    except ImportError:
        pictures = {}
        (warn or _to_stderr)("there are no pictures: they need matplotlib (pip install matplotlib).")
    texts = {"results.jsonl": jsonl(made), "results.csv": csv_text(made), "table.md": markdown(made, list(pictures))}
    target = Path(target)
    target.mkdir(parents=True, exist_ok=True)
    return [_write(target / name, content)
            for name, content in ({name: text.encode() for name, text in texts.items()} | pictures).items()]


def _write(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all: a reader never sees half of it, and a full disk leaves the old one."""
    name = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o666 & ~record._umask())
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):  # named after the file that a person knows
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        raise
    return path


def _to_stderr(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def jsonl(made: Table) -> str:
    """Every record, whole, a line each, in the table's order."""
    return "".join(json.dumps(json.loads(record.to_json(run))) + "\n" for row in made.rows for run in row.runs)


def csv_text(made: Table) -> str:
    """A flat line a job, repeats apart. Bytes and seconds as in the record; empty: not to be had."""
    lines = []
    for row in made.rows:
        for run in row.runs:
            line = {"status": run.status, "config_key": run.config_key, **{key: row.label.get(key) for key in made.keys},
                    "measure.repeat": (run.config.get("measure") or {}).get("repeat"),
                    "train.seed": (run.config.get("train") or {}).get("seed")}
            line |= {"first_loss": run.training.losses[0] if run.training.losses else None}
            line |= _flat(run.training) | _flat(run.speed) | _flat(run.memory)
            line |= {f"evaluation_{key}": value for key, value in _flat(run.evaluation or Evaluation(None)).items()}
            line |= {key: run.environment.get(key) for key in ("device_name", "jobs_at_once", "started_at")}
            error = run.error or Error("", "", "")
            lines.append(line | {"error_phase": error.phase, "error_type": error.type,
                                 "error_message": " ".join(error.message.split()), "error_hint": error.hint})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(part) -> dict:
    """The single values of a record's part."""
    return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if not f.type.startswith(("list", "dict"))}


# --- the table for people ------------------------------------------------------------------------


def number(value: float, digits: int = 4) -> str:
    """A number with so many digits that count, without an exponent: 14949, 9.313, 0.0783."""
    if not value:
        return "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def percent(value: float, base: float) -> str:
    """The difference from a base: '+12.3 %'."""
    return f"{(value / base - 1) * 100:+.1f} %".replace("+0.0", "0.0").replace("-0.0", "0.0")


def spread_text(spread: Spread | None, unit: float = 1) -> str:
    """The median, and where the repeats differ the least and the most, in a unit."""
    if spread is None:
        return ""
    median, low, high = (number(value / unit) for value in spread)
    return median if low == high else f"{median} ({low} to {high})"


def difference(made: Table, row: Row, figure: Callable[[Row], Spread | None]) -> str:
    """How far a row's figure is from the baseline's, in per cent; empty where either is missing."""
    mine, base = figure(row), figure(made.baseline) if made.baseline else None
    if row is made.baseline and mine:
        return "baseline"
    return percent(mine.median, base.median) if mine and base and base.median else ""


def columns(made: Table) -> dict[str, list[str]]:
    """The table as people read it: heading -> a text for each row. Empty columns are left out, units are in the headings."""
    unit, size = made.unit
    rows = made.rows

    def each(cell):
        return [cell(row) for row in rows]

    def evaluation(row):
        said = {"loss": number, "accuracy": lambda value: f"{value:.1%}", "perplexity": number}
        found = [(key, row.spread("evaluation", key)) for key in said]
        return ", ".join(f"{key} {said[key](spread.median)}" for key, spread in found if spread)

    def theirs(key, size=1):
        return each(lambda row: number(row.published[key] / size) if row.published.get(key) else "")

    text = made.labels | {
        "runs": each(lambda row: str(len(row.runs))) if any(len(row.runs) > 1 for row in rows) else [],
        "status": each(lambda row: row.status),
        f"{made.memory_name} {unit}": each(lambda row: spread_text(made.memory(row), size)),
        "memory diff.": each(lambda row: difference(made, row, made.memory)),
        f"published device memory {unit}": theirs("device_used_bytes", size),
        "samples/s": each(lambda row: spread_text(made.speed(row))),
        "samples/s diff.": each(lambda row: difference(made, row, made.speed)),
        "published samples/s": theirs("samples_per_second"),
        "step ms": each(lambda row: spread_text(row.spread("speed", "step_seconds_median"), 1e-3)),
        "time s": each(lambda row: spread_text(row.spread("speed", "train_seconds"))),
        "final loss": each(lambda row: spread_text(row.spread("training", "final_loss"))),
        "evaluation": each(evaluation),
        "note": each(lambda row: " ".join(row.notes)),
    }
    return {heading: cells for heading, cells in text.items() if any(cells)}


def remarks(made: Table) -> list[str]:
    """What a reader needs beside the table: what all jobs share, what memory means, the baseline, sources."""
    same = []
    for key in CONTEXT:
        values = list(dict.fromkeys(row.facts.get(key, "null") for row in made.rows))
        if key in PACKAGES or key == "git_revision" or len(values) == 1:
            values = [value for value in values if value != "null"]
            same += [f"{key}={' or '.join(values)}"] if values and key not in made.keys else []
    runs = sum(len(row.runs) for row in made.rows)
    ends = [run.status for row in made.rows for run in row.runs]
    counts = ", ".join(f"{ends.count(status)} {status}" for status in record.STATUSES if status in ends)
    lines = [f"{runs} job{'s' * (runs > 1)}: {counts}."] + [f"The same in all: {', '.join(same)}."] * bool(same)
    if len(made.keys) > COLUMNS_AT_MOST:
        common = " ".join(f"{key}={value}" for key, value in made.common.items() if value not in ("", "null"))
        lines.append(f"A job is named by what sets it apart from the most common: {common}.")
    if any(map(made.memory, made.rows)):
        lines.append(f"{made.memory_name.capitalize()} is {MEMORY_KINDS[made.memory_kind][1]}.")
    if any(len(row.runs) > 1 for row in made.rows):
        lines.append("Repeats of a job are one row: the median (the least to the most).")
    if made.baseline and len(made.rows) > 1:
        lines.append(f"Differences are from the baseline, {made.baseline.name}.")
    sources = dict.fromkeys(str(row.published["source"]) for row in made.rows if row.published.get("source"))
    return lines + [f"Published: {source}" for source in sources]


def markdown(made: Table, pictures: list[str] = ()) -> str:
    """The table, its remarks and links to the pictures, as Markdown that reads well as plain text too."""
    words = {heading: [" ".join(cell.replace("|", "\\|").split()) for cell in cells] for heading, cells in columns(made).items()}
    left = {*made.labels, "status", "evaluation", "note"}
    width = {heading: 0 if heading == "note" else max(map(len, [heading, *cells])) for heading, cells in words.items()}

    def line(texts):
        return "| " + " | ".join(text.ljust(width[h]) if h in left else text.rjust(width[h])
                                 for h, text in zip(words, texts)) + " |"

    rule = "|" + "|".join("-" * (max(width[h], 3) + (2 if h in left else 1)) + ("" if h in left else ":") for h in words) + "|"
    rows = [line(texts) for texts in zip(*words.values())]
    return "\n\n".join(["\n".join(f"- {remark}" for remark in remarks(made)), "\n".join([line(words), rule, *rows]),
                        *(f"![{Path(name).stem}]({name})" for name in pictures)]) + "\n"


def for_screen(folders: list[Path | str], baseline: str | None = None, published: dict[str, dict] | None = None) -> str:
    """The table of all records in and below the folders, as wide as the terminal. Raises Refusal as `make` does."""
    return screen_text(table(read_all(folders)[0], baseline, published))


def screen_text(made: Table, width: int | None = None) -> str:
    """The table for a terminal of so many characters (None: the one at hand; 160 where there is none).

    In a narrow one the less important columns give way, then the label's columns become one.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    if width is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 160
    words = columns(made)
    notes = words.pop("note", [])
    left_out: list[str] = []
    folded = 18  # characters that the label needs at least, once its columns are one

    def lines_of(heading):
        return heading.replace(" ", "\n").replace(".", ".\n").split("\n")

    def fits():
        widths = [folded if heading == "job" else max(map(len, [*lines_of(heading), *cells])) for heading, cells in words.items()]
        return sum(widths) + 2 * len(widths) - 2 <= width

    def drop(headings):
        for heading in headings:
            if not fits() and words.pop(heading, None):
                left_out.append(heading)

    drop(("time s", "evaluation", "step ms", "final loss", "runs", "samples/s diff.", "memory diff."))
    if not fits():
        words = {"job": [row.name for row in made.rows]} | {h: cells for h, cells in words.items() if h not in made.labels}
        drop(("status",))  # the notes below say it of those that are not ok
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for heading in words:
        left = heading in {*made.labels, "job", "status", "evaluation"}
        grid.add_column(Text("\n".join(lines_of(heading)).strip()), justify="left" if left else "right",
                        vertical="bottom", no_wrap=heading != "job", overflow="fold")
    for cells in zip(*words.values()):
        grid.add_row(*map(Text, cells))
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(grid)
    if left_out:
        console.print(Text(f"Not shown, for want of width: {', '.join(left_out)}"))
    for line in remarks(made):
        console.print(Text(line))
    for note in dict.fromkeys(filter(None, notes)):
        having = [row for row, its in zip(made.rows, notes) if its == note]
        names = "all" if len(having) == len(made.rows) else "; ".join(row.name for row in having)
        console.print(Text(f"{having[0].status} ({names}): {note}"))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
