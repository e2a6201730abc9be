"""Names of Hydra that are not part of its public interface."""

import functools
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn

import hydra._internal.hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.core.utils import JobReturn
from omegaconf import DictConfig

from legroom.compat.patching import patched


def parse_overrides(argv: Sequence[str]) -> list[Override]:
    """The overrides of a command line, without Hydra's flags. Hydra must be initialized.

    Hydra gives a job its own overrides, but not those of the sweep; with them the number of jobs is known in advance.
    """
    overrides = get_args_parser().parse_args(list(argv)).overrides
    return OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(overrides)


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def parse_override(text: str) -> Override:
    """One override, before Hydra is initialized. Raises OverrideParseException."""
    return _parser().parse_override(text)


def values_of(override: Override) -> list[Any] | None:
    """The values of an override, several of a choice in a sweep; None where only Hydra can enumerate them."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return [Override._convert_value(each) for each in value.list]
    return None if override.is_sweep_override() else [value]


def flags_decide_the_mode() -> AbstractContextManager[None]:
    """Inside, -m alone makes a command a sweep.

    Hydra composes every command twice, the first time only to read `hydra.mode`, which takes as long as all the rest.
    """
    return patched(Hydra, get_mode=lambda *_, **__: None)  # None: the flags decide


def forgotten_jobs() -> AbstractContextManager[None]:
    """Inside, what a launcher returns of a job is without its configuration.

    A launcher keeps what it returns of every job until the sweep ends: half a MiB of it is configuration, which nobody
    reads.
    """
    return patched(hydra._internal.hydra, Callbacks=ForgetfulCallbacks)


class ForgetfulCallbacks(Callbacks):
    """Hydra's list of callbacks, which launchers pickle for the processes of their jobs."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        super().on_job_end(config, job_return, **kwargs)
        job_return.cfg = job_return.hydra_cfg = None


class Flag(NamedTuple):
    """What may follow a flag of Hydra's command line."""

    takes_value: bool
    optional_values: tuple[str, ...]  # values that may follow a flag that needs none


@functools.cache
def flags() -> dict[str, Flag]:
    """Every flag of Hydra's command line, long and short."""
    return {
        name: Flag(action.nargs is None, tuple(action.choices or ()) if action.nargs == "?" else ())
        for action in get_args_parser()._actions
        for name in action.option_strings
    }


def flag_problem(argv: Sequence[str]) -> str | None:
    """What Hydra's parser says of flags that it does not take, where it would print its usage and exit; else None."""
    parser = get_args_parser()

    def error(message: str) -> NoReturn:
        raise ValueError(message)

    parser.error = error
    try:
        parser.parse_args([each for each in argv if each != "--version"])
    except ValueError as problem:
        return str(problem)
    return None


def raised_by_plugin(error: BaseException) -> bool:
    """Whether an exception was raised in a plugin of Hydra, as a sweeper, and not in a job that it started."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [name for name in names if name.startswith(("hydra_plugins.", "legroom."))]
    return bool(inside) and inside[-1].startswith("hydra_plugins.")


def raised_by_hydra(error: BaseException) -> bool:
    """Whether an exception was raised in a module of Hydra or OmegaConf.

    Some of Hydra's checks of a command line raise a plain ValueError, which only its traceback tells from one of a job.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith(("hydra.", "omegaconf."))
