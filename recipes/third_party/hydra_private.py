"""Names of Hydra that are not part of its public interface."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override


def parse_overrides(argv: Sequence[str]) -> list[Override]:
    """The overrides of a command line, without Hydra's flags. Hydra must be initialized.

    Hydra gives a job its own overrides, but not those of the sweep; with them the number of jobs is known in advance.
    """
    from hydra._internal.utils import get_args_parser

    overrides = get_args_parser().parse_args(list(argv)).overrides
    return OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(overrides)


def raised_by_hydra(error: BaseException) -> bool:
    """Whether an exception was raised in a module of Hydra.

    Some of Hydra's checks of a command line raise a plain ValueError, which only its traceback tells from one of a job.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith("hydra.")
