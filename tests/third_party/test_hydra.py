"""Private names of Hydra that recipes/third_party/hydra_private.py uses."""

import hydra
import pytest

from recipes.paths import CONF
from recipes.third_party import hydra_private


def test_get_args_parser_separates_overrides_from_flags_and_the_config_loader_parses_them():
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        swept, fixed = hydra_private.parse_overrides(["-m", "optim=adamw,sgd", "train.seed=1"])
    assert swept.is_sweep_override() and list(swept.sweep_string_iterator()) == ["adamw", "sgd"]
    assert fixed.get_key_element() == "train.seed" and not fixed.is_sweep_override()


def test_raised_by_hydra_is_true_for_an_error_of_its_own_checks_alone():
    with pytest.raises(AssertionError) as in_hydra:
        hydra.compose("config")  # before Hydra is initialized
    with pytest.raises(ValueError) as in_python:
        int("x")
    assert hydra_private.raised_by_hydra(in_hydra.value) and not hydra_private.raised_by_hydra(in_python.value)
