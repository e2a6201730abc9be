"""Run a fixed list of configurations in two checkouts and say where their results differ.

    python tests/tools/same_results.py OLD_CHECKOUT [NEW_CHECKOUT]        the new one is this checkout by default

Compared exactly: exit code, status, phase of an error, losses (steps.jsonl too), evaluation, every byte figure of
tensors, the estimate's figures, the configuration, and `config_key`. Keys of the configuration that only the new
checkout has are allowed; its `config_key` is then another one, and is not compared. Not compared: times, host memory,
versions of git, variables, folders, and the text of warnings, messages and hints. Results of a checkout are kept in
--cache, by commit, so that the old one runs once.

Takes about five minutes a checkout on two cores. Losses agree to the bit on one machine only, so both checkouts run on
this one, each job with one thread.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from checkout import ROOT

CONFIGURATIONS = ROOT / "docs" / "results" / "same_results.txt"
# Not compared, wherever they stand in a record.
IGNORED = re.compile(
    r"seconds|per_second|^data_wait_share$|^host_|^environment$|^overrides$|^warnings$|^message$|^hint$|^mfu$"
    r"|^config_key$|^config$"
)
# An estimate's seconds are predictions and not times, so they are compared.
PREDICTED = ("step_seconds_median", "samples_per_second", "tokens_per_second")


def configurations() -> list[str]:
    return [line for line in CONFIGURATIONS.read_text().splitlines() if line and not line.startswith("#")]


def inputs(folder: Path) -> dict[str, Path]:
    """The files that the configurations name, of fixed content."""
    text, rows = folder / "corpus.txt", folder / "rows.jsonl"
    text.write_text("".join(f"line {i}: the quick brown fox jumps over {i * i} lazy dogs\n" for i in range(200)))
    rows.write_text(
        "".join(json.dumps({"text": f"row {i} " + "word " * (i % 7 + 1), "label": i % 2}) + "\n" for i in range(60))
    )
    return {"text": text, "rows": rows}


def run(checkout: Path, line: str, folder: Path, files: dict[str, Path]) -> dict:
    """One command line in a checkout: its exit code and every record below its folder."""
    words = shlex.split(line.format(**files))
    sweeping = words[0] == "-m"
    if not (folder / "exit_code").exists():
        where = f"hydra.{'sweep' if sweeping else 'run'}.dir={folder / 'run'}"
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "WANDB_MODE": "offline"}
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "screen.txt", "w") as screen:
            code = subprocess.run(
                [sys.executable, str(checkout / "train.py"), *words, where],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                timeout=900,
            ).returncode
        (folder / "exit_code").write_text(str(code))
    records = [read(path, folder.parent) for path in sorted(folder.rglob("result.json"))]
    return {"exit_code": int((folder / "exit_code").read_text()), "records": records}


def read(path: Path, folder: Path) -> dict:
    """A record and its steps, without the folder of the checkout's results."""

    def same(text: str) -> str:
        return text.replace(str(folder), "")

    steps = path.with_name("steps.jsonl")
    rows = [json.loads(same(row)) for row in steps.read_text().splitlines()] if steps.exists() else None
    return json.loads(same(path.read_text())) | {"steps": rows}


def run_all(checkout: Path, cache: Path, at_once: int) -> dict[str, dict]:
    """Every configuration in a checkout: command line -> what `run` gave."""
    folder = cache / name_of(checkout)
    folder.mkdir(parents=True, exist_ok=True)
    files = inputs(cache) | {"resume": folder / "22" / "run"}
    lines = list(enumerate(configurations()))
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:

        def job(numbered):
            number, line = numbered
            result = run(checkout, line, folder / f"{number + 1:02}", files)
            print(f"{checkout.name} {number + 1:02} exit {result['exit_code']}  {line}", flush=True)
            return line, result

        first = [each for each in lines if "resume=" not in each[1]]
        last = [each for each in lines if "resume=" in each[1]]  # they need an earlier one's checkpoints
        return dict([*pool.map(job, first), *pool.map(job, last)])


def name_of(checkout: Path) -> str:
    """A checkout's commit, and a hash of what is not committed."""

    def git(*words):
        return subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True).stdout

    changes = git("diff", "HEAD") + "".join(git("ls-files", "-o", "--exclude-standard"))
    return git("rev-parse", "--short=12", "HEAD").strip() + (
        "-" + hashlib.sha256(changes.encode()).hexdigest()[:8] if changes else ""
    )


def differences(old, new, where: str, estimate: bool) -> list[str]:
    """Where two values differ, a line each; IGNORED keys are left out."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in old:
            ignored = IGNORED.search(key) and not (estimate and key in PREDICTED)
            if not ignored:
                found += differences(old[key], new.get(key, "(missing)"), f"{where}.{key}", estimate)
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i, (a, b) in enumerate(zip(old, new)) for line in differences(a, b, f"{where}[{i}]", estimate)]
    return [] if old == new else [f"{where}: {old!r} -> {new!r}"]


def keys(config: dict, above: str = "") -> set[str]:
    """Every key of a configuration, with the sections that it stands in."""
    found = set()
    for key, value in config.items():
        found |= keys(value, f"{above}{key}.") if isinstance(value, dict) else {above + key}
    return found


def identity(record: dict) -> str:
    return json.dumps([record["overrides"], record["config"]["measure"]["repeat"]], sort_keys=True)


def compare(old: dict, new: dict) -> tuple[list[str], int]:
    """(where what one command line left differs, a line each; how many of its jobs have keys that are new)."""
    found = differences(old["exit_code"], new["exit_code"], "exit_code", False)
    ours, theirs = ({identity(record): record for record in side["records"]} for side in (new, old))
    if ours.keys() != theirs.keys():
        return [*found, f"jobs: {sorted(theirs)} -> {sorted(ours)}"], 0
    with_new_keys = 0
    for name, before in theirs.items():
        after = ours[name]
        found += differences(before, after, "", before["recipe"] == "estimate")
        found += differences(before["config"], after["config"], "config", True)
        if keys(after["config"]) - keys(before["config"]):
            with_new_keys += 1
        else:
            found += differences(before["config_key"], after["config_key"], "config_key", False)
    return found, with_new_keys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "legroom-same-results"))
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--only-old", action="store_true", help="fill the cache with the old checkout's results")
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    old = run_all(asked.old.resolve(), asked.cache, asked.at_once)
    if asked.only_old:
        return 0
    new = run_all(asked.new.resolve(), asked.cache, asked.at_once)
    wrong = with_new_keys = 0
    for line in configurations():
        found, more = compare(old[line], new[line])
        wrong, with_new_keys = wrong + bool(found), with_new_keys + more
        print(("DIFFERS  " if found else "same     ") + line)
        for text in found[:8]:
            print(f"           {text}")
    print(f"{len(old) - wrong} of {len(old)} the same, {wrong} different")
    if with_new_keys:
        print(f"{with_new_keys} jobs have keys that the old checkout lacks: their config_key is not compared.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
