"""From overrides to a typed, validated configuration and an empty record."""

import functools
import json
from pathlib import Path

import hydra
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from legroom import config, paths
from legroom.errors import Refusal
from legroom.options import gpu, hydra_errors, menus, presets, save, scaled_rate, validate
from legroom.records import record
from legroom.records.environment import collect_environment

Prepared = tuple[config.Config | None, record.Record | None, list[str]]


@functools.cache
def store_schema() -> None:
    """Give Hydra the schema, which conf/config.yaml names in its defaults."""
    ConfigStore.instance().store(name="schema", node=config.Config)


def menu_folders(hydra_config: HydraConf) -> list[Path]:
    """The folders in which Hydra looked for menus. hydra_config: Hydra's own node."""
    return [Path(source.path) for source in hydra_config.runtime.config_sources if source.schema == "file"]


def prepare(composed: DictConfig, hydra_config: HydraConf, folders: list[Path]) -> Prepared:
    """Check a composed job. Returns its configuration, a record to be filled, and problems.

    hydra_config: Hydra's own node. folders: where Hydra looked for menus. Without configuration and record if the
    values do not have the schema's keys. Raises OmegaConfBaseException for an interpolation of a key that does not
    exist.
    """
    values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    assert isinstance(values, dict)
    choices = dict(hydra_config.runtime.choices)
    overrides = list(hydra_config.overrides.task)
    typed_keys = {override.lstrip("+~").split("=")[0] for override in overrides}
    without_option = hydra_errors.option_problems(values, choices, folders)
    if without_option:
        return None, None, without_option
    cfg = config.from_dict(values)
    if cfg.save.final is None:
        cfg.save.final = save.final_by_default(cfg, hydra_config.mode == RunMode.MULTIRUN)
    try:
        problems = menus.unused_keys(values, choices, folders) + validate.validate(cfg, typed_keys)
    except Refusal as refusal:  # of a path that no file system takes
        return None, None, [str(refusal)]
    if not problems:
        problems = validate.choose(cfg)
    problems = [_with_card_of_preset(problem, choices) for problem in problems]
    resolved = config.to_dict(cfg)
    environment = collect_environment(cfg)
    if paths.own_menus():
        environment["menus"] = paths.menus_as_typed()
    key = record.config_key(resolved, environment["versions"])
    warnings = [] if problems else scaled_rate.advice(cfg, overrides, folders)
    return cfg, record.Record(cfg.recipe.kind, overrides, resolved, key, environment, warnings=warnings), problems


def _with_card_of_preset(problem: str, choices: dict[str, str]) -> str:
    """A problem, with the card that the chosen preset is made for where no card was typed."""
    for preset in presets.presets():
        if problem.startswith(gpu.NO_GPU) and choices.get("experiment") == preset.name:
            return f"{problem} experiment={preset.name} is made for gpu={preset.gpu}."
    return problem


def compose(conf: Path, *overrides: str) -> Prepared:
    """`prepare` for the command line with these overrides, with the options of a person's own menus.

    conf: the folder of the menus.
    """
    store_schema()
    own_folders = paths.own_menus()
    if own_folders:
        searched = json.dumps([str(folder) for folder in own_folders], ensure_ascii=False)
        overrides = (*overrides, f"hydra.searchpath={searched}")
    with hydra.initialize_config_dir(str(conf.absolute()), version_base="1.3"):
        composed = hydra.compose("config", list(overrides), return_hydra_config=True)
    hydra_config = composed.hydra
    with open_dict(composed):
        del composed.hydra
    return prepare(composed, hydra_config, [conf, *own_folders])


def compose_valid(conf: Path, *overrides: str) -> tuple[config.Config, record.Record]:
    """`compose` for overrides that can run. Raises ValueError, with every problem, for those that cannot."""
    cfg, outcome, problems = compose(conf, *overrides)
    if cfg is None or outcome is None or problems:
        raise ValueError(f"{' '.join(overrides)}: {' '.join(problems)}")
    return cfg, outcome
