"""Private names of Hydra with which a sweep remembers what it has read: what it composes is the same."""

from __future__ import annotations

import hydra
import pytest
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from legroom.compat import hydra_remembered_private
from legroom.options import compose
from legroom.paths import CONF

LINES = [
    ["model=llama_tiny", "train.seed=1"],
    ["model=llama_tiny", "train.seed=2", "optim.beta1=0.5"],
    ["optim=sgd", "precision=bf16"],
    ["model=llama_tiny", "train.seed=1"],
    ["+experiment/guide=vanilla", "optim=adafactor"],
    [],
]


def composed(words: list[str], folder: str = str(CONF)):
    with hydra.initialize_config_dir(folder, version_base="1.3"):
        return hydra.compose("config", overrides=words, return_hydra_config=True)


def test_remembered_menus_compose_to_the_same():
    compose.store_schema()
    anew = [composed(words) for words in LINES]
    with hydra_remembered_private.remembered():
        for words, expected in zip(LINES, anew):
            assert OmegaConf.to_yaml(composed(words)) == OmegaConf.to_yaml(expected), words
            assert composed(words).train.seed == expected.train.seed


def test_an_option_that_there_is_not_is_an_error_each_time():
    compose.store_schema()
    with hydra_remembered_private.remembered():
        for _ in range(2):
            composed(["optim=sgd"])
            with pytest.raises(MissingConfigException, match="optim/none_of_these"):
                composed(["optim=none_of_these"])


def test_a_file_is_read_once_inside_and_anew_afterwards(tmp_path):
    file = tmp_path / "config.yaml"
    for inside in (True, False):
        file.write_text("value: 1\n")
        if not inside:
            assert composed([], str(tmp_path)).value == 1
            file.write_text("value: 2\n")
            assert composed([], str(tmp_path)).value == 2
            continue
        with hydra_remembered_private.remembered():
            assert composed([], str(tmp_path)).value == 1
            file.write_text("value: 2\n")
            assert composed([], str(tmp_path)).value == 1


def test_with_only_a_folder_the_files_of_others_are_read_anew(tmp_path):
    file = tmp_path / "config.yaml"
    with hydra_remembered_private.remembered(only=CONF):
        for value in (1, 2):
            file.write_text(f"value: {value}\n")
            assert composed([], str(tmp_path)).value == value
