"""The packages that the project needs, with their lower bounds. Imports the standard library alone."""

import importlib.util
import re
import tomllib
from importlib import metadata
from pathlib import Path

from legroom.paths import CHECKOUT

NAME = "legroom"  # of the distribution
RUN_ON = ("torch", "transformers", "accelerate", "datasets")  # another package's installation may exchange them
PYPROJECT = CHECKOUT and CHECKOUT / "pyproject.toml"


def listed(pyproject: Path | None = PYPROJECT) -> tuple[str, list[tuple[str | None, str, str | None, str]]]:
    """The lowest Python, and each requirement: its extra or None, its package, its lower bound or None, its line.

    pyproject: None where legroom was installed, whose metadata say the same.
    """
    if pyproject is None:
        lowest_python, lines = _of_the_installed()
    else:
        lowest_python, lines = _of_a_checkout(pyproject)
    requirements = []
    for extra, line in lines:
        match = re.match(r"([\w.-]+)[^>;]*(?:>=\s*([\w.]+))?", line)
        assert match, line
        name, bound = match.groups()
        if name != NAME and extra != "dev":  # an extra lists other extras
            requirements.append((extra, name, bound, line.partition(";")[0].strip()))
    return lowest_python.removeprefix(">="), requirements


def _of_a_checkout(pyproject: Path) -> tuple[str, list[tuple[str | None, str]]]:
    project = tomllib.loads(pyproject.read_text())["project"]
    lines: list[tuple[str | None, str]] = [(None, line) for line in project["dependencies"]]
    for extra, group in project.get("optional-dependencies", {}).items():
        lines += [(extra, line) for line in group]
    return project["requires-python"], lines


def _of_the_installed() -> tuple[str, list[tuple[str | None, str]]]:
    lines = []
    for line in metadata.requires(NAME) or []:
        extra = re.search(r"""extra\s*==\s*["']([\w-]+)""", line)
        lines.append((extra[1] if extra else None, line))
    return metadata.metadata(NAME)["Requires-Python"], lines


def is_below(version: str | None, bound: str | None) -> bool:
    """Whether a release is older than a bound. 2.11 equals 2.11.0; a suffix (rc1, +cpu) is ignored."""

    def release(text: str) -> list[int]:
        numbers = [int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", text)[0])]
        while numbers and not numbers[-1]:
            numbers.pop()
        return numbers

    installed = release(version or "")  # empty also for "unknown", as a build from sources may say
    return bool(installed) and bound is not None and installed < release(bound)


def missing() -> list[str]:
    """What does not let anything run, a line each: of RUN_ON those that are not there, or too old."""
    lines = []
    for extra, name, bound, wanted in listed()[1]:
        if extra is not None or name not in RUN_ON:
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        is_missing = version is None and importlib.util.find_spec(name) is None
        if is_missing or is_below(version, bound):
            state = "is not installed" if version is None else f"{version} is installed"
            lines.append(
                f"{name} {state}, and Legroom needs {bound} or newer: pip install '{wanted}'. Where another package "
                "needs it as it is, give Legroom an environment of its own."
            )
    return lines
