"""Published runs, repeated on the emulated GPU with the versions that they were published with.

    python scripts/evidence/published_check.py SET PYTHON FOLDER [--only TEXT] [--again]
    python scripts/evidence/published_check.py SET estimates FOLDER [--only TEXT] [--again]
    python scripts/evidence/published_check.py page

SET: one of published_check_sets.py, which says what FOLDER holds. PYTHON: of an environment with the set's versions and
a CUDA build of torch, of which the wheel alone is enough: NVIDIA's libraries are not needed. Each run is kept in
docs/results/published_check.jsonl as it ends, so that a list that was stopped goes on where it was, and
docs/results/published_check.md is written from what is kept. `estimates`: what `recipe=estimate` says of those runs
that were repeated and can be typed, with the libraries of this checkout.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checkout import ROOT  # isort: skip (it puts tests/tools on the path)
import oracle
from markdown_table import markdown
from published_check_sets import GIB, SETS, Run, Set

from legroom.config import Gpu
from legroom.estimator.cards import gpu_of
from legroom.script_check import process

PAGE = ROOT / "docs" / "results" / "published_check.md"
KEPT = PAGE.with_suffix(".jsonl")
APART = 0.02  # from which on a difference is explained
HEAD = """# Published runs on the emulated GPU

Runs that others measured on a GPU and published with their versions and settings, repeated with the same versions on
the [emulated GPU](../emulated_gpu.md), without any of NVIDIA's libraries, by
`python scripts/evidence/published_check.py`. Weights and tokens are random. Memory is in GiB. Where a run can be typed,
`recipe=estimate` stands beside it: this repository's own step, with its libraries and not the run's.
"""


class Runner:
    """A process that measures runs of one set on one emulated card."""

    def __init__(self, script: str, python: Path, gpu: Gpu):
        self._folder = tempfile.TemporaryDirectory()
        environment = oracle.device_environment(python, gpu, 1, self._folder.name)
        environment["PYTHONPATH"] = f"{process.INSIDE}:{environment['PYTHONPATH']}".rstrip(":")
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name(script)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def figures(self, arguments: tuple[str, ...]) -> dict[str, Any]:
        """The figures of a run, or its `error`. Raises RuntimeError where the process ends."""
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of the card has ended")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()


def check_versions(python: Path, versions: dict[str, str]) -> None:
    """Ends the program where an environment has other versions than the runs were published with."""
    code = "import json, sys; from importlib.metadata import version; print(json.dumps([*map(version, sys.argv[1:])]))"
    done = subprocess.run([python, "-c", code, *versions], check=True, stdout=subprocess.PIPE, text=True)
    for (library, version), found in zip(versions.items(), json.loads(done.stdout), strict=True):
        if found.partition("+")[0] != version:
            sys.exit(f"{python} has {library} {found}; these runs had {version}.")


def kept() -> dict[tuple[str, str], dict[str, Any]]:
    """The runs that were repeated, by set and name."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["set"], row["run"]): row for row in rows}


def keep(row: dict[str, Any]) -> None:
    rows = kept()
    rows[row["set"], row["run"]] = row
    part = KEPT.with_suffix(".part")
    part.write_text("".join(json.dumps(each) + "\n" for each in rows.values()))
    os.replace(part, KEPT)


# --- the page --------------------------------------------------------------------------------------


def errors(rows: list[dict[str, Any]], figure: str) -> list[float]:
    """By how much the emulated figures differ, as shares of the published ones."""
    return [row["emulated_bytes"][figure] / row["published_bytes"][figure] - 1 for row in rows]


def summary(rows: list[dict[str, Any]], figure: str) -> str:
    sizes = [abs(error) for error in errors(rows, figure)]
    more = sum(size > APART for size in sizes)
    line = f"{len(sizes)} runs: median {statistics.median(sizes):.2%}, at most {max(sizes):.2%}"
    if more:
        line += f", {more} of them more than {APART:.0%}"
    return line


def table(published: Set, rows: list[dict[str, Any]]) -> str:
    first = published.figures[0]
    with_estimates = any("estimated_bytes" in row for row in rows)
    names = ["run"]
    for figure in published.figures:
        names += [f"{figure}, published", "emulated", "apart"]
        if figure == first and with_estimates:
            names += ["estimate", "apart"]
    lines = []
    for row in rows:
        line = [row["run"]]
        for figure in published.figures:
            real = row["published_bytes"][figure]
            line += [f"{real / GIB:.3f}", *_beside(row["emulated_bytes"][figure], real)]
            if figure == first and with_estimates:
                line += _beside(row.get("estimated_bytes", {}).get(figure), real)
        lines.append(line)
    return markdown(names, lines)


def _beside(predicted: int | None, real: int) -> list[str]:
    if predicted is None:
        return ["", ""]
    return [f"{predicted / GIB:.3f}", f"{predicted / real - 1:+.2%}"]


def section(name: str, rows: list[dict[str, Any]]) -> str:
    published = SETS[name]
    dates = sorted({row["date"] for row in rows})
    versions = ", ".join(f"{library} {version}" for library, version in published.versions.items())
    made = f"Made on {' to '.join(dict.fromkeys([dates[0], dates[-1]]))} with {versions}."
    totals = [f"- {figure}: {summary(rows, figure)}." for figure in published.figures]
    explained = [f"- {run}: {why}" for run, why in published.explained.items()]
    parts = [f"## {published.title}", published.head, made, "\n".join(totals)]
    if explained:
        parts.append("\n".join(explained))
    return "\n\n".join([*parts, table(published, rows)])


def write_page() -> None:
    sections, first_figures = [], []
    for name, published in SETS.items():
        rows = [row for (of, _), row in kept().items() if of == name]
        if rows:
            sections.append(section(name, rows))
            first_figures += [abs(error) for error in errors(rows, published.figures[0])]
    near = sum(size <= APART for size in first_figures)
    total = (
        f"{len(first_figures)} runs: the peaks differ by {statistics.median(first_figures):.2%} in the median, by at "
        f"most {max(first_figures):.2%}; {near} are within {APART:.0%}."
    )
    PAGE.write_text("\n".join([HEAD, total, "", "\n\n".join(sections), ""]))


def repeat(name: str, python: Path, runs: list[Run]) -> None:
    """Repeat runs of a set, and keep each."""
    published = SETS[name]
    runners: dict[str, Runner] = {}
    for run in runs:
        card = str(run.gpu)
        if card not in runners:
            runners[card] = Runner(published.script, python, gpu_of(run.gpu))
        figures = runners[card].figures(run.arguments)
        if "error" in figures:
            print(f"{run.name}: {figures['error']}", file=sys.stderr)
            continue
        row = {"set": name, "run": run.name, "published_bytes": run.published_bytes, "emulated_bytes": figures}
        keep({**row, "date": datetime.date.today().isoformat()})
        apart = [f"{figures[figure] / run.published_bytes[figure] - 1:+.2%}" for figure in published.figures]
        print(run.name, *apart, flush=True)
    for runner in runners.values():
        runner.close()


def estimate(name: str, runs: list[Run]) -> None:
    """Estimate runs that were repeated, and keep each estimate beside its run."""
    for run in runs:
        row = kept()[name, run.name]
        with tempfile.TemporaryDirectory() as folder:
            asked = oracle.Row(str(run.gpu), list(run.overrides))
            try:
                memory = oracle.estimated(asked, Path(folder, "estimate"))
            except RuntimeError as error:
                print(f"{run.name}: {error}", file=sys.stderr)
                continue
        figure = SETS[name].figures[0]
        row["estimated_bytes"] = {figure: memory[f"peak_{figure}_bytes"]}
        keep(row)
        print(run.name, f"{row['estimated_bytes'][figure] / row['published_bytes'][figure] - 1:+.2%}", flush=True)
    oracle.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", choices=[*SETS, "page"])
    parser.add_argument("python", nargs="?", help="a Python, or `estimates`")
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--only", default="", help="runs with this text in their name")
    parser.add_argument("--again", action="store_true", help="repeat those that were kept, too")
    asked = parser.parse_args()
    if asked.set != "page":
        runs = [run for run in SETS[asked.set].runs(asked.folder) if asked.only in run.name]
        if asked.python == "estimates":
            repeated = {run: row for (of, run), row in kept().items() if of == asked.set}
            runs = [run for run in runs if run.overrides and run.name in repeated]
            if not asked.again:
                runs = [run for run in runs if "estimated_bytes" not in repeated[run.name]]
            estimate(asked.set, runs)
        else:
            check_versions(Path(asked.python), SETS[asked.set].versions)
            if not asked.again:
                runs = [run for run in runs if (asked.set, run.name) not in kept()]
            repeat(asked.set, Path(asked.python), runs)
    write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
