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
    """(the lowest Python, (the extra or None, the package's name, its lower bound or None, the whole of it) of each
    requirement).

    pyproject: None where legroom was installed, whose metadata say the same.
    """
    lowest, lines = _of_the_installed() if pyproject is None else _of_a_checkout(pyproject)
    found = []
    for extra, line in lines:
        requirement = re.match(r"([\w.-]+)[^>;]*(?:>=\s*([\w.]+))?", line)
        assert requirement, line
        name, bound = requirement.groups()
        if name != NAME and extra != "dev":  # an extra lists other extras
            found.append((extra, name, bound, line.partition(";")[0].strip()))
    return lowest.removeprefix(">="), found


def _of_a_checkout(pyproject: Path) -> tuple[str, list[tuple[str | None, str]]]:
    project = tomllib.loads(pyproject.read_text())["project"]
    groups = {None: project["dependencies"], **project.get("optional-dependencies", {})}
    return project["requires-python"], [(extra, line) for extra, group in groups.items() for line in group]


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

    found = release(version or "")  # empty also for "unknown", as a build from sources may say
    return bool(found) and bound is not None and found < release(bound)


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
        if is_below(version, bound) or version is None and importlib.util.find_spec(name) is None:
            has = "is not installed" if version is None else f"{version} is installed"
            lines.append(
                f"{name} {has}, and Legroom needs {bound} or newer: pip install '{wanted}'. Where another package "
                "needs it as it is, give Legroom an environment of its own."
            )
    return lines
