"""Packages that machines with a GPU alone have, for a script that fails without them.

Attention of flash-attn and xformers is played: modules whose functions are torch's own copies of their kernels. A
script with another way for machines without them takes that way: they are played in a second run alone. Imports no
torch.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from legroom import yaml_table
from legroom.errors import first_line

PACKAGES = yaml_table.beside(__file__)
PLAYED = {name for name, package in PACKAGES.items() if "modules" in package}
NOTE = "{} is not installed: its attention is taken as torch's own copy of the kernel: the same tensors, and as fast."


def lacking(error: BaseException) -> str:
    """What to ask in place of a package that a GPU machine alone has, where a script fails without it; else ''."""
    name, said = getattr(error, "name", None) or "", first_line(error)  # an error may have no text
    if said.startswith("cannot import name") and not any(name in PACKAGES[each]["modules"] for each in PLAYED):
        return ""  # of a module that is there, perhaps in a folder of such a name
    if not isinstance(error, ImportError) and "install" not in said:
        return ""
    for package, known in PACKAGES.items():
        if re.search(known["said"], name or said, re.IGNORECASE):
            return f"{package} is installed on machines with a GPU alone. Ask with {known['instead']} in its place."
    return ""


def lacked(said: str) -> str | None:
    """The package of a line that `lacking` has returned, if it can be played."""
    package = said.partition(" is installed")[0]
    return package if package in PLAYED else None


def play(packages: Iterable[str], folder: Path, note: Callable[[str], None]) -> None:
    """From now on these packages are found by whoever imports them or asks for their version. folder: for their files.
    note: takes what has to be said."""
    for name in packages:
        note(NOTE.format(name))
        version, modules = PACKAGES[name]["version"], PACKAGES[name]["modules"]
        for module, code in modules.items():
            place = folder / module.replace(".", "/")
            place.mkdir(parents=True)
            code = code.format(attention="legroom.foresight.fake_gpu.package_attention")
            (place / "__init__.py").write_text(f"__version__ = '{version}'\n{code}\n")
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text(next(iter(modules)))
    sys.path.append(str(folder))
