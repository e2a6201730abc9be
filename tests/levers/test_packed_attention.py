"""data.packing: a packed sample has the logits that it has alone, in every family that is allowed.

B rows, T tokens.
"""

from __future__ import annotations

import pytest
import tiny
import torch
from conftest import compose, small
from transformers import AutoConfig, masking_utils, modeling_flash_attention_utils
from transformers.integrations import flash_attention, flex_attention

from legroom.compat import transformers_models_private
from legroom.errors import Refusal
from legroom.levers.packing import apply as packing

LENGTHS = [7, 1, 12, 5]
PADDING = 3
LM = "language_modelling"


def wide_apart(kind: str, attention: str) -> torch.nn.Module:
    """A tiny model whose logits depend much on what a token sees."""
    model = tiny.tiny_model(kind, LM)
    model.set_attn_implementation(attention)
    model.config.use_cache = False
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5 if weight.dim() > 1 else 1)
    return model.eval()


@pytest.mark.parametrize("attention", packing.MASKED)
@pytest.mark.parametrize("kind", sorted(packing.model_families.PACKED))
def test_a_packed_sample_has_the_logits_that_it_has_alone(kind, attention):
    model = wide_apart(kind, attention)
    torch.manual_seed(1)
    samples = [torch.randint(100, 500, (1, length)) for length in LENGTHS]
    row = torch.cat([*samples, torch.zeros(1, PADDING, dtype=torch.long)], 1)
    positions = torch.cat([*map(torch.arange, LENGTHS), torch.zeros(PADDING, dtype=torch.long)])[None]
    with torch.no_grad():
        alone = torch.cat([model(input_ids=sample).logits for sample in samples], 1)
        packing.keep_samples_apart(model)
        packed = model(input_ids=row, position_ids=positions).logits[:, : sum(LENGTHS)]
        joined = model(input_ids=row).logits[:, : sum(LENGTHS)]
    assert packed == pytest.approx(alone, abs=1e-5, rel=1e-5)
    assert (joined - alone).abs().max() > 0.1  # so that the comparison can fail


@pytest.fixture
def flash(monkeypatch):
    """Flash attention of several lengths, written out, in place of a package that needs a GPU."""
    calls = []

    def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, softmax_scale):
        assert causal and cu_seqlens_q.dtype == torch.int32 and cu_seqlens_q is cu_seqlens_k
        ends = cu_seqlens_q.tolist()
        assert ends[0] == 0 and ends[-1] == len(q) and max(b - a for a, b in zip(ends, ends[1:])) <= max_seqlen_q
        calls.append(len(q))
        parts = [
            torch.nn.functional.scaled_dot_product_attention(
                *(x[a:b].transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, scale=softmax_scale, enable_gqa=True
            )[0].transpose(0, 1)
            for a, b in zip(ends, ends[1:])
        ]
        return torch.cat(parts)

    def arguments(query_length, key_length, is_causal, softmax_scale, max_seqlen_q, max_seqlen_k, **others):
        return dict(causal=is_causal, softmax_scale=softmax_scale, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)

    functions = (None, varlen, None, None, None), (arguments, None)
    monkeypatch.setattr(flash_attention, "get_target_dtype", lambda *_: None)  # 16 bits are no part of this
    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", lambda *_, **__: functions)
    return calls


@pytest.fixture
def flex(monkeypatch):
    """Flex attention as it is written, not compiled."""
    calls = []

    def uncompiled(query, key, value, training=False, **settings):
        calls.append(settings["block_mask"])
        return flex_attention.flex_attention(query, key, value, **settings)

    monkeypatch.setattr(flex_attention, "compile_friendly_flex_attention", uncompiled)

    def blocks(_compile, **settings):
        return create_block_mask(**settings)

    create_block_mask = masking_utils.create_block_mask
    monkeypatch.setattr(masking_utils, "create_block_mask", blocks)
    return calls


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention"])
@pytest.mark.parametrize("kind", sorted(packing.model_families.PACKED))
def test_flash_and_flex_attention_keep_samples_apart(kind, implementation, flash, flex):
    model = wide_apart(kind, "eager")
    if not transformers_models_private.has_attention(type(model), implementation):
        return
    torch.manual_seed(1)
    samples = [torch.randint(100, 500, (1, length)) for length in LENGTHS]
    row = torch.cat([*samples, torch.zeros(1, PADDING, dtype=torch.long)], 1)
    other = torch.cat([samples[2], *samples[:2], samples[3], torch.zeros(1, PADDING, dtype=torch.long)], 1)
    positions = [
        torch.cat([*map(torch.arange, lengths), torch.zeros(PADDING, dtype=torch.long)])
        for lengths in (LENGTHS, [LENGTHS[2], *LENGTHS[:2], LENGTHS[3]])
    ]
    with torch.no_grad():
        alone = torch.cat([model(input_ids=sample).logits for sample in samples], 1)
        model.config._attn_implementation = implementation
        packing.keep_samples_apart(model)
        packed = model(input_ids=torch.cat([row, other]), position_ids=torch.stack(positions)).logits
    assert packed[:1, : sum(LENGTHS)] == pytest.approx(alone, abs=1e-5, rel=1e-5)
    assert packed[1:, : LENGTHS[2]] == pytest.approx(alone[:, sum(LENGTHS[:2]) : sum(LENGTHS[:3])], abs=1e-5, rel=1e-5)
    assert flash if implementation == "flash_attention_2" else flex, "the other attention ran"


def test_the_mask_hides_other_samples_and_later_tokens():
    mask = packing.mask(torch.tensor([[0, 1, 0, 0], [0, 1, 2, 3]]), torch.float32)
    assert mask.shape == (2, 1, 4, 4)
    seen = [[[key for key in range(4) if not mask[row, 0, query, key]] for query in range(4)] for row in range(2)]
    assert seen == [[[0], [0, 1], [2], [3]], [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]]


@pytest.mark.parametrize(
    "kind,values,words",
    [
        ("bloom", {}, "bloom"),
        ("opt", {}, "opt"),
        ("mistral", {"sliding_window": 16}, "data.seq_len=16 or less"),
        ("qwen2", {"layer_types": ["chunked_attention"], "num_hidden_layers": 1}, "window"),
        ("mixtral", {"output_router_logits": True}, "output_router_logits"),
    ],
)
def test_a_model_whose_samples_would_see_each_other_is_refused(kind, values, words):
    cfg = compose(*small("model=llama_tiny", "data=chat", "data.path=x", "data.packing=true")).cfg
    with pytest.raises(Refusal, match="data.packing=") as caught:
        packing.check(cfg, "model.pretrained=x", AutoConfig.for_model(kind, **values), LM)
    assert words in str(caught.value)


def test_a_window_as_long_as_a_row_hides_nothing():
    cfg = compose(*small("model=llama_tiny", "data=chat", "data.path=x", "data.packing=true")).cfg
    packing.check(cfg, "model.pretrained=x", AutoConfig.for_model("mistral", sliding_window=32), LM)


def test_a_classifier_is_refused():
    cfg = compose(*small("model=llama_tiny", "data=chat", "data.path=x", "data.packing=true")).cfg
    with pytest.raises(Refusal, match="causal language models"):
        packing.check(cfg, "model.pretrained=x", AutoConfig.for_model("llama"), "classification")


def test_attention_without_a_mask_is_refused():
    model = wide_apart("llama", "sdpa")
    model.config._attn_implementation = "paged|eager"
    with pytest.raises(Refusal, match="paged"):
        packing.keep_samples_apart(model)
