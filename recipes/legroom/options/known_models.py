"""The options of `model`, and the published models whose sizes they have."""

import functools
import re

from legroom import paths
from legroom.options import menus

SOURCE = re.compile(r"^# Source:.*?(?:https?://)?huggingface\.co/([\w.-]+/[\w.-]+)", re.MULTILINE)


@functools.cache
def known() -> dict[str, tuple[str, str]]:
    """Option of `model` -> (the description in its file's first line, the hub id whose sizes it has or "")."""
    models = {}
    for name, path in menus.options("model", [paths.CONF]).items():
        first_line, _, rest = path.read_text().partition("\n")
        source = SOURCE.search(rest)
        hub_id = source[1] if source is not None else ""
        models[name] = (first_line.removeprefix("#").strip(), hub_id)
    return models
