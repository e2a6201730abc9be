"""What a script would write or send stays here: trackers, uploads and checkpoints do nothing, and files that its Python
code writes land in a folder that is removed.
"""

import contextlib
import functools
import importlib.abc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from legroom import yaml_table
from legroom.foresight.programs import written_files

_TABLE = yaml_table.beside(__file__)
NOTHING, INSTEAD = _TABLE["nothing"], _TABLE["instead"]
DOWNLOADED = ("hub", "xet", "modules", "assets")  # folders of HF_HOME and TORCH_HOME


def set_environment(folder: Path, offline: bool) -> None:
    """Before any library is imported: caches go to `folder`, trackers are off."""
    for name, place in _TABLE["folders"].items():
        (folder / place).mkdir(exist_ok=True)
        os.environ[name] = str(folder / place)
    os.environ.update(_TABLE["settings"] | (_TABLE["offline"] if offline else {}))
    os.environ["MLFLOW_TRACKING_URI"] = (folder / "mlflow").as_uri()
    sys.dont_write_bytecode = True


@contextlib.contextmanager
def held_back(folder: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Inside, nothing of the script reaches the outside. note: takes a line for each thing that was held back."""
    finder = _AfterImport(note)
    for name in (*NOTHING, *INSTEAD):
        if name in sys.modules:
            finder.change(sys.modules[name])
    sys.meta_path.insert(0, finder)
    named = [Path(os.environ.get(name) or Path.home() / place) for name, place in _TABLE["downloads"].items()]
    here = Path.cwd().resolve()
    places = tuple(
        os.path.realpath(part)
        for place in named  # HF_HOME=/workspace holds the script's own files as well
        for part in ([place / each for each in DOWNLOADED] if here.is_relative_to(place.resolve()) else [place])
    )
    try:
        with written_files.held(folder.resolve(), places, note):
            yield
    finally:
        sys.meta_path.remove(finder)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules of NOTHING and INSTEAD as others do, and changes them when they have been imported."""

    def __init__(self, note: Callable[[str], None]):
        self.note = note

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in NOTHING and fullname not in INSTEAD:
            return None
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def and_change(module: Any) -> None:
                execute(module)
                self.change(module)

            spec.loader.exec_module = and_change
        return spec

    def change(self, module: Any) -> None:
        for dotted, place in INSTEAD.get(module.__name__, {}).items():
            kind, _, name = dotted.rpartition(".")
            real = getattr(getattr(module, kind) if kind else module, name)
            ours = functools.partial(_instead, place, real, self.note)
            if kind:  # a function becomes a method where a partial does not
                setattr(getattr(module, kind), name, lambda *given, ours=ours, **named: ours(*given, **named))
            for owner in list(sys.modules.values()):  # also where it has been imported by name already
                for copied in [copied for copied, value in vars(owner).items() if value is real]:
                    setattr(owner, copied, ours)
        for dotted in NOTHING.get(module.__name__, ()):
            *parents, name = dotted.split(".")
            owner = getattr(module, parents[0], None) if parents else module
            if hasattr(owner, name):
                setattr(owner, name, self._nothing(dotted if parents else f"{module.__name__}.{name}"))

    def _nothing(self, name: str) -> Callable:
        def nothing(*arguments: Any, **named: Any) -> Any:
            self.note(f"{name} does nothing here.")
            repository = named.get("repo_id") or next((each for each in arguments if isinstance(each, str)), "")
            return SimpleNamespace(repo_id=repository, url="", commit_url="") if "repo" in name else None

        return nothing


def _instead(place: str, real: Callable, note: Callable[[str], None], *arguments: Any, **named: Any) -> Any:
    """Call a function of this package, as `module:function`. Its module may import torch, as the script has by now."""
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)(real, note, *arguments, **named)
