"""What a configuration may have Hydra import, call or run in a shell: what the documentation names, nothing else.

Hydra imports and calls any name that its own node holds: of callbacks, of the parts of launchers and sweepers, and of
Python's logging. A file of --config-dir could so run any code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import hydra._internal.hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from legroom.third_party.patching import patched

TARGETS = {
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
    "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper",
}
SAMPLERS = "optuna.samplers."
HANDLERS = {"logging.StreamHandler", "logging.FileHandler", "logging.NullHandler"}
STREAMS = {"ext://sys.stdout", "ext://sys.stderr"}
# What runs in a shell, or changes what a program loads: only where it was typed, not from a file.
TYPED = ("hydra.job.env_set", "hydra.launcher.setup", "hydra.launcher.additional_parameters")


def checked() -> AbstractContextManager[None]:
    """Inside, Hydra refuses every configuration, also that of a sweep's job in another process, that names code."""
    return patched(hydra._internal.hydra, ConfigLoaderImpl=CheckedLoader)


class CheckedLoader(ConfigLoaderImpl):
    """Hydra's loader, which launchers pickle for their jobs: between it and what it composes nothing is called yet."""

    def load_configuration(self, config_name: str | None, overrides: list[str], *args: Any, **named: Any) -> DictConfig:
        """As Hydra's. Raises HydraException for what `check` refuses."""
        composed = super().load_configuration(config_name, overrides, *args, **named)
        check(composed, overrides)
        return composed

    def _process_config_searchpath(self, config_name: Any, parsed_overrides: Any, repo: Any) -> None:
        """As Hydra's, without packages, which it would import."""
        initialize = repo.initialize_sources

        def initialize_sources(search_path: Any) -> None:
            for each in search_path.get_path():
                if each.provider.startswith("hydra.searchpath") and each.path.startswith("pkg:"):
                    raise HydraException(f"hydra.searchpath: {each.path} would import a package. Name a folder.")
            initialize(search_path)

        repo.initialize_sources = initialize_sources
        super()._process_config_searchpath(config_name, parsed_overrides, repo)


def check(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse a composed configuration that names other code than the documentation does.

    overrides: as they were typed. Raises HydraException with the key.
    """
    node = composed.hydra
    for name in ("callbacks", "launcher", "sweeper", "job_logging", "hydra_logging"):
        for key, value in _values(node, name, f"hydra.{name}") if name in node else ():
            _check_value(key, value)
    for key in TYPED:
        value = OmegaConf.select(composed, key, throw_on_resolution_failure=False)
        names = set(value) - set(node.job.env_copy) if key == "hydra.job.env_set" and value else value
        if names and not any(text.lstrip("+~").startswith(key) for text in overrides):
            raise HydraException(f"{key} is set in a file, which could run any code with it. Type it instead.")


def _check_value(key: str, value: Any) -> None:
    section, last = key.split(".")[1], key.rpartition(".")[2]
    if section == "callbacks":
        known = value is None
    elif section.endswith("_logging"):
        external = isinstance(value, str) and value.startswith(("ext:", "cfg:"))
        known = last != "()" and (last != "class" or value in HANDLERS) and (not external or value in STREAMS)
    else:
        known = last != "custom_search_space" or value is None  # a function's name, for Optuna
        if last == "_target_":
            of_sampler = key.startswith("hydra.sweeper.sampler.") and str(value).startswith(SAMPLERS)
            known = of_sampler or (key.count(".") == 2 and value in TARGETS)
        known &= not isinstance(value, str) or value.isprintable()  # a line more would be one of SLURM's script
    if not known:
        raise HydraException(
            f"{key}={str(value)[:100]!r} could run any code: only the launchers, sweepers and loggers of the "
            "documentation are used. Leave it out."
        )


def _values(parent: DictConfig | ListConfig, name: Any, key: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(key, value) of every value below a node; what refers to others as they are now, or as text if they are not."""
    try:
        value = parent[name]
    except OmegaConfBaseException:
        value = str(parent._get_node(name))
    if depth > 50:
        raise HydraException(f"{key}: its value holds itself.")
    if isinstance(value, DictConfig):
        for each in value:
            yield from _values(value, each, f"{key}.{each}", depth + 1)
    elif isinstance(value, ListConfig):
        for index in range(len(value)):
            yield from _values(value, index, f"{key}.{index}", depth + 1)
    else:
        yield key, value
