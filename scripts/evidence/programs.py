"""Run public training scripts by `legroom check` and `legroom measure`, and write docs/results/programs.md's table.

    python scripts/evidence/programs.py CHECKOUTS --work FOLDER --environment ENVIRONMENT [--only sft,dpo]
        [--do check,measure] [--table FILE] [--before COMMAND]

CHECKOUTS holds the repositories by their names (trl, accelerate, ...), at the commits that docs/results/programs.md
lists. ENVIRONMENT is the virtual environment of the scripts, with a CUDA build of torch. What a script trains on is
made in FOLDER (program_data.py), once. Each result is kept in FOLDER/results as JSON, and the table is written of those
that are there. `measure` runs on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
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
DOES = {
    "check": ("check", "--gpu", GPU, "--json", "--seconds", "600"),
    "measure": ("measure", "--no-prediction", "--json", "--seconds", "600"),
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
    more = case.gpu if does == "check" else case.cpu
    return f"{case.command} {more}".format(repository=checkouts / case.repository).split()


def run(case: Case, does: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One command on one case: its exit code, its figures, what it said, and its seconds."""
    checkouts, work = asked.checkouts.resolve(), asked.work.resolve()
    folder = prepare(case, checkouts, work)
    environment = os.environ | {
        "HF_HOME": str(folder),
        "HF_HUB_CACHE": str(folder / "hub"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{asked.environment.absolute() / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(asked.environment.absolute()),
    }
    environment |= {name: value.format(folder=folder) for name, value in case.environment.items()}
    typed = typed_words(case, does, checkouts)
    legroom = f"import sys; sys.path.insert(0, {str(ROOT / 'recipes')!r}); sys.argv[0] = 'legroom'"
    legroom += "; from legroom.cli.commands import main; sys.exit(main())"
    start = time.perf_counter()
    done = subprocess.run(
        [*shlex.split(asked.before), sys.executable, "-c", legroom, *DOES[does], "--", *typed],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    found = json.loads(done.stdout) if done.stdout.startswith("{") else None
    return {"code": done.returncode, "found": found, "said": done.stderr[-3000:], "seconds": seconds}


# --- the table ------------------------------------------------------------------------------------------


def figures(result: dict[str, Any] | None) -> dict[str, Any]:
    """The figures of a check; of a measurement; or none."""
    found = (result or {}).get("found") or {}
    return found.get(GPU, found)


def verdict(result: dict[str, Any] | None) -> str:
    """What `check` said of a case."""
    if result is None:
        return ""
    found = figures(result)
    if "verdict" in found:
        return found["verdict"]
    return str(found.get("error", f"exit code {result['code']}")).replace("|", " ")[:160]


def table(work: Path) -> str:
    """The results that are there, in Markdown."""
    lines = [
        f"| script | verdict on {GPU} | device, MiB | reserved | tensors | measured on the CPU |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in [*CASES, *FURTHER, *MORE]:
        files = {does: work / "results" / f"{case.name}.{does}.json" for does in DOES}
        results = {does: json.loads(file.read_text()) for does, file in files.items() if file.exists()}
        checked, measured = figures(results.get("check")), figures(results.get("measure"))
        if "check" not in results:
            continue
        cells = [
            case.name,
            verdict(results.get("check")),
            _mib(checked.get("device_used_bytes"), 0),
            _mib(checked.get("reserved_bytes"), 0),
            _mib(checked.get("tensor_bytes"), 2),
            _mib(measured.get("tensor_bytes"), 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mib(size: int | None, digits: int) -> str:
    return "" if size is None else f"{size / 2**20:,.{digits}f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--before", default="", help="a command that starts each of the runs, as nice does")
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
            result = run(case, does, asked)
            (asked.work / "results" / f"{case.name}.{does}.json").write_text(json.dumps(result))
            last = (result["said"].strip().splitlines() or [""])[-1]
            print(f"{case.name} {does}: {result['code']} in {result['seconds']:.0f} s {last[:200]}", flush=True)
    made = table(asked.work)
    print(made)
    if asked.table:
        asked.table.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
