"""What a configuration may have Hydra import, call or run in a shell: what the documentation names, nothing else.

Hydra imports and calls any name that its own node holds: of callbacks, of the parts of launchers and sweepers, and of
Python's logging. A file of --config-dir could so run any code.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hydra._internal.hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from legroom.compat.patching import patched

TARGETS = {
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
    "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher",
    "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper",
}
SAMPLER = re.compile(r"optuna\.samplers\.(nsgaii\.)?[A-Z]\w*")  # a class: through a module is the way to any code
LOG_FILE = "${hydra.runtime.output_dir}/${hydra.job.name}.log"
HANDLERS = {"logging.StreamHandler", "logging.FileHandler", "logging.NullHandler"}
STREAMS = {"ext://sys.stdout", "ext://sys.stderr"}
# What runs in a shell, or changes what a program loads: only where it was typed, not from a file.
TYPED = (
    "hydra.job.env_set",
    *(f"hydra.launcher.{name}" for name in ("setup", "teardown", "srun_args", "additional_parameters")),
    # Packages and commands of Ray's workers, and the cluster that is given the jobs.
    *(f"hydra.launcher.ray.{name}" for name in ("init.runtime_env", "init.address", "remote.runtime_env")),
)


@contextlib.contextmanager
def checked(check_sweep: Callable[[DictConfig], None]) -> Iterator[None]:
    """Inside, Hydra refuses every configuration, also that of a sweep's job in another process, that names code.

    check_sweep: is given Hydra's node of this process's configurations where it gives a sweeper parameters.
    """
    with (
        patched(hydra._internal.hydra, ConfigLoaderImpl=CheckedLoader),
        patched(CheckedLoader, check_sweep=staticmethod(check_sweep)),
    ):
        yield


class CheckedLoader(ConfigLoaderImpl):
    """Hydra's loader, which launchers pickle for their jobs: between it and what it composes nothing is called yet."""

    check_sweep: Callable[[DictConfig], None] | None = None

    def load_configuration(self, config_name: str | None, overrides: list[str], *args: Any, **named: Any) -> DictConfig:
        """As Hydra's. Raises HydraException for what `check` refuses."""
        composed = super().load_configuration(config_name, overrides, *args, **named)
        check(composed, overrides)
        if self.check_sweep is not None and composed.hydra.sweeper.get("params"):
            self.check_sweep(composed.hydra)
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
        for key, value, written in _values(node, name, f"hydra.{name}") if name in node else ():
            if not _is_known(key, value, written):
                raise HydraException(
                    f"{key}={str(value)[:100]!r} could run any code: only the launchers, sweepers and loggers of the "
                    "documentation are used. Leave it out."
                )
    for key in TYPED:
        value = OmegaConf.select(composed, key, throw_on_resolution_failure=False)
        names = set(value) - set(node.job.env_copy) if key == "hydra.job.env_set" and value else value
        if names and not any(text.lstrip("+~").startswith(key) for text in overrides):
            raise HydraException(f"{key} is set in a file, which could run any code with it. Type it instead.")


def _is_known(key: str, value: Any, written: str | None) -> bool:
    """Whether a value runs nothing. written: its interpolation, which a job may resolve to another value later on."""
    section, last = key.split(".")[1], key.rpartition(".")[2]
    if section == "callbacks" or isinstance(value, DictConfig | ListConfig):
        return value is None and written is None
    if section.endswith("_logging"):
        if last == "filename":  # with a format, another file would be a program
            return written == LOG_FILE
        external = isinstance(value, str) and value.startswith(("ext:", "cfg:"))
        known = last != "()" and (last != "class" or value in HANDLERS) and (not external or value in STREAMS)
        return known and written is None
    if last == "_target_":
        of_sampler = key.startswith("hydra.sweeper.sampler.") and SAMPLER.fullmatch(str(value))
        return written is None and bool(of_sampler or (key.count(".") == 2 and value in TARGETS))
    if last == "custom_search_space":  # a function's name, for Optuna
        return value is None
    if re.search(r"\.[+~]*hydra[./]", key):  # a sweeper's parameters would count as typed
        return False
    return not isinstance(value, str) or value.isprintable()  # a line more would be one of SLURM's script


def _values(parent: DictConfig | ListConfig, name: Any, key: str) -> Iterator[tuple[str, Any, str | None]]:
    """(key, value, interpolation or None) of every value below a node, and of what refers to another node."""
    node = parent._get_node(name)
    assert isinstance(node, Node)
    written = node._value() if node._is_interpolation() else None
    try:
        value = parent[name]
    except OmegaConfBaseException:
        value = written
    if isinstance(value, DictConfig | ListConfig) and written is None:
        for each in value if isinstance(value, DictConfig) else range(len(value)):
            yield from _values(value, each, f"{key}.{each}")
    else:
        yield key, value, written
