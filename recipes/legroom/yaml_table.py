"""Reads the package's own tables and the menus."""

from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # libyaml's, where PyYAML was built with it: a tenth of the time


def read(path: Path) -> Any:
    """The values in a YAML file. Raises yaml.YAMLError."""
    return yaml.load(path.read_text(), _LOADER)


def beside(module: str) -> Any:
    """The values in the YAML file beside a module, with its name. module: its `__file__`."""
    return read(Path(module).with_suffix(".yaml"))
