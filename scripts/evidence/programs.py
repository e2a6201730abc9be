"""Run public training scripts by `legroom check` and `legroom measure`, and write docs/results/programs.md's table.

    python scripts/evidence/programs.py CHECKOUTS --work FOLDER [--only sft,dpo] [--do measure,check_cpu] [--table FILE]

CHECKOUTS holds the repositories by their names (trl, accelerate, ...), at the commits that docs/results/programs.md
lists. What a script trains on is made in FOLDER (program_data.py), once. Each result is kept in FOLDER/results as JSON,
and the table is written of those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from checkout import ROOT

from program_cases import CASES, Case
from program_cases_further import FURTHER
from program_cases_more import MORE
from program_makers import MAKERS
from program_makers_more import MORE_MAKERS

GPU = "a100_80gb"
ALIKE = (
    "mnist",
    "vae",
    "gat",
    "dcgan",
    "siamese",
    "imagenet",
    "makemore",
    "super_resolution",
    "unet",
    "wgan_gp",
    "kfold",
)
DOES = {
    "measure": ("measure", "--no-prediction", "--offline", "--json", "--seconds", "240"),
    "check_cpu": ("check", "--device", "cpu", "--offline", "--json", "--seconds", "240"),
    "check_gpu": ("check", "--gpu", GPU, "--offline", "--json", "--seconds", "240"),
}


def prepare(case: Case, checkouts: Path, work: Path) -> Path:
    """The folder in which a case runs, with all that it needs."""
    folder = work / case.name
    if (folder / ".ready").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in case.copied:
        source = checkouts / case.repository / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    for need in case.needs:
        if not (need.startswith("..") and (folder / need).exists()):
            (MAKERS | MORE_MAKERS)[need](folder)
    (folder / ".ready").touch()
    return folder


def typed_words(case: Case, does: str, checkouts: Path) -> list[str]:
    """The command line of a case, for the device on which it runs."""
    more = case.gpu if does == "check_gpu" else case.cpu
    return f"{case.command} {more}".format(repository=checkouts / case.repository).split()


def run(case: Case, does: str, checkouts: Path, work: Path) -> dict[str, Any]:
    """One command on one case: its exit code, its figures, what it said, and its seconds."""
    folder = prepare(case, checkouts, work)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "recipes"),
        "HF_HOME": str(folder),
        "HF_HUB_CACHE": str(folder / "hub"),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }
    environment |= {name: value.format(folder=folder) for name, value in case.environment.items()}
    typed = typed_words(case, does, checkouts)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "legroom", *DOES[does], "--", *typed],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    found = json.loads(done.stdout) if done.stdout.startswith("{") else None
    return {"code": done.returncode, "found": found, "said": done.stderr[-3000:], "seconds": seconds}


# --- the table ------------------------------------------------------------------------------------------


def peaks(results: dict[str, dict[str, Any]]) -> tuple[int | None, int | None, int | None]:
    """Live peaks in bytes: measured, predicted for the CPU, and for the GPU."""

    def of(does: str) -> Any:
        found = results.get(does, {}).get("found") or {}
        return found if does == "measure" else next((each for each in found.values() if each), {})

    return (
        of("measure").get("peak_tensor_bytes"),
        of("check_cpu").get("tensor_bytes"),
        of("check_gpu").get("tensor_bytes"),
    )


def verdict(result: dict[str, Any] | None) -> str:
    """What `check --gpu` said of a case."""
    if result is None:
        return ""
    found = result["found"] or {}
    if found:
        return f"{next(iter(found.values()))['verdict']}"
    said = [line for line in result["said"].splitlines() if line.startswith(("no verdict", "refused"))]
    return (said[-1] if said else f"exit code {result['code']}").replace("|", " ")[:160]


def table(work: Path) -> str:
    """The results that are there, in Markdown, with the median of the differences."""
    lines = [
        f"| script | verdict on {GPU} | measured live peak on the CPU, MiB | check --device cpu | difference | s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    differences = []
    for case in [*CASES, *FURTHER, *MORE]:
        files = {does: work / "results" / f"{case.name}.{does}.json" for does in DOES}
        results = {does: json.loads(file.read_text()) for does, file in files.items() if file.exists()}
        measured, predicted, _ = peaks(results)
        difference = predicted / measured - 1 if measured and predicted else None
        differences += [abs(difference)] if difference is not None else []
        cells = [
            case.name,
            verdict(results.get("check_gpu")),
            f"{measured / 2**20:.2f}" if measured else "",
            f"{predicted / 2**20:.2f}" if predicted else "",
            "" if difference is None else f"{difference:+.2%}",
            f"{results['check_gpu']['seconds']:.0f}" if "check_gpu" in results else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if differences:
        near = sum(each <= 0.01 for each in differences)
        lines += ["", f"{near} of {len(differences)} within 1 %; median {statistics.median(differences):.2%}."]
    return "\n".join(lines) + "\n"


def devices_table(work: Path) -> str:
    """What is live at the peak on the fake GPU against the measured CPU, of scripts in fp32 whose kernels are alike."""
    parts = ("parameters", "gradients", "optimizer", "activations", "other")
    lines = [
        f"| script | measured on the CPU | predicted for {GPU} | peak in | {' | '.join(parts)} |",
        f"| --- | --- | --- | --- | {' | '.join(['---'] * len(parts))} |",
    ]
    for name in ALIKE:
        files = [work / "results" / f"{name}.{does}.json" for does in ("measure", "check_gpu")]
        if not all(file.exists() for file in files):
            continue
        measured, predicted = (json.loads(file.read_text())["found"] or {} for file in files)
        predicted = next(iter(predicted.values()), None)
        if not measured or not predicted:
            continue
        phases = dict.fromkeys((measured["peak_phase"], predicted["peak_phase"]))
        cells = [name, f"{measured['peak_tensor_bytes']:,}", f"{predicted['tensor_bytes']:,}", ", ".join(phases)]
        cells += [f"{predicted['parts'][part] - measured[f'{part}_bytes']:+,}" for part in parts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--do", default=",".join(DOES))
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    only = set(filter(None, asked.only.split(",")))
    (asked.work / "results").mkdir(parents=True, exist_ok=True)
    for case in [*CASES, *FURTHER, *MORE]:
        for does in asked.do.split(","):
            if only and case.name not in only or not does:
                continue
            result = run(case, does, asked.checkouts.resolve(), asked.work.resolve())
            (asked.work / "results" / f"{case.name}.{does}.json").write_text(json.dumps(result))
            last = (result["said"].strip().splitlines() or [""])[-1]
            print(f"{case.name} {does}: {result['code']} in {result['seconds']:.0f} s {last[:200]}", flush=True)
    made = f"{table(asked.work)}\n{devices_table(asked.work)}"
    print(made)
    if asked.table:
        asked.table.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
