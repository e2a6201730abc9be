"""The command `scripts/evidence/fit_efficiencies.py --steps`: what published kernels do not tell, from published steps.

Fitted on the steps whose GPU model is not held out (held_out.py), all constants together, by coordinate descent on the
mean size of the logarithmic error. The largest rates of products in 16 bits are read from hardware.csv. Printed as
YAML, with the errors on both parts of the steps.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
import re
import statistics
from dataclasses import dataclass

import coordinate_descent
import held_out
import published_speed
import yaml
from error_stats import quantile

from legroom.config import Gpu
from legroom.estimator.speed import efficiencies, roofline
from legroom.estimator.speed.efficiencies import Efficiencies
from legroom.estimator.speed.operations import Tally

HALF = ("fp16", "bf16")
TENSOR_CORES = ("tf32", *HALF)
STRIDES = (0.2, 0.005)  # of a value's logarithm
LARGEST_RATE = "max achievable matmul"  # hardware.csv, begin of the quantity
THEORY = re.compile(r"theory (\d+)")  # hardware.csv, in the conditions: the peak in TFLOP/s


@dataclass(frozen=True)
class Constant:
    """A value to fit. key, dtypes: of Efficiencies, the same value for each dtype. chips: that have it; (): all."""

    key: str
    dtypes: tuple[str, ...]
    start: float
    chips: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.key} {self.dtypes[0]}, {' and '.join(self.chips) or 'all'}"


CONSTANTS = (
    Constant("product_bandwidth", HALF, 0.6),
    Constant("product_bandwidth", ("tf32",), 0.6),
    Constant("matmul", TENSOR_CORES, 0.7, ("A10",)),
    Constant("matmul", ("fp16",), 0.7, ("RTX 8000",)),
    Constant("matmul", ("fp32",), 0.8, ("RTX 8000",)),
    Constant("sustained", ("fp32",), 1.0, ("V100",)),
    Constant("sustained", ("fp32",), 1.0, ("L4",)),
)


@dataclass(frozen=True)
class Step:
    """A published step on a GPU."""

    gpu: Gpu
    tally: Tally
    precision: str
    seconds: float
    held_out: bool


def steps() -> list[Step]:
    """The steps of published_speed.csv; takes some twenty seconds."""
    import published_steps

    return [
        Step(
            published_speed.gpu_of(row["board"]),
            *published_steps.step_of(row),
            float(row["seconds_per_step"]),
            row["held_out"] == "yes",
        )
        for row in held_out.steps()
    ]


def with_values(gpu: Gpu, values: tuple[float, ...]) -> Efficiencies:
    """The efficiencies of a GPU with the values of CONSTANTS that it has."""
    reached = efficiencies.of_gpu(gpu)
    for constant, value in zip(CONSTANTS, values):
        if not constant.chips or gpu.chip in constant.chips:
            changed = getattr(reached, constant.key) | dict.fromkeys(constant.dtypes, value)
            reached = dataclasses.replace(reached, **{constant.key: changed})
    return reached


def errors(chosen: list[Step], values: tuple[float, ...]) -> list[float]:
    """The logarithms of predicted over published seconds."""
    return [
        math.log(
            roofline.predict(step.tally, step.gpu, step.precision, reached=with_values(step.gpu, values)).step_seconds
            / step.seconds
        )
        for step in chosen
    ]


def fit(chosen: list[Step]) -> tuple[float, ...]:
    """The values of CONSTANTS that predict these steps best."""

    def loss(values: tuple[float, ...]) -> float:
        return statistics.mean(map(abs, errors(chosen, values)))

    def scaled(values: tuple[float, ...], index: int, factor: float) -> tuple[float, ...]:
        return (*values[:index], values[index] * factor, *values[index + 1 :])

    start = tuple(constant.start for constant in CONSTANTS)
    return coordinate_descent.minimise(loss, start, range(len(start)), scaled, STRIDES)


def left_out(chosen: list[Step]) -> dict[tuple[str, str], float]:
    """(board, precision) -> the mean logarithmic error of its steps, where the constants were fitted without the board.

    Of boards that have no constant of their own. So forms of the model are compared without the rows that judge it.
    """
    own = {chip for constant in CONSTANTS for chip in constant.chips}
    found = {}
    for name in {step.gpu.device_name: None for step in chosen if step.gpu.chip not in own}:
        values = fit([step for step in chosen if step.gpu.device_name != name])
        for precision in {step.precision: None for step in chosen if step.gpu.device_name == name}:
            its = [step for step in chosen if (step.gpu.device_name, step.precision) == (name, precision)]
            found[name, precision] = statistics.mean(errors(its, values))
    return found


@functools.cache
def largest_rates() -> dict[str, float]:
    """What products in bf16 reach of the peak, by the names of hardware.csv, as published (MAMF)."""
    with held_out.HARDWARE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"].startswith(LARGEST_RATE)]
    found = {}
    for row in rows:
        theory = THEORY.search(row["conditions"])
        if theory is not None and row["dtype"] == "bf16":
            found[row["gpu"]] = float(row["value"]) / float(theory[1])
    return found


def run() -> int:
    """Fit, and print the values, the errors on both parts of the steps, and the published largest rates."""
    if not held_out.STEPS.exists():
        print(f"refused: {held_out.MISSING}.")
        return 2
    known = steps()
    chosen = [step for step in known if not step.held_out]
    values = fit(chosen)
    for kept, name in ((False, "fitted on"), (True, "held out")):
        sizes = [abs(math.expm1(error)) for error in errors([one for one in known if one.held_out == kept], values)]
        print(f"# {name}: median size {statistics.median(sizes):.1%}, nine of ten {quantile(sizes, 0.9):.1%}")
    print(yaml.safe_dump({one.name: round(value, 3) for one, value in zip(CONSTANTS, values)}, sort_keys=False))
    sizes = {board: abs(error) for board, error in left_out(chosen).items()}
    print(
        f"# fitted without the board: mean size of the logarithmic error {statistics.mean(sizes.values()):.1%}, worst",
        end=" ",
    )
    print(", ".join(max(sizes, key=lambda board: sizes[board])))
    print(yaml.safe_dump({"matmul bf16, published": {name: round(rate, 3) for name, rate in largest_rates().items()}}))
    return 0
