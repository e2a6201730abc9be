"""The private names of transformers' models behave as legroom.compat.transformers_models_private says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers
import yaml
from conftest import CONF
from packaging.requirements import Requirement
from packaging.version import Version
from transformers import (
    CONFIG_MAPPING,
    BertConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    masking_utils,
    modeling_utils,
)
from transformers.integrations import hub_kernels
from transformers.utils import import_utils

from legroom.compat import transformers_models_private
from legroom.options import model_families


def test_is_encoder():
    assert transformers_models_private.is_encoder(BertConfig())
    assert not transformers_models_private.is_encoder(GPT2Config())
    assert not transformers_models_private.is_encoder(BertConfig(is_decoder=True))


def test_is_decoder_only():
    assert transformers_models_private.is_decoder_only(GPT2Config())
    assert not transformers_models_private.is_decoder_only(BertConfig(is_decoder=True))


def test_padding_is_taken_away_and_put_back():
    rows, mask = torch.arange(12.0).view(2, 3, 2), torch.tensor([[1, 1, 0], [1, 0, 0]])
    tokens, positions, begins, longest, used = transformers_models_private.unpad_input(rows, mask)
    assert (begins.tolist(), int(longest), used.tolist()) == ([0, 2, 3], 2, [2, 1])
    assert torch.equal(transformers_models_private.pad_input(tokens, positions, 2, 3), rows * mask[..., None])


def test_expert_parallel_plan_and_the_exchange_of_tokens(monkeypatch):
    from transformers.distributed import expert_parallel

    with torch.device("meta"):
        model = MixtralForCausalLM(MixtralConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2))
    plan = transformers_models_private.expert_parallel_plan(model)
    assert plan["layers.*.mlp.experts"] == "ep_dispatch_experts"
    assert plan["layers.*.mlp.experts.down_proj"] == "grouped_gemm"
    monkeypatch.setattr(expert_parallel.AllToAllEP, "_dispatch_tokens", lambda *given: given[1:])
    exchange, experts = expert_parallel.all_to_all_single, SimpleNamespace(num_local_experts=2)
    experts.ep_mesh = SimpleNamespace(size=lambda: 4)
    with transformers_models_private.replaced_routes(lambda chosen, count: (chosen, count), print):
        assert expert_parallel.AllToAllEP._dispatch_tokens(experts, 1, 2, 3) == (1, (2, 8), 3)
        assert expert_parallel.all_to_all_single is print
    assert expert_parallel.all_to_all_single is exchange


def test_pipeline_plan():
    """The base model's modules with weights and the layers, in their order."""
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
        without = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2))
    plan = transformers_models_private.pipeline_plan(model)
    assert plan == [name for name, each in model.model.named_children() if [*each.parameters()]]
    assert plan == ["embed_tokens", "layers", "norm"]
    assert transformers_models_private.pipeline_plan(without) == []


def test_attention():
    sizes = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=8)
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    assert transformers_models_private.attention_of(model) == "sdpa"
    assert transformers_models_private.has_attention(GPT2LMHeadModel, "sdpa")
    assert transformers_models_private.has_attention(GPT2LMHeadModel, "eager")
    assert not transformers_models_private.has_attention(BloomForCausalLM, "sdpa")
    assert not transformers_models_private.has_attention(BloomForCausalLM, "flash_attention_2")


@pytest.mark.parametrize("name", ["flash_attention_2", "kernels-community/flash-attn2"])
def test_replaced_attention(name):
    """Without its package, without a mask even of padded rows, and until the end of the context."""
    seen = []

    def forward(module, query, key, value, mask, sliding_window=None, **_):
        seen.append((mask, sliding_window))
        return query.transpose(1, 2), None

    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16)
    config = MistralConfig(**sizes, num_key_value_heads=2, sliding_window=3)
    padded = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    tables = (masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, modeling_utils.ALL_ATTENTION_FUNCTIONS)
    before = [dict(table) for table in tables]
    with transformers_models_private.replaced_attention(name, forward):
        model = MistralForCausalLM._from_config(config, attn_implementation=name)
        model(torch.ones(2, 4, dtype=torch.long), attention_mask=padded)
    assert seen == [(None, 3)] and [dict(table) for table in tables] == before


def test_wanted_kernels(monkeypatch):
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: False)
    assert Requirement(transformers_models_private.wanted_kernels()).name == "kernels"
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: True)
    assert transformers_models_private.wanted_kernels() is None


def test_load_hub_attention(monkeypatch):
    def load(name, *_, **__):
        raise ValueError(f"no {name}")

    monkeypatch.setattr(hub_kernels, "load_and_register_attn_kernel", load)
    with pytest.raises(ValueError, match="no kernels-community/flash-attn2"):
        transformers_models_private.load_hub_attention("kernels-community/flash-attn2")


def test_tied_weights():
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=8))
    assert transformers_models_private.tied_weights(model) == {"lm_head.weight": "transformer.wte.weight"}


def test_tensor_parallel_plan():
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16)
    plan = transformers_models_private.tensor_parallel_plan(LlamaForCausalLM(LlamaConfig(**sizes)))
    assert plan["layers.*.self_attn.q_proj"] == "colwise" and plan["layers.*.mlp.down_proj"] == "rowwise"


def test_families_without_a_tensor_parallel_plan():
    """Those that the rules refuse are those without one."""
    known = {yaml.safe_load(file.read_text())["family"] for file in (CONF / "model").glob("*.yaml")}
    without = {family for family in known if not CONFIG_MAPPING[family].base_model_tp_plan}
    since = {"gpt_oss"} if Version(transformers.__version__) >= Version("5.24") else set()  # it has one there
    assert without == model_families.NO_TENSOR_PLAN - since


def test_expanded():
    """Tensors come before the module that they are in, and layers have their numbers."""
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=16)
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    found = transformers_models_private.expanded(model.base_model, {"layers.*.mlp.up_proj": "colwise"})
    names = [f"layers.{layer}.mlp.up_proj{end}" for layer in (0, 1) for end in (".weight", "")]
    assert found == dict.fromkeys(names, "colwise") and [*found] == names


@pytest.fixture
def experts():
    """A registered implementation, the names of the calls of which are kept."""
    calls = []

    def forward(module, hidden, expert_indices, weights):
        calls.append(hidden.shape)
        return transformers_models_private.grouped_experts(module, hidden, expert_indices, weights)

    transformers_models_private.register_experts("counted", forward)
    return calls


def test_register_experts_and_grouped_experts(experts):
    """A model with the registered implementation computes what transformers' own computes."""
    config = MixtralConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
        vocab_size=16,
        experts_implementation="counted",
    )
    model, tokens = MixtralForCausalLM(config).eval(), torch.arange(4)[None]
    logits = model(tokens).logits
    assert experts == [(4, 16)]
    model.set_experts_implementation("eager")
    assert torch.allclose(logits, model(tokens).logits, atol=1e-5) and len(experts) == 1


def test_grouped_products():
    products = transformers_models_private.grouped_products()
    assert [str(product) for product in products] == ["aten._grouped_mm", "transformers.grouped_mm_fallback"]
    assert str(transformers_models_private.grouped_gradients()) == "transformers.grouped_mm_fallback_backward"


def test_wrap_attention(monkeypatch):
    """Once however often it is asked; models find it under the name that they have."""
    monkeypatch.setattr(modeling_utils.ALL_ATTENTION_FUNCTIONS, "_local_mapping", {})
    monkeypatch.setattr(masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, "_local_mapping", {})
    seen = []

    def around(own, *args, **kwargs):
        seen.append(own)
        return own(*args, **kwargs)

    def around_mask(own, *args, **kwargs):
        seen.append(kwargs["q_length"])
        return own(*args, **kwargs)

    for _ in range(2):
        transformers_models_private.wrap_attention("sdpa", around, around_mask)
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16)
    LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="sdpa"))(input_ids=torch.ones(3, 5, dtype=torch.long))
    assert seen == [5, modeling_utils.AttentionInterface._global_mapping["sdpa"]]


def test_checkpoint_inside():
    """The context is around the checkpoint of each layer, and so sees what it saves: the layer's input."""
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=16)
    model = LlamaForCausalLM(LlamaConfig(**sizes)).train()
    saved = []

    def around():
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: saved.append(tensor) or tensor, lambda kept: kept
        )

    model.gradient_checkpointing_enable({"use_reentrant": False})
    transformers_models_private.checkpoint_inside(model, around)
    model(input_ids=torch.ones(3, 5, dtype=torch.long))
    assert [tuple(tensor.shape) for tensor in saved if tensor.requires_grad] == [(3, 5, 8)] * 2


def test_experts_multiply_by_objects(monkeypatch):
    from transformers.integrations import moe

    class Doubled:
        def product(self, rows, offsets, is_transposed):
            return rows * (2 if is_transposed else 3)

    monkeypatch.setattr(moe, "_grouped_linear", moe._grouped_linear)
    transformers_models_private.multiply_by_objects()
    rows, bias, offsets = torch.ones(2, 4), torch.ones(2, 4), torch.tensor([1, 2], dtype=torch.int32)
    assert torch.equal(moe._grouped_linear(rows, Doubled(), offsets, bias=bias), rows * 4)
    assert torch.equal(moe._grouped_linear(rows, Doubled(), offsets, is_transposed=True), rows * 2)
    weights = torch.eye(4).repeat(2, 1, 1)
    assert torch.equal(moe._grouped_linear(rows, weights, offsets), rows)
    assert torch.equal(transformers_models_private.grouped_product(rows, weights, offsets), rows)


def test_experts_are_known_by_what_transformers_gives_them():
    with torch.device("meta"):
        model = MixtralForCausalLM(MixtralConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2))
    names = [name for name, module in model.named_modules() if transformers_models_private.is_experts(module)]
    assert names == ["model.layers.0.mlp.experts"]


def test_more_than_linear_layers_are_quantised_while_loading(tmp_path):
    pytest.importorskip("bitsandbytes")
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "num_local_experts": 2}
    config = MixtralConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, vocab_size=64)
    whole = MixtralForCausalLM(config)
    whole.save_pretrained(tmp_path)
    read = {}

    def quantises(module, name):
        return transformers_models_private.is_experts(module) and name == "down_proj"

    def quantise(module, name, weight):
        read[name] = weight.clone()
        return torch.zeros(3, dtype=torch.uint8)

    settings = transformers.BitsAndBytesConfig(load_in_4bit=True)
    with transformers_models_private.loading_experts(quantises, quantise):
        model = MixtralForCausalLM.from_pretrained(tmp_path, quantization_config=settings, device_map={"": "cpu"})
    experts, exact = (each.model.layers[0].mlp.experts for each in (model, whole))
    assert torch.equal(read["down_proj"], exact.down_proj) and experts.down_proj.dtype == torch.uint8
    assert torch.equal(experts.gate_up_proj, exact.gate_up_proj)
    assert type(model.model.layers[0].self_attn.q_proj).__name__ == "Linear4bit"
