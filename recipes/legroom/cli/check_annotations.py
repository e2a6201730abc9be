"""What `check` found, as a pull request shows it: SARIF for code scanning, and GitHub's workflow commands.

SARIF: OASIS Standard 2.1.0. Workflow commands and the job's summary: GitHub's documentation of Actions.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom import units
from legroom.estimator.step_estimate import StepEstimate
from legroom.records.record import DOES_NOT_FIT, FITS
from legroom.script_check import check_record
from legroom.script_check.check import Checked
from legroom.script_check.command import FILE, Program
from legroom.version import VERSION

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file whose Markdown GitHub shows below a job
ERROR, WARNING, NOTE = "error", "warning", "note"
COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}  # level of SARIF -> GitHub's command
RULES = {
    "does-not-fit": "The training runs out of device memory.",
    "above-budget": "The training takes more device memory than --budget allows.",
    "tight": "Less device memory stays free than the prediction may be wrong by.",
    "fits": "The training fits.",
    "no-verdict": "The script could not be followed to its second optimizer step.",
}
LINE = re.compile(r"([\w./+-]+\.py):(\d+)")


@dataclass(frozen=True)
class Finding:
    """A verdict on one GPU. rule: of RULES. file: below the working directory, '' where the command names none."""

    rule: str
    level: str
    gpu: str
    text: str
    file: str
    line: int


def findings(runs: Sequence[Checked], run_lines: Mapping[str, Sequence[str]], budget: float) -> list[Finding]:
    """A finding for each GPU. run_lines: how long the whole run takes on it, by its name."""
    found = []
    for run in runs:
        file, line = _place(run)
        for name in run.gpus:
            estimate = run.estimates.get(name)
            if estimate is None:
                text = check_record.bare(run.why)
                found.append(Finding("no-verdict", ERROR, name, text, file, line))
                continue
            rule, level = _rule(estimate, budget)
            text = " ".join([*_sentences(estimate, budget), *(f"{line.strip()}." for line in run_lines.get(name, ()))])
            found.append(Finding(rule, level, name, text, file, line))
    return found


def _rule(estimate: StepEstimate, budget: float) -> tuple[str, str]:
    """The rule of a verdict and its level."""
    if estimate.verdict == DOES_NOT_FIT:
        return "does-not-fit", ERROR
    if estimate.device_used_bytes > budget:
        return "above-budget", ERROR
    if estimate.verdict == FITS:
        return "fits", NOTE
    return "tight", WARNING


def _sentences(estimate: StepEstimate, budget: float) -> list[str]:
    """The verdict, and what takes most of the memory."""
    lines = [f"{str(estimate).splitlines()[0]}."]
    if estimate.device_used_bytes > budget:
        used = units.size(estimate.device_used_bytes)
        lines.append(f"{used} of device memory are above the budget of {units.size(int(budget))}.")
    if estimate.largest:
        largest = estimate.largest[0]
        size = units.size(largest["bytes"] * largest["count"])
        made_by = check_record.bare(largest["made_by"] or "made before the step")
        lines.append(f"Largest at the peak: {size}, {largest['part']}, {made_by}.")
    return lines


def _place(run: Checked) -> tuple[str, int]:
    """(file, line) where a finding is shown: the script's line that the reason or the largest tensor names, or the
    first line of the script, or of a file on its command line."""
    texts = [run.why]
    for estimate in run.estimates.values():
        texts += [str(tensor["made_by"]) for tensor in estimate.largest]
    for text in texts:
        for match in LINE.finditer(text or ""):
            file = _relative(match[1])
            if file:
                return file, int(match[2])
    return _file_of(run.program), 1


def _file_of(program: Program) -> str:
    """The script, or the first file that its command line names; '' where it names none."""
    named = [program.target] if program.kind == FILE else []
    for word in [*named, *program.argv]:
        file = _relative(word)
        if file:
            return file
    return ""


def _relative(text: str) -> str:
    """A file of the working directory as GitHub names it; '' for what is none."""
    path = Path(os.path.abspath(text))
    here = Path.cwd()
    if not path.is_file() or not path.is_relative_to(here):
        return ""
    return path.relative_to(here).as_posix()


# --- the formats ---------------------------------------------------------------------------------------


def sarif(found: Sequence[Finding]) -> dict[str, Any]:
    """A SARIF log with the findings as results."""
    rules = [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()]
    driver = {"name": "legroom check", "version": VERSION, "rules": rules}
    results = []
    for each in found:
        result: dict[str, Any] = {
            "ruleId": each.rule,
            "level": each.level,
            "message": {"text": each.text},
            "partialFingerprints": {"legroom/v1": f"{each.gpu}:{each.file}"},  # the same finding in the next commit
        }
        if each.file:
            artifact = {"uri": each.file, "uriBaseId": "%SRCROOT%"}
            result["locations"] = [
                {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": each.line}}}
            ]
        results.append(result)
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def workflow_commands(found: Sequence[Finding]) -> list[str]:
    """A line for each finding that GitHub shows beside the changed file."""
    lines = []
    for each in found:
        properties = [f"title={_escaped_property(f'{each.rule} ({each.gpu})')}"]
        if each.file:
            properties = [f"file={_escaped_property(each.file)}", f"line={each.line}", *properties]
        lines.append(f"::{COMMANDS[each.level]} {','.join(properties)}::{_escaped(each.text)}")
    return lines


def refusal(why: str) -> str:
    """The line of a check that began nothing."""
    return f"::error title=legroom check::{_escaped(why)}"


def _escaped(text: str) -> str:
    """Text of a workflow command, which is one line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def add_summary(found: Sequence[Finding]) -> None:
    """Add a table to the job's summary, where GitHub has named its file."""
    file = os.environ.get(SUMMARY)
    if not file:
        return
    rows = ["| GPU | verdict | |", "| --- | --- | --- |"]
    for each in found:
        text = each.text.replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {each.gpu} | {each.rule} | {text} |")
    with open(file, "a", encoding="utf-8") as summary:
        summary.write("\n".join(rows) + "\n")
