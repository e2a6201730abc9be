"""code: a file with model classes of one's own."""

from collections.abc import Collection
from pathlib import Path

from legroom import paths
from legroom.config import Config
from legroom.options import hooks


def resolve(cfg: Config) -> list[str]:
    """Makes the path absolute: the file lies in a folder of one's own menus, or where the command is typed."""
    if cfg.code is not None:
        places = [folder / paths.expanded(cfg.code) for folder in (*paths.own_menus(), Path.cwd())]
        cfg.code = str(next((place for place in places if place.is_file()), places[-1]))
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """A file that is not there, or that no model is built with."""
    if cfg.code is None:
        return []
    if not Path(cfg.code).is_file():
        return [f"code={cfg.code}: there is no such file."]
    if not cfg.model.pretrained:
        return [
            f"code={cfg.code} has models of your own, and model={cfg.model.name} is none. Type model.config=FOLDER."
        ]
    return []


NOT_SEARCHED = "it says which model is trained"

hooks.register_module("code", globals())
