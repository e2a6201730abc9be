"""Which published measurements of time may be fitted on, and which only judge the outcome.

The split was fixed before anything was fitted. Of the training steps every third GPU model in alphabetical order is
held out, so that no constant has seen its board; of the single kernels half of the shapes, by a hash, on every board.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
from pathlib import Path

from checkout import ROOT

FOLDER = ROOT.parent / "shared" / "reference"  # beside the checkout: data files that are no part of it
STEPS = FOLDER / "published_speed.csv"
KERNELS = FOLDER / "kernels"
HARDWARE = FOLDER / "hardware.csv"
MISSING = "shared/reference is not beside the checkout: the published measurements of time lie there"
EVERY = 3
SHAPE = ("B", "M", "N", "K", "H")  # columns of a kernel's file that make up its shape


def board(name: str) -> str:
    """A GPU model as one name: `NVIDIA_H100_PCIe [H100_80GB_PCIe5_v1]` and `NVIDIA H100 PCIe` are the same."""
    return " ".join(name.split("[")[0].replace("_", " ").split())


def held_out_boards(names: list[str]) -> list[str]:
    """Every third GPU model of the list in alphabetical order: the third, the sixth and so on."""
    return sorted({board(name) for name in names})[EVERY - 1 :: EVERY]


def steps() -> list[dict[str, str]]:
    """The rows of published_speed.csv with two more columns: `board`, and `held_out` (yes or no)."""
    with STEPS.open(newline="") as file:
        found = list(csv.DictReader(file))
    held_out = held_out_boards([row["gpu"] for row in found])
    return [
        row | {"board": board(row["gpu"]), "held_out": "yes" if board(row["gpu"]) in held_out else "no"}
        for row in found
    ]


def is_held_out_shape(operation: str, shape: tuple[int, ...]) -> bool:
    """Whether a kernel's shape is held out, on every GPU. shape: the numbers of its columns, in the order of SHAPE."""
    text = ",".join([operation, *map(str, shape)])
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()[0] % 2 == 1


@functools.cache
def kernels(name: str) -> list[dict[str, str]]:
    """The rows of kernels/test_<name>.csv.gz with `board` and `held_out`. name: linear, bmm, elem, softmax or ln."""
    with gzip.open(Path(KERNELS, f"test_{name}.csv.gz"), "rt", newline="") as file:
        found = list(csv.DictReader(file))
    return [
        row
        | {
            "board": board(row["Device"]),
            "held_out": "yes" if is_held_out_shape(row["OPName"], shape_of(row)) else "no",
        }
        for row in found
    ]


def shape_of(row: dict[str, str]) -> tuple[int, ...]:
    """The shape of a kernel's row."""
    return tuple(int(float(row[column])) for column in SHAPE if row.get(column))
