"""Change one point of the code at a time, and see whether a test fails.

    python tests/tools/mutants.py                     100 changes drawn with seed 0; some 40 minutes on two cores
    python tests/tools/mutants.py --list              only say which changes are drawn
    python tests/tools/mutants.py --count 20 --seed 7
    python tests/tools/mutants.py --count 20 --seed 7 --packages report --tests tests/report tests/cli

The list is drawn from the seed and the sources alone. All quick tests run once, to see which of them execute each
point. Then each change is made in a copy of the checkout and tried against those tests, and against the files that
they are in; the first failure ends it, if that test fails again with the change and passes without it. Results are kept
in --cache, so that a run that was stopped goes on. --again TESTS then tries what survived against new tests.
Writes docs/results/mutants.md when all are done; with --packages or --tests, which say less, it only prints. The
pages' JavaScript is not changed: what runs it is a browser, in tests that are left out without one. Changes that
survive need a test, or a reason in NOTES why no test could notice.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkout import ROOT

from mutant_points import Mutant, copy_checkout, digest, every_point, tests_by_mutant

TABLE = ROOT / "docs" / "results" / "mutants.md"
NOTES = ROOT / "docs" / "results" / "mutants_notes.json"  # "file:line change" -> why no test could notice
PACKAGES = (
    "training",
    "data",
    "models",
    "measure",
    "checkpoint",
    "parallelism",
    "foresight",
    "records",
    "options",
    "cli",
)
PACKAGES += ("report", "jobs", "tracking", "doctor", "machine", "ranks", "config", "levers", "third_party")
NO_TESTS = 5  # pytest's exit code where every test is left out
SECONDS = 600  # for one run of tests; a change that makes them hang is noticed

MOST_TESTS, MOST_SECONDS = 60, 120  # of a stage: the quickest tests


SERVERS: dict[Path, Any] = {}  # checkout -> the process that runs its tests (forked_pytest.py)
LEFT_OUT: list[str] = []  # tests that fail without a change, too, as in a copy without git, or not every time


def stages(mutant: Mutant, executing: dict[str, float], points: dict[str, int]) -> list[list[str]]:
    """Lists of tests to run one after the other. executing: tests that execute the point -> seconds; points: test ->
    how many of the drawn points it executes.

    First those tests: of files that are named like the module, of its package, and those that execute little else. Then
    their whole files, for a test may look at what another one has run. Where no test executes it: the tests of the
    package.
    """
    package, stem = mutant.file.split("/")[2], Path(mutant.file).stem

    def order(test: str) -> tuple[bool, bool, int, float]:
        file = test.split("::")[0]
        elsewhere = not file.startswith(f"tests/{package}/")
        return stem not in Path(file).stem, elsewhere, points[test], executing[test]

    quickest = _within(sorted(executing, key=order), executing)
    seconds = dict[str, float]()
    for test, took in executing.items():
        seconds[test.split("::")[0]] = seconds.get(test.split("::")[0], 0.0) + took
    files = _within(sorted(seconds, key=seconds.__getitem__), seconds)
    own = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / package).rglob("test_*.py"))
    return [quickest, files] if executing else [own] if own else []


def _within(sorted_names: list[str], seconds: dict[str, float]) -> list[str]:
    """The first names, so many that they take no more than MOST_SECONDS; one at least."""
    total, kept = 0.0, []
    for name in sorted_names[:MOST_TESTS]:
        total += seconds[name]
        if total <= MOST_SECONDS or not kept:
            kept.append(name)
    return kept


def noticed(mutant: Mutant, checkout: Path, stages: list[list[str]]) -> str:
    """The test that fails with the change, "timeout", or "" if it survives. The checkout is as before afterwards."""
    path = checkout / mutant.file
    source = path.read_bytes()
    changed = source[: mutant.start] + mutant.new.encode() + source[mutant.end :]
    try:
        for stage in stages:
            while True:
                path.write_bytes(changed)
                failed = first_failure(checkout, [*stage, *(f"--deselect={test}" for test in LEFT_OUT)])
                if not failed:
                    break
                again = [failed] if "::" in failed else stage  # "timeout": the machine may be busy
                if "::" not in failed or first_failure(checkout, again):
                    path.write_bytes(source)
                    if not first_failure(checkout, again):
                        return failed
                if "::" not in failed:
                    print(f"{failed} without the change, too, of {stage}: left out", flush=True)
                    break
                print(f"left out, for it does not fail because of the change: {failed}", flush=True)
                LEFT_OUT.append(failed)
        return ""
    finally:
        path.write_bytes(source)


def first_failure(checkout: Path, arguments: list[str]) -> str:
    """Run pytest in the checkout. The first test that fails, "timeout" or "exit code N" without one, or ""."""
    if checkout not in SERVERS:
        environment = os.environ | {
            "PYTHONPATH": str(checkout / "recipes"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, str(ROOT / "tests" / "tools" / "forked_pytest.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        SERVERS[checkout] = subprocess.Popen(command, cwd=checkout, env=environment, **pipes)
    server = SERVERS[checkout]
    request = [SECONDS, "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *arguments]
    print(json.dumps(request), file=server.stdin, flush=True)
    code, *failed = json.loads(server.stdout.readline())
    if code is None:
        return "timeout"
    if code in (0, NO_TESTS):
        return ""
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"exit code {code}"


def table(before: dict[Mutant, str], after: dict[Mutant, str], seed: int) -> str:
    """The page. before: change -> the test that noticed it; after: of those that nothing noticed, with new tests."""
    notes = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    count, missed = len(before), sum(not (test or after.get(mutant)) for mutant, test in before.items())
    lines = [
        "# Changes of one point, and the tests that notice them",
        "",
        f"`python tests/tools/mutants.py --count {count} --seed {seed}`: {sum(map(bool, before.values()))} of {count} "
        f"were noticed; with the tests that were written for the others, {count - missed}. Where nothing notices a "
        "change, the reason stands in the last column. The first figure is what another seed would find of these "
        "packages; the second is about these changes alone, for the new tests were written for them.",
        "",
        "| Change | Noticed before by | and now by |",
        "| --- | --- | --- |",
    ]
    for mutant, test in sorted(before.items(), key=lambda item: (item[0].file, item[0].start)):
        change = " ".join(f"`{mutant.old}` -> `{mutant.new}`".split()).replace("|", "\\|")
        now = "the same" if test else after.get(mutant) or f"nothing: {notes.get(mutant.name, 'to be looked at')}"
        lines.append(f"| {mutant.file}:{mutant.line} {change} | {test or 'nothing'} | {now} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "legroom-mutants"))
    parser.add_argument("--again", nargs="+", metavar="TESTS", help="try what survived against these new tests")
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    parser.add_argument("--tests", nargs="+", default=(), help="find the tests of a change among these alone")
    asked = parser.parse_args()
    points = every_point(ROOT, asked.packages)
    chosen = random.Random(asked.seed).sample(points, min(asked.count, len(points)))
    print(f"{len(points)} points, {len(chosen)} drawn with seed {asked.seed}", flush=True)
    if asked.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    asked.cache.mkdir(parents=True, exist_ok=True)
    executing = tests_by_mutant(chosen, ROOT, asked.cache, asked.tests)
    drawn = collections.Counter(test for tests in executing.values() for test in tests)
    before = run(chosen, "txt", lambda mutant: stages(mutant, executing[mutant.name], drawn), asked)
    survivors = [mutant for mutant, test in before.items() if not test]
    after = run(survivors, "again", lambda _: [asked.again], asked) if asked.again else {}
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} noticed")
    if asked.packages == PACKAGES and not asked.tests:
        TABLE.write_text(table(before, after, asked.seed))
        print(TABLE.relative_to(ROOT))
    return 0


def run(chosen: list[Mutant], suffix: str, stages_of: Callable[[Mutant], list[list[str]]], asked) -> dict[Mutant, str]:
    """Try changes, so many at once as asked. Results with another suffix are kept apart."""
    copies = [asked.cache / f"copy-{i}" for i in range(asked.at_once)]
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
        copy_checkout(ROOT, copy)
    results: dict[Mutant, str] = {}

    def job(mutant: Mutant) -> None:
        kept = asked.cache / f"{digest([mutant], ROOT)}.{suffix}"
        if not kept.exists() or (suffix == "again" and not kept.read_text()):
            began, copy = time.monotonic(), copies.pop()
            kept.write_text(noticed(mutant, copy, stages_of(mutant)))
            copies.append(copy)
            print(f"{time.monotonic() - began:4.0f} s  {kept.read_text() or 'SURVIVED'}  {mutant.name}", flush=True)
        results[mutant] = kept.read_text()

    with concurrent.futures.ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(job, chosen))
    return results


if __name__ == "__main__":
    sys.exit(main())
