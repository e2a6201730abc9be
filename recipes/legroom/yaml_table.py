"""Reads the package's own tables and the menus."""

from pathlib import Path
from typing import Any

import yaml

from legroom import paths

# libyaml's, a tenth of the time where PyYAML was built with it. It crashes on lists nested a hundred thousand deep.
_QUICK = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: Path) -> Any:
    """The values in a YAML file of this package, or in one of a user's folder. Raises yaml.YAMLError."""
    is_own = any(path.is_relative_to(folder) for folder in (paths.PACKAGE, paths.CONF))
    return yaml.load(path.read_text(), _QUICK if is_own else yaml.SafeLoader)


def beside(module: str) -> Any:
    """The values in the YAML file beside a module, with its name. module: its `__file__`."""
    return read(Path(module).with_suffix(".yaml"))
