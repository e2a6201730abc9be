"""Runs the chosen cases, prints a line each, and writes the page."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from torture_cases import checkpoints, inputs, kills, page, records
from torture_cases.page import Result
from torture_cases.workbench import Case, Unexpected, Workbench

PARTS: dict[str, Callable[[int], list[Case]]] = {
    "checkpoints": checkpoints.cases,
    "inputs": inputs.cases,
    "records": records.cases,
    "kills": kills.cases,
}


def main(argv: list[str], description: str | None) -> int:
    """Run the command. Returns its exit code: 0 when every case ended as expected."""
    arguments = _parser(description or "").parse_args(argv)
    chosen = {
        part: [case for case in PARTS[part](arguments.seed) if arguments.case in case.name] for part in arguments.part
    }
    if arguments.list:
        print("\n".join(f"{part}: {case.name}" for part, cases in chosen.items() for case in cases))
        return 0
    began, results = time.monotonic(), list[Result]()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        bench = Workbench(Path(folder))
        try:
            for part, cases in chosen.items():
                results += [_run(bench, part, case) for case in cases]
                if arguments.results:
                    _save(arguments.results, results)
        finally:
            bench.close()
    seconds = time.monotonic() - began
    failed = [result for result in results if not result.passed]
    print(f"{len(results)} cases, {len(failed)} not as expected, {seconds / 60:.1f} minutes, seed {arguments.seed}")
    if arguments.page:
        collected = _save(arguments.results, results) if arguments.results else results
        arguments.page.write_text(page.text(collected, arguments.seed))
    return 1 if failed else 0


def _save(path: Path, results: list[Result]) -> list[Result]:
    """The results in a file, with these in place of its own of the same parts; written to the file again."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = {result.part for result in results}
    kept = [result for result in (Result(**json.loads(line)) for line in lines) if result.part not in parts]
    path.write_text("".join(json.dumps(dataclasses.asdict(result)) + "\n" for result in kept + results))
    return kept + results


def _run(bench: Workbench, part: str, case: Case) -> Result:
    began = time.monotonic()
    try:
        seen, passed = case.run(bench), True
    except Exception as error:  # a case that breaks in a way that nobody thought of is the most interesting one
        name = "" if isinstance(error, Unexpected) else f"{type(error).__name__}: "
        seen, passed = f"{name}{' '.join(str(error).split())[:300]}", False
    result = Result(part, case.name, case.expected, seen, time.monotonic() - began, passed)
    print(f"{'ok ' if passed else 'NOT'} {result.seconds:6.1f} s  {part}: {case.name}: {seen}", flush=True)
    return result


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--results", type=Path, help="collect the results of parts that are run apart in this file")
    parser.add_argument("--page", type=Path, help="write the results to this file, as Markdown")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    return parser
