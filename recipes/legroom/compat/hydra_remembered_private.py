"""What Hydra has read and joined is remembered for the other jobs of a sweep.

Hydra composes each job of a sweep twice, first to see that all can be composed. It reads the same twenty files each
time and joins them again, which takes more of a processor than all else that a job of a tiny model costs here. The
values on a command line are applied anew.
"""

import copy
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository

from legroom.compat.patching import patched

MOST = 1_000  # choices of options that are remembered: some 50 MB


@contextmanager
def remembered(only: Path | None = None) -> Iterator[None]:
    """Inside, every file of the menus is read once, and every choice of options is joined once.

    only: remember nothing where files of another folder than this are read.
    """
    remembering = _Remembering(only)
    with ExitStack() as stack:
        stack.enter_context(patched(ConfigRepository, load_config=remembering.load_config()))
        stack.enter_context(patched(CachingConfigRepository, __init__=_without_copies))
        stack.enter_context(patched(defaults_list, _create_defaults_list=remembering.choose()))
        stack.enter_context(patched(ConfigLoaderImpl, _compose_config_from_defaults_list=remembering.join()))
        yield


def _without_copies(self: CachingConfigRepository, delegate: IConfigRepository) -> None:
    """As Hydra's, which copies the store of schemas with the list of sources. Only that list is replaced later."""
    self.delegate = copy.copy(delegate)
    self.cache = {}


def _words(overrides: Any) -> dict[str, Any]:
    """What a command line chooses, and what Hydra has noted of it so far, without the values that it sets."""
    return {name: value for name, value in vars(overrides).items() if name != "config_overrides"}


class _Remembering:
    """Functions in place of Hydra's. Copies are made by pickle, in a tenth of copy.deepcopy's time."""

    def __init__(self, only: Path | None):
        self.only = only
        self.pickled: dict[tuple[str, ...], bytes] = {}

    def load_config(self) -> Any:
        load = ConfigRepository.load_config

        def load_config(repository: ConfigRepository, config_path: str) -> Any:
            key = self._key(repository, "file", config_path)
            if key in self.pickled:
                return pickle.loads(self.pickled[key])
            loaded = load(repository, config_path)
            if loaded is not None:  # one that is missing may be given to Hydra later
                self._keep(key, loaded)
            return loaded

        return load_config

    def choose(self) -> Any:
        choose = defaults_list._create_defaults_list

        def choose_options(repository: IConfigRepository, config_name: Any, overrides: Any, **settings: Any) -> Any:
            """The options that a command line chooses. Hydra notes in `overrides` which of them it has used."""
            key = self._key(repository, "options", repr((config_name, _words(overrides), settings)))
            if key in self.pickled:
                chosen, noted = pickle.loads(self.pickled[key])
                vars(overrides).update(noted)
                return chosen
            chosen = choose(repository, config_name, overrides, **settings)
            self._keep(key, (chosen, _words(overrides)))
            return chosen

        return choose_options

    def join(self) -> Any:
        join = ConfigLoaderImpl._compose_config_from_defaults_list

        def join_options(loader: ConfigLoaderImpl, defaults: Any, repo: IConfigRepository) -> Any:
            key = self._key(repo, "joined", repr(defaults))
            if key in self.pickled:
                return pickle.loads(self.pickled[key])
            joined = join(loader, defaults, repo)
            self._keep(key, joined)
            return joined

        return join_options

    def _key(self, repository: IConfigRepository, *parts: str) -> tuple[str, ...]:
        """What decides a result: these parts and the folders that are read. Empty where nothing is remembered."""
        folders = [source.path for source in repository.get_sources() if source.scheme() == "file"]
        if self.only is not None and any(folder != str(self.only) for folder in folders):
            return ()
        return (*parts, *folders)

    def _keep(self, key: tuple[str, ...], result: Any) -> None:
        if not key:
            return
        if len(self.pickled) >= MOST:
            self.pickled.clear()
        self.pickled[key] = pickle.dumps(result)
