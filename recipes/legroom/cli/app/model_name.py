"""From what a person writes for a model (an option, a hub id, a link, a name) to the overrides that it stands for."""

import difflib
import math
import re

from legroom.errors import Refusal
from legroom.options.known_models import known

LINK = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/\s]+/[^/\s?#]+)")
SAME_SIZES = {"instruct", "it", "chat", "base", "hf", "pt"}  # of a hub id: other weights of the same sizes
PARAMETERS = {"m": 1e6, "b": 1e9}
NEAR = 4  # names that a refusal offers


def overrides(text: str) -> list[str]:
    """The overrides of a model. Raises Refusal, in one sentence, for what is not known or not clear."""
    name = text.strip()
    link = LINK.match(name)
    if link:
        name = link[1]
    if "/" not in name:
        return [f"model={_option(name)}"]
    for option, (_, source) in known().items():
        if source and _sizes(source) == _sizes(name):
            return [f"model={option}"]
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) and _is_cached(name):
        return [f"model.pretrained={name}"]
    near = ", ".join(_near(name.partition("/")[2]))
    raise Refusal(
        f"{name[:100]} is not among the known models, and its config.json is not in this machine's cache: paste that "
        f"config.json, or choose a model of like sizes ({near})."
    )


def _option(name: str) -> str:
    """The known model that is called so, by its option or by its name on the hub. Raises Refusal."""
    if name in known():
        return name
    letters = _plain(name)
    same, similar = [], []
    for option, (_, source) in known().items():
        names = (_plain(option), _plain(source.partition("/")[2]))
        if letters and letters in names:
            same.append(option)
        elif len(letters) > 2 and not option.endswith("_tiny") and any(letters in other for other in names):
            similar.append(option)
    candidates = same or similar
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise Refusal(f"{name[:100]} may be one of several models: choose {' or '.join(candidates)}.")
    offered = f"near are {', '.join(_near(name))}" if name else "the list has their names"
    raise Refusal(f"No known model is called {name[:100] or 'nothing'}: {offered}, or paste the model's config.json.")


def _near(name: str) -> list[str]:
    """Known models of about as many parameters, where the name has a size as 13b; else those with a name like it."""
    size = re.search(r"(\d+(?:\.\d+)?)([bm])(?![a-z])", name.lower())
    if size and float(size[1]):
        parameters = float(size[1]) * PARAMETERS[size[2]]
        by_size = sorted(known(), key=lambda option: abs(math.log(_parameters(option) / parameters)))
        return by_size[:NEAR]
    options = {_plain(option): option for option in known()}
    return [options[letters] for letters in difflib.get_close_matches(_plain(name), options, NEAR, 0)]


def _parameters(option: str) -> float:
    """The count that the first line of a known model ends in, as (13.0 B parameters)."""
    count = re.search(r"\(([\d.]+) ([BM]) parameters\)", known()[option][0])
    if count is None:
        return 1
    return float(count[1]) * PARAMETERS[count[2].lower()]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _sizes(hub_id: str) -> tuple[str, ...]:
    """The words of a hub id that tell sizes apart."""
    return tuple(word for word in re.split(r"[^a-z0-9.]+", hub_id.lower()) if word not in SAME_SIZES)


def _is_cached(hub_id: str) -> bool:
    import huggingface_hub

    return isinstance(huggingface_hub.try_to_load_from_cache(hub_id, "config.json"), str)
