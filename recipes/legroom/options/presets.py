"""The presets: whole configurations for what people come for, each made for a card (conf/experiment/*.yaml)."""

import functools
import re
from dataclasses import dataclass

from legroom import paths

CARD = re.compile(r"^# Card: (?:(\d+) x )?(\w+)$", re.MULTILINE)


@dataclass(frozen=True)
class Preset:
    """A preset. name: `+experiment=<name>`. about: what it trains. gpu: an option of `gpu`. gpus: how many of them."""

    name: str
    about: str
    gpu: str
    gpus: int


@functools.cache
def presets() -> list[Preset]:
    """Those of conf/experiment, in the order of their names; an experiment without a card is none."""
    known = []
    for path in sorted(paths.CONF.glob("experiment/*.yaml")):
        text = path.read_text()
        card = CARD.search(text)
        if card is not None:
            about = text.splitlines()[1].removeprefix("#").strip()
            known.append(Preset(path.stem, about, card[2], int(card[1] or 1)))
    return known
