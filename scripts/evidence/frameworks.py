"""The frameworks' own defaults beside ours: what a training stores, by `legroom check` on their command and by
`recipe=estimate` on the same typed as overrides.

    python scripts/evidence/frameworks.py --hf FOLDER --axolotl FOLDER --llama_factory FOLDER --examples FILE
    python scripts/evidence/frameworks.py --only TRL --hf FOLDER       # rows whose name has this text
    python scripts/evidence/frameworks.py --estimates                  # our side again, after a change of it

The folders are environments: `hf` has transformers, peft, trl, bitsandbytes and deepspeed, the others their framework.
FILE is training/DeepSpeed-ZenFlow/finetuning/finetune_llama.py of deepspeedai/DeepSpeedExamples. Rows are kept in
docs/results/framework_bytes.jsonl as they end, and docs/results/framework_bytes.md is written from what is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from checkout import ROOT  # isort: skip (it puts tests/tools on the path)
import framework_cases
from framework_cases import Case
from markdown_table import markdown

from legroom.jobs import fork_client, launch, supervise
from legroom.options.compose import compose

GPU = "rtx4090_24gb"
KEPT = ROOT / "docs" / "results" / "framework_bytes.jsonl"
PAGE = ROOT / "docs" / "results" / "framework_bytes.md"
TABLE = "## The table\n"  # what stands below it in the page is written here
PARTS = ("parameters", "gradients", "optimizer", "activations", "other")
LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "bitsandbytes",
    "deepspeed",
    "axolotl",
    "llamafactory",
)
QUICK = ["estimate.hint_seconds=0", "tracker=none"]
MIB = 2**20
SECONDS = 600


def checked(case: Case, environment: Path, folder: Path) -> dict:
    """The figures of `legroom check` on a command. Raises RuntimeError where there is no verdict."""
    typed = [sys.executable, "-m", "legroom", "check", "--gpu", GPU, "--json", "--", *case.command]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "recipes"), "OMP_NUM_THREADS": "1"}
    variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"  # as an activated environment has it
    done = subprocess.run(typed, cwd=folder, env=variables, capture_output=True, text=True, timeout=SECONDS)
    answer = json.loads(done.stdout or "{}").get(GPU, {"error": done.stderr[-500:]})
    if "error" in answer:
        raise RuntimeError(answer["error"])
    figures = {part: answer["parts"][part] for part in PARTS}
    return {**figures, "tensors": answer["tensor_bytes"], "allocated": answer["allocated_bytes"]}


def estimated(case: Case, folder: Path) -> dict:
    """The figures of `recipe=estimate`. Raises RuntimeError where there are none."""
    overrides = [*framework_cases.SAME_FOR_ALL, *case.overrides, "recipe=estimate", f"gpu={GPU}", *QUICK]
    overrides[0] = f"model.pretrained={folder / framework_cases.MODEL}"
    _, asked, problems = compose(ROOT / "conf", *overrides)
    if problems or asked is None:
        raise RuntimeError(f"refused: {problems[0]}")
    with tempfile.TemporaryDirectory(prefix="frameworks_") as run_folder:
        outcome = supervise.run(launch.Job(asked, Path(run_folder)), lambda _: None, fork_client.ForkServer())
    memory = outcome.memory
    if outcome.status not in ("ok", "oom") or not memory.peak_tensor_bytes:
        raise RuntimeError(f"{outcome.status}: {outcome.error and outcome.error.message}")
    figures = {part: getattr(memory, f"{part}_bytes") for part in PARTS}
    return {**figures, "tensors": memory.peak_tensor_bytes, "allocated": memory.peak_allocated_bytes}


def versions(environment: Path) -> dict[str, str]:
    """Which of the libraries an environment has."""
    code = (
        "import json, sys\nfrom importlib import metadata\nfound = {}\nfor name in sys.argv[1:]:\n"
        "    try:\n        found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError:\n        pass\nprint(json.dumps(found))"
    )
    python = environment / "bin" / "python"
    done = subprocess.run([python, "-c", code, *LIBRARIES], check=True, stdout=subprocess.PIPE, text=True)
    return {name: version.partition("+")[0] for name, version in json.loads(done.stdout).items()}


# --- what is kept ----------------------------------------------------------------------------------


def kept() -> dict[str, dict]:
    """The rows that were compared, by name."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def keep(row: dict) -> None:
    """Add a row, or replace it."""
    rows = {**kept(), row["name"]: row}
    order = [case.name for case in framework_cases.cases()]
    listed = sorted(
        (each for each in rows.values() if each["name"] in order), key=lambda each: order.index(each["name"])
    )
    KEPT.write_text("".join(json.dumps(each) + "\n" for each in listed))


# --- the page --------------------------------------------------------------------------------------


def apart(theirs: int, ours: int) -> str:
    """Both in MiB, and by how much ours differs, where that is seen."""
    text = f"{theirs / MIB:,.1f}"
    if abs(theirs - ours) < MIB / 10 or abs(theirs - ours) < theirs * 0.0005:
        return text
    text += f", {ours / MIB:,.1f}"
    if theirs >= MIB:
        text += f" ({ours / theirs - 1:+.1%})"
    return text


def write_page(rows: list[dict]) -> None:
    """Write the part of the page below its heading TABLE anew."""
    names = ["trained", "weights", "gradients", "optimizer", "activations", "other", "all tensors", "allocated"]
    lines, typed = [], []
    listed = {case.name: case for case in framework_cases.cases()}
    for row in rows:
        theirs, ours = row["theirs"], row["ours"]
        figures = [apart(theirs[name], ours[name]) for name in (*PARTS, "tensors", "allocated")]
        lines.append([row["name"], *figures])
        case = listed[row["name"]]
        command = " ".join(Path(word).name if word.startswith("/") else word for word in case.command)
        typed.append([row["name"], f"`{command}`", f"`{' '.join(case.overrides)}`"])
    by_versions: dict[str, list[str]] = {}
    for row in rows:
        shown = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        by_versions.setdefault(shown, []).append(row["name"].partition(",")[0])
    dates = sorted({row["date"] for row in rows})
    made = [f"Made on {' and '.join(dict.fromkeys([dates[0], dates[-1]]))}, on two cores without a GPU, with"]
    for shown, frameworks in by_versions.items():
        made.append(f"- {', '.join(dict.fromkeys(frameworks))}: {shown}")
    common = " ".join(framework_cases.SAME_FOR_ALL)
    parts = [
        "\n".join([made[0], "", *made[1:]]),
        "MiB at the peak of a step: theirs, and ours where it differs.",
        markdown(names, lines),
        f"What was typed; ours also had `{common}`:",
        markdown(["trained", "theirs", "ours"], typed),
    ]
    head = PAGE.read_text().partition(TABLE)[0]
    PAGE.write_text(f"{head}{TABLE}\n" + "\n\n".join(parts) + "\n")


def compare(case: Case, environment: Path | None, folder: Path, before: dict | None) -> dict:
    """A row. before: their side is taken from there."""
    row = before
    if row is None:
        assert environment is not None, "main has seen to it"
        row = {"name": case.name, "date": datetime.date.today().isoformat(), "versions": versions(environment)}
        row["theirs"] = checked(case, environment, folder)
    return {**row, "ours": estimated(case, folder)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    for name in ("hf", "axolotl", "llama_factory"):
        parser.add_argument(f"--{name}", type=Path, help="folder of an environment")
    parser.add_argument("--examples", type=Path, help="DeepSpeedExamples' finetune_llama.py")
    parser.add_argument("--only", default="", help="rows with this text")
    parser.add_argument("--estimates", action="store_true", help="our side again, of rows that are kept")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="frameworks_") as name:
        folder = Path(name)
        framework_cases.write_material(folder)
        if asked.examples is not None:
            shutil.copy(asked.examples, folder)
        for case in framework_cases.cases():
            before = kept().get(case.name) if asked.estimates else None
            environment = getattr(asked, case.needs)
            if asked.only not in case.name or (before is None and environment is None):
                continue
            try:
                row = compare(case, environment and environment.absolute(), folder, before)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{case.name}: {error}", flush=True)
                continue
            keep(row)
            shown = {part: apart(row["theirs"][part], row["ours"][part]) for part in (*PARTS, "tensors", "allocated")}
            print(case.name, shown, flush=True)
    if kept():
        write_page(list(kept().values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
