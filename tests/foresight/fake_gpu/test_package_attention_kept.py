"""What the functions of flash-attn and xformers give to torch's kernels, in each of their forms, as kept."""

from __future__ import annotations

import pytest
import torch
from test_attention_table import BF16, FP32, on_gpu, recorded

from legroom.errors import Refusal
from legroom.foresight.fake_gpu import package_attention as package
from legroom.foresight.fake_gpu.device import FakeDevice


@pytest.fixture
def gpu(monkeypatch):
    """A GPU, whose capability may be set."""
    capability = [(8, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability[0])
    with FakeDevice((8, 0)):
        yield capability


def inputs(rows=2, size=16, keys=12, dtype=BF16, key_heads=4):
    return [
        on_gpu(rows, length, heads, size, dtype=dtype)
        for length, heads in ((8, 4), (keys, key_heads), (keys, key_heads))
    ]


def flat(size=16):
    return [on_gpu(tokens, 4, size) for tokens in (24, 30, 30)]


def test_every_form_of_flash_attn_is_the_kept_call(gpu, data_regression):
    q, k, v = inputs(key_heads=2)
    queries, keys, values = flat()
    begins, others = torch.tensor([0, 10, 24], dtype=torch.int32), torch.tensor([0, 10, 30], dtype=torch.int32)
    longest = torch.tensor(14)  # a number that is known
    kv, qkv = on_gpu(2, 12, 2, 4, 16), on_gpu(2, 12, 3, 4, 16)
    flat_kv, flat_qkv = on_gpu(30, 2, 4, 16), on_gpu(24, 3, 4, 16)
    named = dict(cu_seqlens_q=begins, cu_seqlens_k=others, max_seqlen_q=14, max_seqlen_k=20)
    varlen, packed_rows = package.flash_attn_varlen_func, package.flash_attn_varlen_qkvpacked_func
    made = {
        "plain": recorded(package.flash_attn_func, q, k, v),
        "settings in order": recorded(package.flash_attn_func, q, k, v, 0.1, 0.5, True, (3, 4), 0.0, None, False),
        "named settings": recorded(package.flash_attn_func, q, k, v, softmax_scale=0.5, window_size=(3, 4)),
        "with probabilities": recorded(package.flash_attn_func, q, k, v, return_attn_probs=True),
        "keys and values together": recorded(package.flash_attn_kvpacked_func, q[:, :, :4], kv, 0.1, causal=True),
        "all together": recorded(package.flash_attn_qkvpacked_func, qkv, 0.1, 0.5),
        "rows": recorded(varlen, queries, keys, values, begins, others, 14, 20),
        "rows, settings in order": recorded(
            varlen, queries, keys, values, begins, others, 14, 20, 0.1, 0.5, True, (3, 4), 0.0, None, False
        ),
        "rows by name": recorded(varlen, queries, keys, values, causal=True, **named),
        "rows partly by name": recorded(varlen, queries, keys, values, begins, others, 14, max_seqlen_k=longest),
        "rows, keys and values together": recorded(
            package.flash_attn_varlen_kvpacked_func, queries, flat_kv, begins, others, 14, 20, 0.1
        ),
        "rows, all together": recorded(packed_rows, flat_qkv, begins, 14, 0.1, causal=True),
    }
    data_regression.check(made)


def test_with_probabilities_come_sums_and_none(gpu):
    q, k, v = inputs()
    out, sums, probabilities = package.flash_attn_func(q, k, v, return_attn_probs=True)
    assert out.shape == q.shape and sums.shape == (2, 4, 8) and probabilities is None
    assert isinstance(package.flash_attn_func(q, k, v, return_attn_probs=False), torch.Tensor)


@pytest.mark.parametrize("capability, fails", [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_flash_attn_wants_ampere_and_16_bits(gpu, capability, fails):
    gpu[0] = capability
    if fails:
        with pytest.raises(RuntimeError, match="Ampere"):
            package.flash_attn_func(*inputs())
    else:
        assert package.flash_attn_func(*inputs()).shape == (2, 8, 4, 16)
    with pytest.raises(RuntimeError, match="fp16 and bf16"):
        package.flash_attn_func(*inputs(dtype=FP32))


def test_every_form_of_xformers_is_the_kept_call(gpu, data_regression):
    attend, mask = package.memory_efficient_attention, package.LowerTriangularMask
    q, k, v = inputs()
    bias = on_gpu(2, 4, 8, 12, grad=False)
    made = {
        "flash": recorded(attend, q, k, v),
        "causal": recorded(attend, q, k, v, mask, 0.1, 0.5),
        "causal, made": recorded(attend, q, k, v, mask(1), p=0.1),
        "bias": recorded(attend, q, k, v, bias, 0.1, 0.5),
        "bias for all": recorded(attend, q, k, v, bias[:1, :1]),
        "32 bits": recorded(attend, *inputs(dtype=FP32), mask()),
        "wide heads": recorded(attend, *inputs(size=256)),
        "too wide heads": recorded(attend, *inputs(size=264)),
        "one head": recorded(attend, q[:, :, 0], k[:, :, 0], v[:, :, 0], mask, 0.1, 0.5),
        "one head with a bias": recorded(attend, q[:, :, 0], k[:, :, 0], v[:, :, 0], bias[:, 0]),
    }
    with torch.no_grad():
        made["without gradients"] = recorded(attend, q, k, v, bias)
    gpu[0] = (7, 5)
    made["before Ampere"] = recorded(attend, q, k, v)
    data_regression.check(made)


def test_what_is_not_played_is_refused(gpu):
    q, k, v = inputs()
    with pytest.raises(Refusal, match="attn_bias=dict is not played"):
        package.memory_efficient_attention(q, k, v, {})
    with pytest.raises(Refusal, match="flash_attn_with_kvcache is not played"):
        package.flash_attn_with_kvcache(q, k, v)
    assert package.index_first_axis(torch.arange(5), torch.tensor([4, 0])).tolist() == [4, 0]
