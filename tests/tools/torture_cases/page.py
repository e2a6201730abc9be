"""The page with the results of all cases."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from legroom.machine import host
from legroom.records.environment import git_revision

TITLES = {
    "checkpoints": "Damaged checkpoints",
    "inputs": "Hostile inputs",
    "records": "Damaged records",
    "kills": "Kills at random moments",
}


@dataclass(frozen=True)
class Result:
    """What became of a case. seen: what happened, in a few words."""

    part: str
    name: str
    expected: str
    seen: str
    seconds: float
    passed: bool


def text(results: list[Result], seed: int) -> str:
    """The page as Markdown."""
    passed, minutes = sum(result.passed for result in results), sum(result.seconds for result in results) / 60
    versions = ", ".join(f"{name} {host.version(name)}" for name in ("torch", "transformers", "accelerate"))
    blocks = [
        "# Reliability\n\nWritten by `python tests/tools/torture.py --page docs/results/reliability.md`"
        f"{f' --seed {seed}' if seed else ''}: {passed} of {len(results)} cases ended as expected, in "
        f"{minutes:.1f} minutes on {host.usable_cores()} cores ({host.cpu_name()}), Python "
        f"{platform.python_version()}, {versions}, revision {git_revision()}, seed {seed}. Each run is a model of "
        "one layer on a CPU. 'Losses equal' means equal to the bit, step by step, to those of a run left alone.",
        _overview(results),
    ]
    missing = [title for part, title in TITLES.items() if part not in {result.part for result in results}]
    if missing:
        blocks.append(f"**Not run for this page: {', '.join(missing)}.**")
    for part, title in TITLES.items():
        own = [result for result in results if result.part == part]
        if own:
            blocks.append(f"## {title}\n\n{_expectations(own)}\n\n{_table(own)}")
    return "\n\n".join(blocks) + "\n"


def _overview(results: list[Result]) -> str:
    lines = ["| part | cases | as expected | longest s |", "|---|---:|---:|---:|"]
    for part, title in TITLES.items():
        own = [result for result in results if result.part == part]
        if own:
            longest = max(result.seconds for result in own)
            lines.append(f"| {title} | {len(own)} | {sum(r.passed for r in own)} | {longest:.1f} |")
    return "\n".join(lines)


def _expectations(results: list[Result]) -> str:
    """What is expected of most cases, once."""
    expected = dict.fromkeys(result.expected for result in results)
    lines = [f"- {each} ({sum(r.expected == each for r in results)} cases)" for each in expected]
    return "Expected:\n" + "\n".join(lines)


def _table(results: list[Result]) -> str:
    lines = ["| case | seen | s |", "|---|---|---:|"]
    for result in results:
        seen = result.seen.replace("|", "\\|")
        lines.append(
            f"| {result.name} | {'' if result.passed else '**NOT AS EXPECTED** '}{seen} | {result.seconds:.1f} |"
        )
    return "\n".join(lines)
