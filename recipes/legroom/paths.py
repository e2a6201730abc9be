"""Where the package, its menus and, in a checkout, the repository lie; and paths as a person types them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from legroom.errors import Refusal

PACKAGE = Path(__file__).resolve().parent
SOURCE = PACKAGE.parent  # what has to be on the module path: recipes/ of a checkout, or site-packages
CONF = (PACKAGE / "conf").resolve()  # of a checkout: a link to conf/ at its top
# The repository, or None where the package is installed.
CHECKOUT = SOURCE.parent if SOURCE.name == "recipes" and (SOURCE.parent / "train.py").is_file() else None

# The folders of menus beside CONF, and how they were typed; workers inherit it.
_MENUS_VARIABLE = "LEGROOM_MENUS"


def remember_menus(typed: Sequence[str], folders: Sequence[Path]) -> None:
    """Remember the folders of a person's own menus, for this process and those that it starts.

    typed: what named them on the command line, as `--config-dir=mine`.
    """
    os.environ.pop(_MENUS_VARIABLE, None)
    if folders:
        absolute = [str(expanded(folder).absolute()) for folder in folders]
        os.environ[_MENUS_VARIABLE] = json.dumps({"typed": list(typed), "folders": absolute})


def own_menus() -> list[Path]:
    """The folders of a person's own menus, in the order in which Hydra looks through them, behind CONF."""
    return [Path(folder) for folder in json.loads(os.environ.get(_MENUS_VARIABLE, "{}")).get("folders", [])]


def menus() -> list[Path]:
    """Every folder of menus; the first one that has an option is used."""
    return [CONF, *own_menus()]


def menus_as_typed() -> list[str]:
    """What named the folders of a person's own menus on the command line."""
    return json.loads(os.environ.get(_MENUS_VARIABLE, "{}")).get("typed", [])


def expanded(name: str | Path) -> Path:
    """A path with the home folder in place of ~; one of a user that is not known stays, and is found nowhere. Raises
    Refusal for one that no file system takes, for which pathlib's questions raise OSError."""
    path = Path(os.path.expanduser(name))
    if any(len(part.encode(errors="surrogatepass")) > 255 for part in path.parts):
        raise Refusal(f"{str(name)[:40]}... has a name of more than 255 bytes in it: type an existing path.")
    return path


def not_pulled(folder: Path) -> str:
    """What to do about a model's folder that holds a pointer of Git LFS in place of a file; else nothing."""
    for file in sorted(each for ending in ("safetensors", "json", "model") for each in folder.glob(f"*.{ending}")):
        small = file.is_file() and os.access(file, os.R_OK) and file.stat().st_size < 1024
        if small and file.read_bytes().startswith(b"version https://git-lfs"):
            return f"{file.name} is a pointer of Git LFS, not the file itself. Type git lfs pull in that folder."
    return ""
