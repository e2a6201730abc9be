"""Efficiencies of the GPU that a folder's runs were measured on, as lines for recipes/foresight/speed/efficiencies.yaml.

    python scripts/fit_efficiencies.py outputs/accuracy

Every second run is kept out of the fit, and the errors on those are what counts. Only runs that ended ok, of one
process, on a GPU of conf/gpu/, without torch.compile are taken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from recipes import config
from recipes.foresight.validation.error_stats import rank_correlation, summary
from recipes.machine import (
    gpu_specs,
    host,
)
from recipes.records import record
from recipes.report import report

FIGURES = ("matmul", "attention", "bandwidth", "kernel_seconds", "host_seconds")


def fits(found: record.Record) -> bool:
    """Whether a record is of a run that tells of a known GPU's speed."""
    told = found.config
    return (
        found.status == "ok"
        and found.recipe != "estimate"
        and found.environment.get("device") == "cuda"
        and found.speed.step_seconds_median is not None
        and not told["compile"]
        and told["parallelism"]["name"] == "single"
        and gpu_specs.find(found.environment["device_name"]) is not None
    )


def measured(found: record.Record):
    """A record as a step to fit on: its configuration is run once more on the fake device, for its operations."""
    from recipes.foresight import simulation
    from recipes.foresight.validation import calibration

    cfg = config.from_dict(found.config)
    cfg.recipe.name = "estimate"
    cfg.gpu = config.from_dict(
        gpu_specs.find(found.environment["device_name"], found.environment["device_memory_bytes"]), config.Gpu
    )
    with tempfile.TemporaryDirectory() as folder:
        tally = simulation.simulate_step(cfg, folder).tally
    return calibration.Measured(found.config_key, tally, cfg.precision.name, found.speed.step_seconds_median)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="holds runs, at any depth")
    records, _ = report.read_all(parser.parse_args(words).folders)
    records = sorted(filter(fits, records), key=lambda found: found.config_key)
    names = {found.environment["device_name"] for found in records}
    if len(records) < 4 or len(names) != 1:
        print(
            f"refused: {len(records)} runs that can be used, on {', '.join(sorted(names)) or 'no known GPU'}: at least "
            "4 of one GPU are needed.",
            file=sys.stderr,
        )
        return 2
    from recipes.foresight.speed import roofline
    from recipes.foresight.validation import calibration

    with ProcessPoolExecutor(host.usable_cores()) as pool:
        steps = list(pool.map(measured, records))
    device = config.from_dict(gpu_specs.find(*names, records[0].environment["device_memory_bytes"]), config.Gpu)
    before = roofline.efficiencies(device.chip)
    after = calibration.fit(steps[::2], device, before)
    for name, chosen in (("fitted on", steps[::2]), ("held out", steps[1::2])):
        for when, reached in (("before", before), ("after", after)):
            found = summary(calibration.errors(chosen, device, reached))
            print(
                f"# {name}, {when}: {found.count} runs, median size {found.median_size:.1%}, worst {found.worst:+.1%}"
            )
    predicted = [
        roofline.predict(step.tally, device, step.precision, reached=after).step_seconds for step in steps[1::2]
    ]
    ranked = rank_correlation(zip(predicted, (step.seconds for step in steps[1::2])))
    print(f"# held out: rank correlation {'none' if ranked is None else format(ranked, '.3f')}")
    lines = {"from": "measured", "runs": list(after.runs)} | {key: getattr(after, key) for key in FIGURES}
    print(yaml.safe_dump({device.chip: lines}, sort_keys=False, default_flow_style=None, width=110), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
