"""The options of `model`, and the published models whose sizes they have."""

import functools
import re

from legroom import paths, suggestions
from legroom.options import menus

SOURCE = re.compile(r"^# Source:.*?(?:https?://)?huggingface\.co/([\w.-]+/[\w.-]+)", re.MULTILINE)
SIZE = re.compile(r"[\dx.]+[bm]\b", re.IGNORECASE)  # in a hub id: 7B, 8x22B


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


def like(hub_id: str) -> str:
    """' An estimate needs no weights: ...' where an option has the sizes of a model with that id, or nearly that id."""
    option_of = {}
    for option, (_, source) in known().items():
        if SIZE.findall(source) == SIZE.findall(hub_id):
            option_of[source] = option
    source = suggestions.closest(hub_id, option_of)
    if source is None:
        return ""
    return f" An estimate needs no weights: model={option_of[source]} has the sizes of {source}."
