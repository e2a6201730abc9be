"""From the command line to the record: Hydra composes, we check, launch and report. Never imports torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from recipes import config, launch, record, screen, supervise, validate

# One run's exit code by its status; 1 for any other. A sweep counts every result as a success.
EXIT_CODES = {"ok": 0, "preempted": 0, "refused": 2, "oom": 3, "interrupted": 130}
SWEEP_SUCCESS = {"ok", "oom", "preempted"}


def run(conf: Path) -> int:
    """Run what the command line says. conf: the folder of the menus. Returns the exit code."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, and we say it in our words
    ConfigStore.instance().store(name="schema", node=config.Config)
    statuses: list[str] = []
    modes: set[RunMode] = set()

    @hydra.main(version_base="1.3", config_path=str(conf), config_name="config")
    def job(composed) -> str:
        modes.add(HydraConfig.get().mode)
        if "interrupted" not in statuses:  # Ctrl-C ends a sweep, not one of its jobs
            statuses.append(run_job(composed, conf))
        return statuses[-1]

    try:
        job()
    except KeyboardInterrupt:  # before a job had begun
        statuses.append("interrupted")
    except (HydraException, OmegaConfBaseException) as error:
        screen.say_problems([in_words(error, conf)])
        statuses.append("refused")
        modes.clear()  # nothing has started, also in a sweep
    except OSError as error:
        screen.say_problems([_unwritable(error)])
        statuses.append("refused")
        modes.clear()
    if "interrupted" in statuses or RunMode.MULTIRUN not in modes:
        return EXIT_CODES.get(statuses[-1], 1) if statuses else 0
    return 0 if set(statuses) <= SWEEP_SUCCESS else 1


def run_job(composed, conf: Path) -> str:
    """One job, from its composed configuration to the summary on the screen. Returns its status; never raises."""
    told = HydraConfig.get()
    try:
        folders = [Path(source.path) for source in told.runtime.config_sources if source.schema == "file"]
        cfg, outcome, problems = prepare(composed, told, folders)
    except OmegaConfBaseException as error:
        screen.say_problems([in_words(error, conf)])
        return "refused"
    if cfg is None:
        screen.say_problems(problems)
        return "refused"
    folder = Path(told.sweep.dir) / outcome.config_key if told.mode == RunMode.MULTIRUN else Path(told.runtime.output_dir)
    try:
        return _run_in(folder.absolute(), cfg, outcome, problems)
    except OSError as error:
        screen.say_problems([_unwritable(error)])
        return "failed"


def prepare(composed, told, folders: list[Path]) -> tuple[config.Config | None, record.Record | None, list[str]]:
    """(configuration, record to be filled, problems) of a composed job; no configuration where it has no shape.

    told: Hydra's own node; folders: where it looked for menus. Raises OmegaConfBaseException for
    interpolations that lead nowhere.
    """
    values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    choices, overrides = dict(told.runtime.choices), list(told.overrides.task)
    shape = shape_problems(values, choices, folders)
    if shape:
        return None, None, shape
    cfg = config.from_dict(values)
    given = {word.lstrip("+~").split("=")[0] for word in overrides}
    problems = validate.unused_keys(values, choices, folders) + validate.validate(cfg, given)
    resolved, environment = config.to_dict(cfg), record.environment(cfg)
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


def _run_in(folder: Path, cfg, outcome: record.Record, problems: list[str]) -> str:
    """Refuse or run a job in its folder. Raises OSError when the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / record.FILE_NAME).exists():
        screen.say_problems([f"{folder} holds another run's record. Choose another folder with hydra.run.dir=."])
        return "refused"
    if problems:
        screen.say_problems(problems)
        outcome.status, outcome.error = "refused", record.Error("load", "Refusal", "\n".join(problems))
        record.write(outcome, folder)
        return "refused"
    outcome.warnings = validate.warnings(cfg)
    with screen.Screen() as display:
        for line in outcome.warnings:
            display.warn(line)
        outcome = supervise.run(launch.Job(outcome, folder), display.hear)
    if outcome.status == "refused":
        screen.say_problems(outcome.error.message.splitlines())
    else:
        screen.say(screen.summary(outcome, folder))
    return outcome.status


def _unwritable(error: OSError) -> str:
    return (f"{error.filename or 'the run folder'} cannot be written: {error.strerror or error}. "
            "Choose another folder with hydra.run.dir=.")


def shape_problems(values: dict, choices: dict, folders: list[Path]) -> list[str]:
    """What `+key=`, `~menu` and `menu=null` can do to a configuration that the schema does not see."""
    problems = []
    for group in config.GROUPS:
        if choices.get(group) is None:
            problems.append(f"{group} needs one of its options: {', '.join(validate.options(group, folders))}.")
    for name, kind in config.node_types().items():
        if isinstance(values.get(name), dict):
            problems += [unknown_key(f"{name}.{key}") for key in values[name] if key not in config.node_types(kind)]
    return problems + [unknown_key(name) for name in values if name not in config.node_types()]


# --- Hydra's complaints in our words ---------------------------------------------------------------


def in_words(error: Exception, conf: Path) -> str:
    """One line for what Hydra or OmegaConf refused: what is wrong, and what to type instead."""
    text = str(error)
    cause = str(error.__cause__ or "")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        missing = str(error.missing_cfg_file)
        group = next((g for g in config.GROUPS if missing.startswith(g + "/")), missing.rpartition("/")[0])
        option, known = missing.removeprefix(group + "/"), sorted(p.stem for p in (conf / group).glob("*.yaml"))
        return (f"{group}={option}: there is no such option; {group} has {', '.join(known)}."
                + validate.nearest(option, known))
    several = re.match(r"Ambiguous value for argument '([^']+)'", text)
    if several:
        return f"{several[1]} names several values: add -m to run them all, one after another."
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' cannot be read as menu=option or key=value: {text.splitlines()[0]}."
    key = re.search(r"Could not override '([^'@]+)", text) or re.search(r"full_key: (\S+)", text + "\n" + cause)
    if isinstance(error, ConfigCompositionException) and key and "Could not override" in text:
        return unknown_key(key[1])
    wrong = re.search(r"(Value '.*?' .*?)(?:\n|$)", text + "\n" + cause)
    if key and wrong:
        return f"{key[1]}: {wrong[1].strip()}."
    missing = re.search(r"Key '([^']+)' (?:not in|is not in)", text + "\n" + cause)
    if missing and key:
        return unknown_key(key[1])
    first = [line.strip() for line in (text + "\n" + cause).splitlines() if line.strip()]
    return " ".join(first[:3])


def unknown_key(key: str) -> str:
    """The line for a key that does not exist."""
    kinds = config.node_types()
    key = key.lstrip("+~")
    names = list(kinds)
    for name, kind in kinds.items():
        if hasattr(kind, "__dataclass_fields__"):
            names += [f"{name}.{k}" for k in config.node_types(kind) if k != "name"]
    head, _, tail = key.partition(".")
    if tail and head in kinds:  # a misspelt key of a real menu: its own keys are the candidates
        names = [n for n in names if n.startswith(head + ".")] or names
    what = "menu or key" if not tail else "key"
    suggestion = validate.nearest(key, names)
    if not suggestion:
        suggestion = f" {head} has {', '.join(names)}." if tail and head in kinds else " python train.py --help lists all."
    return f"{key}: there is no such {what}.{suggestion}"

