"""Names of Hydra that are not part of its public interface."""

from __future__ import annotations

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
