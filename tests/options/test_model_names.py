"""Every usual spelling of the models that people train finds the option with its sizes.

hub_ids.tsv has the sizes of published models: as litgpt's litgpt/config.py has them (which names the config.json of
each), for other ids of the lists of LLaMA-Factory those of the model whose weights they are, fine-tuned or quantised.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import yaml
from conftest import CONF

from legroom.options import model_names, overrides

SIZES = ("layers", "width", "feed_forward", "vocab")


@pytest.fixture(scope="module")
def published():
    with Path(__file__).with_name("hub_ids.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture(scope="module")
def options():
    return {path.stem: yaml.safe_load(path.read_text()) for path in CONF.glob("model/*.yaml")}


def test_hub_ids_have_the_sizes_of_their_config_json(published, options):
    assert len(published) >= 300
    for row in published:
        option = model_names.option(row["hub_id"])
        assert option is not None, row["hub_id"]
        assert {size: options[option][size] for size in SIZES} == {size: int(row[size]) for size in SIZES}, row[
            "hub_id"
        ]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda hub_id: f"https://huggingface.co/{hub_id}/tree/main",
        lambda hub_id: f"unsloth/{hub_id.partition('/')[2]}-unsloth-bnb-4bit",
        lambda hub_id: f"someone/{hub_id.partition('/')[2].lower()}-GGUF",
        lambda hub_id: hub_id.partition("/")[2],
        lambda hub_id: re.sub("[-_]", " ", hub_id.partition("/")[2]),
    ],
    ids=["link", "quantised", "lower", "name", "words"],
)
def test_other_spellings_mean_the_same_model(published, spelling):
    for row in published:
        assert model_names.option(spelling(row["hub_id"])) == model_names.option(row["hub_id"]), row["hub_id"]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("Llama 3.1 8B", "llama_8b"),
        ("llama 8b", "llama_8b"),
        ("Llama 3.3 70B", "llama_70b"),
        ("Qwen2.5-7B-Instruct", "qwen2_5_7b"),
        ("Mistral 7B", "mistral_7b"),
        ("gpt-oss 20b", "gpt_oss_20b"),
        ("GPT-2 XL", "gpt2_xl"),
        ("SmolLM3", "smollm3_3b"),
        ("Code Llama 7B", "codellama_7b"),
        ("llama_8b", "llama_8b"),
        ("Llama-8B", "llama_8b"),
    ],
)
def test_what_people_say_is_understood(name, option):
    assert model_names.option(name) == option


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Qwen 32B", "qwen3_32b"),  # two models have that size
        ("mistral", "mistral_7b"),
        ("lama 3.1 8b", "llama_8b"),
        ("NousResearch/Somebodys-Llama-3.1-8B", "llama_8b"),  # named after it; its sizes may be others
        ("nobody/foo-8b", "llama_8b"),  # of that size
    ],
)
def test_what_is_not_clear_is_offered_and_not_taken(name, near):
    assert model_names.option(name) is None
    assert near in model_names.near(name)
    assert f"model={near}" in model_names.offered(name)


def test_each_option_is_its_own_name_and_that_of_its_source(options):
    for option in options:
        assert model_names.option(option) == option


def test_every_model_with_the_sizes_of_an_option_finds_it(options):
    for option, others in model_names.SAME_MODELS.items():
        assert option in options
        assert {model_names.option(hub_id) for hub_id in others} <= {option}, option


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("model=Llama 3.1 8B", "model=llama_8b"),
        ("model='Llama 3.1 8B'", "model=llama_8b"),
        ("model=meta-llama/Llama-3.1-8B-Instruct", "model.pretrained=meta-llama/Llama-3.1-8B-Instruct"),
        ("model=hf.co/Qwen/Qwen3-8B", "model.pretrained=Qwen/Qwen3-8B"),
        ("model=Llama 8B,Mistral 7B", "model=llama_8b,mistral_7b"),
        ("model=Qwen/Qwen3-8B,Qwen/Qwen3-4B", "model.pretrained=Qwen/Qwen3-8B,Qwen/Qwen3-4B"),
    ],
)
def test_an_override_takes_any_name(typed, read):
    found, notes = model_names.in_overrides(["precision=bf16", typed], [CONF])
    assert found == ["precision=bf16", read]
    (note,) = notes
    assert read in note


@pytest.mark.parametrize("typed", ["model=llama_8b", "model=Qwen 32B", "model=Llama 8B,a/b", "data=chat", "model=null"])
def test_other_overrides_stay(typed):
    assert model_names.in_overrides([typed], [CONF]) == ([typed], [])


def test_a_name_that_is_not_clear_is_refused_with_near_options():
    (problem,) = overrides.problems(["model=Qwen 32B"], [CONF], False)
    assert "model=qwen3_32b" in problem and "model=qwen2_5_32b" in problem and "--help model" in problem
