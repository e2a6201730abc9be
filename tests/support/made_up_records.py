"""Made-up records, and the command that reports on them."""

from __future__ import annotations

import copy
import functools
import itertools
import subprocess
import sys

import yaml
from conftest import CONF, ROOT

from legroom import config
from legroom.levers.accumulation import rules as accumulation
from legroom.machine import host
from legroom.options import train
from legroom.records import record, record_file
from legroom.records.record import Error, Memory, Record, Speed, Training
from legroom.report import read
from legroom.units import MIB

PARTS = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "other_bytes")
OOM = Error("backward", "OutOfMemoryError", "CUDA out of memory. A | B\nmore lines", "Try precision=bf16.")


def read_all(folders) -> tuple[list[Record], list[str]]:
    """Every record in and below the folders, and a warning for each file that is left out."""
    found, warnings = read.read_with_folders(folders)
    return [record for record, _ in found], warnings


@functools.cache
def page(name):
    return yaml.safe_load((CONF / f"{name}.yaml").read_text())


def configuration(*overrides: str) -> dict:
    """A resolved configuration as records hold it, from the menus, without Hydra."""
    values = copy.deepcopy(page("config"))
    chosen = {key: value for entry in values.pop("defaults") if isinstance(entry, dict) for key, value in entry.items()}
    del values["hydra"]
    typed = dict(override.split("=", 1) for override in overrides)
    groups = {group: copy.deepcopy(page(f"{group}/{typed.pop(group, chosen[group])}")) for group in config.GROUPS}
    values |= groups
    for key, value in typed.items():
        section, _, name = key.partition(".")
        node, name = (values[section], name) if name else (values, section)
        node[name] = yaml.safe_load(value)
    cfg = host.configuration(values)
    assert not train.resolve(cfg) and not accumulation.resolve(cfg)
    return config.to_dict(cfg)


def job(
    *typed: str, memory=100 * MIB, speed=10.0, status="ok", error=None, overrides=(), device="cpu", **environment
) -> Record:
    """A record. memory: peak of live tensors, and of the device where it is cuda; speed: samples per second."""
    values = configuration(*typed)
    described = {
        "versions": {"torch": "2.11.0"},
        "device": device,
        "device_name": device.upper(),
        "git_revision": "abc",
    } | environment
    made = Record(
        values["recipe"]["name"],
        list(overrides),
        values,
        record.config_key(values, described["versions"]),
        described,
        status,
        error=error,
    )
    if status == "ok":
        made.training = Training(2, 16, 512, [0.7, 0.5], 0.5)
        made.speed = Speed(0, 5, 0.8, 0.7, 0.9, speed, 320.0, 10**9, train_seconds=1.6)
        made.memory = Memory(*(memory // 5 for _ in PARTS), peak_tensor_bytes=memory // 5 * 5, peak_phase="backward")
        if device == "cuda":
            made.memory.peak_reserved_bytes, made.memory.device_used_bytes = memory + 10 * MIB, memory + 500 * MIB
    return made


def put(folder, records):
    """Write each record into a folder of its own."""
    for i, each in enumerate(records):
        run_folder = folder / f"{each.config_key}-{i}"
        run_folder.mkdir(parents=True)
        record_file.write(each, run_folder)
    return folder


def sixty() -> list[Record]:
    """A sweep of sixty jobs, five of them out of memory; many with the same memory."""
    made = []
    for n, (precision, optim, steps, checkpointing) in enumerate(
        itertools.product(
            ("fp32", "bf16", "tf32"),
            ("adamw", "adafactor", "adam8bit", "sgd", "adamw_fused"),
            ("none", "x4"),
            ("none", "full"),
        )
    ):
        oom = n % 12 == 5
        made.append(
            job(
                f"precision={precision}",
                f"optim={optim}",
                f"accumulation={steps}",
                f"checkpointing={checkpointing}",
                memory=(1000 + n % 9 * 100) * MIB,
                speed=10 + n % 13 * 0.8,
                job_number=n,
                status="oom" if oom else "ok",
                error=OOM if oom else None,
            )
        )
    return made


def texts_of(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")) if text.get_text()]


def run_report(*argv, cwd) -> subprocess.CompletedProcess:
    """The finished command `scripts/report.py`."""
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), *map(str, argv)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)
