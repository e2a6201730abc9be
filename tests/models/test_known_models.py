"""The options of `model` that carry a known model's sizes: as many parameters as published, and every family trains."""

from __future__ import annotations

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
# One of each family; the small and the common ones in every run of the tests.
FAMILIES = ["qwen3_8b", "gemma3_4b", "deepseek_v2_lite", "roberta_base"]
MORE_FAMILIES = ["qwen2_5_7b", "qwen3_30b_a3b", "mistral_7b", "gemma2_9b", "phi4", "gpt_oss_20b", "distilbert"]
MORE_FAMILIES += ["modernbert_base"]
SIZES = {"width": 64, "heads": 4, "kv_heads": 2, "feed_forward": 64, "vocab": 512, "positions": 64, "experts": 4}


def known() -> dict[str, dict]:
    """Name -> values, of the options that name a source of their sizes."""
    files = {path.stem: path.read_text() for path in CONF.glob("model/*.yaml")}
    return {name: yaml.safe_load(text) for name, text in files.items() if "\n# Source: huggingface.co/" in text}


def test_known_models_have_the_published_parameters():
    models, base = known(), config.to_dict(compose("device=cpu").cfg)
    assert models.keys() == PUBLISHED.keys()
    for name, values in models.items():
        made = builder.configuration(config.from_dict(base | {"model": values}))
        encoder = values["family"] in model_families.ENCODERS
        kind = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
        with torch.device("meta"):  # shapes without memory
            network = kind.from_config(made)
        assert sum(weight.numel() for weight in network.parameters()) == PUBLISHED[name], name


def test_every_family_is_tried():
    families = {values["family"] for values in known().values()}
    tried = {known()[name]["family"] for name in FAMILIES + MORE_FAMILIES}
    assert families - tried == {"llama", "mixtral"}, "which have tiny options of their own"


@pytest.mark.slow_for("qwen3_8b", "roberta_base")
@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_FAMILIES)])
def test_a_family_trains_at_a_small_size(train, name):
    values = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())
    sizes = [f"model.{key}={size}" for key, size in SIZES.items() if key in values]
    small = {"head_dim": 16, "intermediate_size": 64, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
    small |= {"qk_rope_head_dim": 16}
    if values["family"] == "deepseek_v2":
        sizes.append("model.kv_heads=4")  # its attention shares none
    sizes += [f"model.config.{key}={small[key]}" for key in (values.get("config") or {}).keys() & small.keys()]
    layers = model_families.PERIODS.get(values["family"], 2)
    words = [f"model={name}", *sizes, f"model.layers={layers}", "train.max_steps=3", "model.experts_per_token=2"]
    run = train(*(words if "experts" in values else words[:-1]))
    losses = run.record.training.losses
    assert losses and None not in losses and run.record.memory.parameter_count


def test_a_misspelt_size_of_the_family_is_refused(train):
    record = train("model=qwen3_0_6b", "model.kv_heads=2", "+model.config.head_dimm=16", status=None).record
    assert record.status == "refused" and "head_dimm" in record.error.message
