"""Published figures, in the form that `rows.table(published=...)` takes."""

import csv
import re
from typing import Any

from legroom import paths
from legroom.records.record import Record
from legroom.units import MIB

GUIDE_FILE = paths.PACKAGE / "report" / "guide_v100.csv"
GUIDE_SOURCE = "the guide, V100 16 GB, bert-large-uncased, January 2022"
GUIDE_BASELINE = "vanilla"  # what the guide compares its other rows with
# The file's columns that describe a row -> the keys of the configuration. A job that changes one of them
# (`+experiment/guide=vanilla precision=bf16`) is not what the guide measured.
GUIDE_SETTINGS = {
    "precision": "precision",
    "optim": "optim",
    "checkpointing": "checkpointing",
    "per_device_batch": "batch.per_device",
    "accumulation_steps": "accumulation.steps",
}


def guide() -> dict[str, dict]:
    """The guide's table: "experiment=vanilla recipe=trainer" -> its figures.

    Bytes are those of the whole device. A figure that a row does not have is left out.
    """
    published = {}
    for line in csv.DictReader(GUIDE_FILE.read_text().splitlines()):
        figures: dict[str, Any] = {
            "source": GUIDE_SOURCE,
            "where": " ".join(f"{key}={line[name]}" for name, key in GUIDE_SETTINGS.items()),
        }
        if line["device_used_mb"]:
            figures["device_used_bytes"] = int(line["device_used_mb"]) * MIB  # NVML's 'MB' are MiB
        if line["samples_per_second"]:
            figures["samples_per_second"] = float(line["samples_per_second"])
        published[f"experiment={line['name'].replace('+', '_')} recipe={line['recipe']}"] = figures
    return published


def guide_experiments() -> list[str]:
    """The names of the guide's experiments in the order of its table, the baseline first."""
    names = [conditions.split()[0].removeprefix("experiment=") for conditions in guide()]
    return list(dict.fromkeys([GUIDE_BASELINE, *names]))


def of_guide(found: Record) -> bool:
    """Whether a record was made by `+experiment/guide=...`."""
    return any(re.match(r"\+{0,2}experiment/guide=", override) for override in found.overrides)
