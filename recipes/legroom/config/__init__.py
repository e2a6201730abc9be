"""The schema of a configuration: a dataclass for each menu and section, and the values that each key takes.

The menus in `conf/` hold the values. A key that an option's YAML does not name stays missing, and setting it is
refused: no typed key is ignored.
The metadata of a field is described in `legroom.config.fields`.
"""

from legroom.config.gpu import Gpu
from legroom.config.tree import (
    ESTIMATE_ONLY,
    GROUPS,
    Config,
    from_dict,
    identity_of,
    kind_of,
    kinds_of,
    node_types,
    to_dict,
)

__all__ = [
    "ESTIMATE_ONLY",
    "GROUPS",
    "Config",
    "Gpu",
    "from_dict",
    "identity_of",
    "kind_of",
    "kinds_of",
    "node_types",
    "to_dict",
]
