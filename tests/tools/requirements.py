"""Print pyproject.toml's requirements for pip: without upper bounds (newest), or pinned to their lower bounds (lowest).

python tests/tools/requirements.py newest                        # every dependency, and the extras that the tests need
python tests/tools/requirements.py lowest torch transformers     # the named ones, at their lower bounds
"""

from __future__ import annotations

import re
import sys
import tomllib

from checkout import ROOT

EXTRAS = ("8bit", "sweeps", "dev")


def requirements() -> list[str]:
    """The dependencies and EXTRAS, as they stand in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["dependencies"] + [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]


def main(kind: str, *names: str) -> None:
    for line in requirements():
        parts = re.fullmatch(r"([\w.-]+)(\[[\w,]+\])?(.*)", line)
        assert parts is not None, f"pyproject.toml: {line}"
        name, _, bounds = parts.groups()
        if names and name not in names:
            continue
        lower = re.search(r">=([\d.]+)", bounds)
        if kind == "newest" or lower is None:
            print(name)
        else:
            print(f"{name}=={lower[1]}" + (".*" if lower[1].count(".") == 1 else ""))


if __name__ == "__main__":
    main(*sys.argv[1:])
