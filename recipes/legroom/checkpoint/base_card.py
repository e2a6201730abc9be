"""What the card of a base model says of its licence and its languages, for the card of what was trained from it."""

from typing import Any

import huggingface_hub

from legroom import paths
from legroom.machine import worker_environment
from legroom.records import model_card

# Of the front matter, what holds for a model that was trained further too.
KEPT = ("license", "license_name", "license_link", "language")


def read(pretrained: str | None) -> dict[str, Any]:
    """Licence and languages by the names of the hub's cards; without those that the card does not say.

    pretrained: model.pretrained. The README.md of a folder is read; that of an id of the hub from the cache, or
    else from the hub. A card that cannot be had, or read, says nothing.
    """
    if pretrained is None:
        return {}
    try:
        card = _card(pretrained)
    except Exception:  # no such file, an id that is none, a front matter that is no YAML: what was trained is saved
        return {}
    if card is None:
        return {}
    said = card.data.to_dict()
    return {key: said[key] for key in KEPT if _is_plain(said.get(key))}


def _is_plain(value: Any) -> bool:
    """Whether a value is a text, or a list of texts, as a card's should be."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) for item in value)
    return isinstance(value, str) and value != ""


def _card(pretrained: str) -> huggingface_hub.ModelCard | None:
    """The card of a base, or None where there is none here and the hub does not answer."""
    folder = paths.expanded(pretrained)
    if folder.exists():
        return huggingface_hub.ModelCard.load(folder / model_card.FILE_NAME, ignore_metadata_errors=True)
    cached = huggingface_hub.try_to_load_from_cache(pretrained, model_card.FILE_NAME)
    if isinstance(cached, str):
        return huggingface_hub.ModelCard.load(cached, ignore_metadata_errors=True)
    if worker_environment.hub_answers():  # it would be asked for half a minute otherwise
        return huggingface_hub.ModelCard.load(pretrained, ignore_metadata_errors=True)
    return None
