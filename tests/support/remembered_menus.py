"""Hydra's composition in a fraction of its time: what it reads from conf/, and what it joins, is remembered.

A third of the suite's seconds went into reading the same menus. The values on a command line are applied anew.
"""

import pickle
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore

CONF = Path(__file__).resolve().parents[2] / "conf"


def remember() -> None:
    """For the rest of the process. Where other folders are read, nothing is remembered: tests write there."""
    load, join = ConfigRepository.load_config, ConfigLoaderImpl._compose_config_from_defaults_list
    choose = defaults_list._create_defaults_list
    # copies by pickle: a tenth of copy.deepcopy's time
    loaded, joined, chosen = dict[str, bytes](), dict[str, bytes](), dict[str, bytes]()

    def load_config(self: ConfigRepository, config_path: str) -> Any:
        if not _reads_conf_alone(self):
            return load(self, config_path)
        if config_path not in loaded:
            found = load(self, config_path)
            if found is None:  # it may be given to Hydra later
                return None
            loaded[config_path] = pickle.dumps(found)
        return pickle.loads(loaded[config_path])

    def join_defaults(self: ConfigLoaderImpl, defaults: Any, repo: Any) -> Any:
        if not _reads_conf_alone(repo):
            return join(self, defaults, repo)
        key = repr(defaults)
        if key not in joined:
            joined[key] = pickle.dumps(join(self, defaults, repo))
        return pickle.loads(joined[key])

    def choose_defaults(repo: Any, config_name: Any, overrides: Any, **settings: Any) -> Any:
        """The options that a command line chooses. `overrides` is its words, in which Hydra notes what it used."""
        if not _reads_conf_alone(repo):
            return choose(repo, config_name, overrides, **settings)
        words = {name: value for name, value in vars(overrides).items() if name != "config_overrides"}
        key = repr((config_name, words, settings))
        if key not in chosen:
            found = choose(repo, config_name, overrides, **settings)
            chosen[key] = pickle.dumps((found, words))
        found, noted = pickle.loads(chosen[key])
        vars(overrides).update(noted)
        return found

    ConfigRepository.load_config = load_config
    defaults_list._create_defaults_list = choose_defaults
    ConfigStore.__deepcopy__ = lambda self, memo: self  # each composition copies its sources, and the store with them
    ConfigLoaderImpl._compose_config_from_defaults_list = join_defaults


def _reads_conf_alone(repository: Any) -> bool:
    return all(source.path == str(CONF) for source in repository.get_sources() if source.scheme() == "file")
