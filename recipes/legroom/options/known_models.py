"""The options of `model`, and whose sizes they have."""

import functools
import re

from legroom import paths
from legroom.options import menus, suggestions

SIZE = re.compile(r"[\dx.]+[bm]\b", re.IGNORECASE).findall  # 7B, 8x22B


@functools.cache
def known() -> dict[str, tuple[str, str]]:
    """Option of `model` -> (what its first line says, the hub id whose sizes it has or "")."""
    found = {}
    for name, path in menus.options("model", [paths.CONF]).items():
        first, _, rest = path.read_text().partition("\n")
        source = re.search(r"^# Source:.*?(?:https?://)?huggingface\.co/([\w.-]+/[\w.-]+)", rest, re.MULTILINE)
        found[name] = first.removeprefix("#").strip(), source[1] if source else ""
    return found


def like(hub_id: str) -> str:
    """' An estimate needs no weights: ...' where an option has the sizes of a model with that id, or nearly that id."""
    options = {source: option for option, (_, source) in known().items() if SIZE(source) == SIZE(hub_id)}
    source = suggestions.closest(hub_id, options)
    return f" An estimate needs no weights: model={options[source]} has the sizes of {source}." if source else ""
