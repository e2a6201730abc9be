"""The command `scripts/fit_efficiencies.py`: fit a GPU's efficiencies on measured runs, and print them as YAML."""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import yaml

from legroom import config
from legroom.foresight import simulation
from legroom.foresight.speed import efficiencies, roofline
from legroom.foresight.validation import calibration
from legroom.foresight.validation.error_stats import rank_correlation, summary
from legroom.machine import gpu_specs, host
from legroom.records.record import Record
from legroom.report import read

FITTED = ("matmul", "attention", "bandwidth", "kernel_seconds", "host_seconds")
LEAST_RUNS = 4


def is_usable(run: Record) -> bool:
    """Whether a record is of a measured run of one process on a GPU of conf/gpu/, without torch.compile."""
    return (
        run.status == "ok"
        and run.recipe != "estimate"
        and run.environment.get("device") == "cuda"
        and run.speed.step_seconds_median is not None
        and not run.config["compile"]
        and run.config["parallelism"]["name"] == "single"
        and gpu_specs.find(run.environment["device_name"]) is not None
    )


def measured_step(run: Record) -> calibration.MeasuredStep:
    """A record as a step to fit on: its configuration runs again on the fake device, for its operations."""
    cfg = config.from_dict(run.config)
    cfg.recipe.name = "estimate"
    cfg.gpu = gpu_of(run)
    with tempfile.TemporaryDirectory() as folder:
        tally = simulation.simulate_step(cfg, folder).tally
    assert run.speed.step_seconds_median is not None, "is_usable"
    return calibration.MeasuredStep(run.config_key, tally, cfg.precision.name, run.speed.step_seconds_median)


def gpu_of(run: Record) -> config.Gpu:
    """The figures of the GPU that a run was measured on."""
    found = gpu_specs.find(run.environment["device_name"], run.environment["device_memory_bytes"])
    assert found is not None, "is_usable"
    return config.from_dict(found, config.Gpu)


def run(folders: list[Path]) -> int:
    """Fit on every second run in the folders, print the errors on the fitted and on the other runs, and the YAML.

    Returns the exit code: 2 where there are fewer than 4 usable runs, or runs on several GPUs.
    """
    records, _ = read.read_all(folders)
    records = sorted(filter(is_usable, records), key=lambda record: record.config_key)
    names = {record.environment["device_name"] for record in records}
    if len(records) < LEAST_RUNS or len(names) != 1:
        print(
            f"refused: {len(records)} runs that can be used, on {', '.join(sorted(names)) or 'no known GPU'}: at least "
            f"{LEAST_RUNS} of one GPU are needed.",
            file=sys.stderr,
        )
        return 2
    with ProcessPoolExecutor(host.usable_cores()) as pool:
        steps = list(pool.map(measured_step, records))
    gpu = gpu_of(records[0])
    before = efficiencies.of_gpu(gpu)
    after = calibration.fit(steps[::2], gpu, before)
    for name, chosen in (("fitted on", steps[::2]), ("held out", steps[1::2])):
        for when, reached in (("before", before), ("after", after)):
            total = summary(calibration.errors(chosen, gpu, reached))
            assert total is not None, "at least 4 runs"
            print(
                f"# {name}, {when}: {total.count} runs, median size {total.median_size:.1%}, worst {total.worst:+.1%}"
            )
    predicted = [roofline.predict(step.tally, gpu, step.precision, reached=after).step_seconds for step in steps[1::2]]
    correlation = rank_correlation(zip(predicted, (step.seconds for step in steps[1::2])))
    print(f"# held out: rank correlation {'none' if correlation is None else format(correlation, '.3f')}")
    values = {"from": "measured", "runs": list(after.runs)} | {key: getattr(after, key) for key in FITTED}
    print(yaml.safe_dump({gpu.chip: values}, sort_keys=False, default_flow_style=None, width=110), end="")
    return 0
