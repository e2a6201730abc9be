"""The options of `model` that carry a known model's sizes: as many parameters as published, and every family trains."""

from __future__ import annotations

import functools
import re

import pytest
import torch
import transformers
import yaml
from conftest import CONF, compose

from legroom import config
from legroom.models import builder
from legroom.options import model_families

# As the pages of the models at huggingface.co count the tensors of their files; encoders without a head, Gemma 3
# without the part for pictures, tied embeddings once.
PUBLISHED = {
    "qwen2_5_0_5b": 494_032_768,
    "qwen2_5_1_5b": 1_543_714_304,
    "qwen2_5_3b": 3_085_938_688,
    "qwen2_5_7b": 7_615_616_512,
    "qwen2_5_14b": 14_770_033_664,
    "qwen2_5_32b": 32_763_876_352,
    "qwen2_5_72b": 72_706_203_648,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "qwen3_30b_a3b": 30_532_122_624,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama_1b": 1_235_814_400,
    "llama_3b": 3_212_749_824,
    "llama_8b": 8_030_261_248,
    "llama_70b": 70_553_706_496,
    "mistral_7b": 7_248_023_552,
    "mistral_nemo_12b": 12_247_782_400,
    "mistral_small_24b": 23_572_403_200,
    "mixtral_8x7b": 46_702_792_704,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_1b": 999_885_952,
    "gemma3_4b": 3_880_263_168,
    "gemma3_12b": 11_766_034_176,
    "gemma3_27b": 27_009_346_304,
    "phi3_mini": 3_821_079_552,
    "phi3_medium": 13_960_238_080,
    "phi4_mini": 3_836_021_760,
    "phi4": 14_659_507_200,
    "deepseek_7b": 6_910_365_696,
    "deepseek_v2_lite": 15_706_484_224,
    "gpt_oss_20b": 20_914_757_184,
    "roberta_base": 124_645_632,
    "roberta_large": 355_359_744,
    "distilbert": 66_362_880,
    "modernbert_base": 149_014_272,
    "modernbert_large": 394_781_696,
    "smollm2_135m": 134_515_008,
    "tinyllama_1b": 1_100_048_384,
}
# What the pages, papers and names of these say. Their sizes are from other programs that train them (the second line of
# each option says which), or from copies of their config.json; Gemma 4's counts are those with sound and pictures.
STATED = {
    "gpt_oss_120b": "116.83B",
    "qwen3_5_0_8b": "0.8B",
    "qwen3_5_4b": "4B",
    "qwen3_5_9b": "9B",
    "qwen3_5_27b": "27B",
    "qwen3_5_35b_a3b": "35B",
    "qwen3_235b_a22b": "235B",
    "glm4_9b": "9B",
    "glm4_32b": "32B",
    "glm4_5_air": "106B",
    "glm4_5": "355B",
    "smollm3_3b": "3.08B",
    "smollm2_360m": "362M",
    "smollm2_1_7b": "1.71B",
    "olmo2_1b": "1.48B",
    "olmo2_7b": "7.3B",
    "olmo2_13b": "13.7B",
    "olmo3_7b": "7.3B",
    "olmo3_32b": "32.2B",
    "granite4_micro": "3.4B",
    "granite4_h_tiny": "6.94B",
    "granite3_2b": "2.53B",
    "granite3_8b": "8.17B",
    "moonlight_16b_a3b": "16B",
    "kimi_k2": "1.0T",
    "deepseek_v3": "671B",
    "ministral3_3b": "3.4B",
    "ministral3_8b": "8.4B",
    "ministral3_14b": "13.5B",
    "ministral_8b": "8.02B",
    "mixtral_8x22b": "140.6B",
    "mistral_large_123b": "123B",
    "mistral_7b_v0_1": "7.24B",
    "seed_oss_36b": "36B",
    "gemma3_270m": "268M",
    "gemma_2b": "2.51B",
    "gemma_7b": "8.54B",
    "llama_405b": "406B",
    "codellama_7b": "6.74B",
    "codellama_13b": "13.0B",
    "codellama_34b": "33.7B",
    "falcon3_1b": "1.67B",
    "falcon3_3b": "3.23B",
    "falcon3_7b": "7.46B",
    "falcon3_10b": "10.3B",
    "deepseek_r1_distill_1_5b": "1.78B",
    "yi_6b": "6.06B",
    "yi_9b": "8.83B",
    "yi_34b": "34.4B",
    "solar_10_7b": "10.7B",
    "gpt2_medium": "355M",
    "gpt2_large": "774M",
    "starcoder2_3b": "3.03B",
    "starcoder2_7b": "7.17B",
    "starcoder2_15b": "16.0B",
    "pythia_160m": "162M",
    "pythia_410m": "405M",
    "pythia_1b": "1.01B",
    "pythia_6_9b": "6.9B",
    "pythia_12b": "11.8B",
    "xlm_roberta_base": "278M",
    "minilm_l6": "22.7M",
    "gemma4_e2b": "5.1B",
    "gemma4_e4b": "8.0B",
}
# One of each family; the small and the common ones in every run of the tests.
FAMILIES = ["qwen3_8b", "gemma3_4b", "deepseek_v2_lite", "roberta_base"]
MORE_FAMILIES = ["qwen2_5_7b", "qwen3_30b_a3b", "mistral_7b", "gemma2_9b", "phi4", "gpt_oss_20b", "distilbert"]
MORE_FAMILIES += [
    "modernbert_base",
    "xlm_roberta_base",
    "qwen3_5_4b",
    "qwen3_5_35b_a3b",
    "glm4_9b",
    "glm4_5_air",
    "smollm3_3b",
]
MORE_FAMILIES += ["olmo2_7b", "olmo3_7b", "granite3_8b", "granite4_micro", "granite4_h_tiny", "moonlight_16b_a3b"]
MORE_FAMILIES += [
    "ministral3_8b",
    "seed_oss_36b",
    "gemma_2b",
    "starcoder2_3b",
    "pythia_1b",
    "gemma4_e4b",
    "gpt2_medium",
]
SIZES = {"width": 64, "heads": 4, "kv_heads": 2, "feed_forward": 64, "vocab": 512, "positions": 64, "experts": 4}


def known() -> dict[str, dict]:
    """Name -> values, of the options that name a source of their sizes."""
    files = {path.stem: path.read_text() for path in CONF.glob("model/*.yaml")}
    return {name: yaml.safe_load(text) for name, text in files.items() if "\n# Source: huggingface.co/" in text}


@functools.cache
def parameters(name: str) -> int:
    """The parameters of the model that an option describes."""
    values = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())
    made = builder.configuration(config.from_dict(whole_configuration() | {"model": values}))
    encoder = values["family"] in model_families.ENCODERS
    kind = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
    with torch.device("meta"):  # shapes without memory
        network = kind.from_config(made)
    return sum(weight.numel() for weight in network.parameters())


@functools.cache
def whole_configuration() -> dict:
    return config.to_dict(compose("device=cpu").cfg)


def test_known_models_have_the_published_parameters():
    assert known().keys() == PUBLISHED.keys() | STATED.keys()
    for name, count in PUBLISHED.items():
        assert parameters(name) == count, name


def test_known_models_have_the_parameters_that_are_stated():
    """Within the digits that are stated: 1 % for three digits, 10 % for fewer, as a name's '9B' has."""
    for name, stated in STATED.items():
        number = stated[:-1]
        count = float(number) * {"M": 1e6, "B": 1e9, "T": 1e12}[stated[-1]]
        digits = len(number.replace(".", "").lstrip("0"))
        assert parameters(name) == pytest.approx(count, rel=0.01 if digits >= 3 else 0.1), name


def test_the_first_line_of_an_option_has_its_parameters():
    for name in STATED:
        first_line = (CONF / "model" / f"{name}.yaml").read_text().partition("\n")[0]
        number, unit = re.search(r"\(([\d.]+) ([BM]) parameters\)", first_line).groups()
        counted = parameters(name) / {"M": 1e6, "B": 1e9}[unit]
        assert abs(counted - float(number)) <= (0.051 if "." in number else 0.51), name


def test_every_family_is_tried():
    families = {values["family"] for values in known().values()}
    tried = {known()[name]["family"] for name in FAMILIES + MORE_FAMILIES}
    assert families - tried == {"bert", "llama", "mixtral"}, "which have tiny options of their own"


@pytest.mark.slow_for("qwen3_8b", "roberta_base")
@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_FAMILIES)])
def test_a_family_trains_at_a_small_size(train, name):
    values = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())
    sizes = [f"model.{key}={size}" for key, size in SIZES.items() if key in values]
    small = {"head_dim": 16, "intermediate_size": 64, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
    small |= {"qk_rope_head_dim": 16, "shared_expert_intermediate_size": 64}
    small |= {"shared_intermediate_size": 64, "hidden_size_per_layer_input": 16}
    small |= {"num_kv_shared_layers": 1, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "q_lora_rank": 16}
    if values["family"].startswith("qwen3_5"):
        del small["head_dim"]  # of which a quarter is turned, in three sections
    if values["family"] in ("deepseek_v2", "deepseek_v3"):
        sizes.append("model.kv_heads=4")  # its attention shares none
    sizes += [f"model.config.{key}={small[key]}" for key in (values.get("config") or {}).keys() & small.keys()]
    layers = model_families.PERIODS.get(values["family"], 2)
    if "layer_types" in (values.get("config") or {}):  # two kinds, where there are two
        kinds = sorted(set(values["config"]["layer_types"]), reverse=values["family"] == "gemma4_text")
        kinds = [kinds[0], kinds[-1], kinds[-1]]
        layers = len(kinds)
        sizes.append(f"model.config.layer_types=[{','.join(kinds)}]")
    words = [f"model={name}", *sizes, f"model.layers={layers}", "train.max_steps=3", "model.experts_per_token=2"]
    run = train(*(words if "experts" in values else words[:-1]))
    losses = run.record.training.losses
    assert losses and None not in losses and run.record.memory.parameter_count


def test_a_misspelt_size_of_the_family_is_refused(train):
    record = train("model=qwen3_0_6b", "model.kv_heads=2", "+model.config.head_dimm=16", status=None).record
    assert record.status == "refused" and "head_dimm" in record.error.message
