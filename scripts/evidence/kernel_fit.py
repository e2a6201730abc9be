"""The command `scripts/evidence/fit_efficiencies.py --kernels`: efficiencies in fp32 from the published single kernels.

Fitted on the shapes that are not held out (held_out.py), for each board on its own, by coordinate descent on the mean
size of the logarithmic error; printed as YAML, with the errors on the shapes that are.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import coordinate_descent
import held_out
import published_speed
import yaml
from error_stats import quantile

from legroom.estimator.speed import roofline
from legroom.estimator.speed.efficiencies import Efficiencies

# What each class of kernels tells: (key, its part or None) of Efficiencies. Values stay within their bounds: products
# that wait for memory alone are few in fp32, so that the fit alone would put other causes there.
PRODUCTS = (
    ("matmul", "fp32"),
    ("batched", "fp32"),
    ("tile_depth", "fp32"),
    ("sharpness", "fp32"),
    ("product_bandwidth", "fp32"),
)
FITS = {
    ("linear", "bmm"): PRODUCTS,
    ("elem",): (("bandwidth", "elementwise"),),
    ("softmax",): (("bandwidth", "reduction"),),
    ("ln",): (("bandwidth", "normalisation"),),
}
BOUNDS = {
    "sharpness": (1.0, 8.0),
    "bandwidth": (0.05, 0.95),
    "product_bandwidth": (0.6, 0.95),
    "batched": (0.5, 2.0),
    "tile_depth": (1.0, 512.0),
    "matmul": (0.05, 1.0),
}
STRIDES = (0.3, 0.01)  # of a value's logarithm
EVERY = 3  # of the products that are fitted on: enough, and three times as fast

Kernel = tuple[Any, float]  # the operation, its published seconds


def kernels_of(board: str, names: tuple[str, ...], kept: bool) -> list[list[Kernel]]:
    """The kernels of a board, a list for each class. kept: those that are held out, or those to fit on."""
    found = []
    for name in names:
        rows = [row for row in held_out.kernels(name) if row["board"] == board and (row["held_out"] == "yes") == kept]
        found.append([(published_speed.operation_of(row), float(row["Latency"]) / 1000) for row in rows])
    return [kernels for kernels in found if kernels]


def errors(kernels: list[Kernel], board: str, reached: Efficiencies) -> list[float]:
    """The logarithms of predicted over published seconds."""
    gpu = published_speed.gpu_of(board)
    return [
        math.log((published_speed.EVENT_PAIR_SECONDS + roofline.device_seconds(one, gpu, "fp32", reached)) / seconds)
        for one, seconds in kernels
    ]


def fit(board: str, names: tuple[str, ...], start: Efficiencies) -> Efficiencies:
    """The efficiencies that predict a board's kernels of these classes best; each class counts the same."""
    classes = [kernels[::EVERY] if len(kernels) > 500 else kernels for kernels in kernels_of(board, names, False)]

    def loss(reached: Efficiencies) -> float:
        return statistics.mean(statistics.mean(map(abs, errors(one, board, reached))) for one in classes)

    return coordinate_descent.minimise(loss, start, FITS[names], scaled, STRIDES)


def scaled(reached: Efficiencies, value_of: tuple[str, str | None], factor: float) -> Efficiencies:
    """The efficiencies with one value multiplied. value_of: its key, and its part or None."""
    key, part = value_of
    before, (least, most) = getattr(reached, key), BOUNDS[key]
    value = min(max((before if part is None else before[part]) * factor, least), most)
    return dataclasses.replace(reached, **{key: value if part is None else before | {part: value}})


def run() -> int:
    """Fit every board, and print the values and the errors on the held-out shapes. Returns the exit code."""
    if not held_out.KERNELS.exists():
        print(f"refused: {held_out.MISSING}.")
        return 2
    boards = sorted({row["board"] for row in held_out.kernels("linear")})
    for board in boards:
        gpu = published_speed.gpu_of(board)
        reached = published_speed.single_kernels(gpu)
        for names in FITS:
            if kernels_of(board, names, False):
                reached = fit(board, names, reached)
        values = {
            key: {part: round(getattr(reached, key)[part], 3)} if part else round(getattr(reached, key), 2)
            for key, part in (pair for pairs in FITS.values() for pair in pairs)
            if key != "bandwidth"
        }
        values["bandwidth"] = {
            part: round(reached.bandwidth[part], 3) for part in ("elementwise", "reduction", "normalisation")
        }
        for name in published_speed.KERNEL_CLASSES:
            for kernels in kernels_of(board, (name,), True):
                sizes = [abs(math.expm1(error)) for error in errors(kernels, board, reached)]
                print(f"# {name}: median size {statistics.median(sizes):.1%}, nine of ten {quantile(sizes, 0.9):.1%}")
        print(yaml.safe_dump({board: values}, default_flow_style=None, width=110), flush=True)
    return 0
