"""A command line's overrides to a typed, validated configuration and an empty record."""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, open_dict

from recipes import config
from recipes.options import accumulation, hydra_errors, menus, validate
from recipes.records import record
from recipes.records.environment import collect_environment


def menu_folders(told) -> list[Path]:
    """The folders in which Hydra looked for menus."""
    return [Path(source.path) for source in told.runtime.config_sources if source.schema == "file"]


def prepare(composed, told, folders: list[Path]) -> tuple[config.Config | None, record.Record | None, list[str]]:
    """(configuration, record to be filled, problems) of a composed job; no configuration where it has no shape.

    told: Hydra's own node; folders: where it looked for menus. Raises OmegaConfBaseException for
    interpolations that lead nowhere.
    """
    values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    choices, overrides = dict(told.runtime.choices), list(told.overrides.task)
    shape = hydra_errors.shape_problems(values, choices, folders)
    if shape:
        return None, None, shape
    cfg = config.from_dict(values)
    given = {word.lstrip("+~").split("=")[0] for word in overrides}
    problems = menus.set_by_menu(given)  # these make an option another one, so no other check means anything
    problems = problems or menus.unused_keys(values, choices, folders) + validate.validate(cfg, given)
    problems = problems or accumulation.choose(cfg)
    resolved, environment = config.to_dict(cfg), collect_environment(cfg)
    key = record.config_key(resolved, environment["versions"])
    return cfg, record.Record(cfg.recipe.name, overrides, resolved, key, environment), problems


def compose(conf: Path, *overrides: str) -> tuple[config.Config | None, record.Record | None, list[str]]:
    """`prepare` for a script: what the command line with these words would run."""
    ConfigStore.instance().store(name="schema", node=config.Config)
    with hydra.initialize_config_dir(str(conf.absolute()), version_base="1.3"):
        composed = hydra.compose("config", list(overrides), return_hydra_config=True)
    told = composed.hydra
    with open_dict(composed):
        del composed.hydra
    return prepare(composed, told, [conf])
