"""flash-attn and xformers that are not installed: a script that fails without them gets torch's copies of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import pytest
import torch
from played_scripts import GPU, play

from legroom import Refusal
from legroom.foresight.fake_gpu import package_attention
from legroom.foresight.programs import check, command, played_packages
from legroom.foresight.step_estimate import gpu_of

SCRIPT = """
import torch
{imported}
layer = torch.nn.Linear(128, 384, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
def sdpa(q, k, v):
    turned = (each.transpose(1, 2) for each in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=True).transpose(1, 2)
rows = torch.tensor([0, 256, 512, 768, 1024], dtype=torch.int32, device="cuda")
while True:
    x = torch.randn(4, 256, 128, device="cuda", dtype=torch.bfloat16)
    q, k, v = layer(x).view(4, 256, 3, 2, 64).unbind(2)
    {attended}.sum().backward()
    optimizer.step()
"""
FLASH = "from flash_attn import flash_attn_func, flash_attn_varlen_func"
XFORMERS = "from xformers.ops import LowerTriangularMask, memory_efficient_attention"


@pytest.fixture(autouse=True)
def packages(monkeypatch, tmp_path):
    if importlib.util.find_spec("flash_attn") or importlib.util.find_spec("xformers"):
        pytest.skip("one of the packages is installed")
    monkeypatch.setattr(sys, "path", [*sys.path])
    played_packages.play(["flash-attn", "xformers"], tmp_path / "packages", lambda _: None)
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.startswith(("flash_attn", "xformers"))]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "imported, attended",
    [
        (FLASH, "flash_attn_func(q, k, v, causal=True)"),
        (FLASH, "flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), rows, rows, 256, 256, causal=True)"),
        (XFORMERS, "memory_efficient_attention(q, k, v, LowerTriangularMask())"),
    ],
)
def test_a_packages_attention_takes_what_torchs_own_takes(tmp_path, imported, attended):
    """The workspace of rows that stand one behind another is longer by 128 a row."""
    played = play(tmp_path, SCRIPT.format(imported=imported, attended=attended))
    own = play(tmp_path, SCRIPT.format(imported="", attended="sdpa(q, k, v)"))
    assert abs(played.allocated_bytes - own.allocated_bytes) <= 4 * 128 * 4 * 2 * 65
    assert played.model_flops == own.model_flops


FORMS = """
import flash_attn, xformers.ops
from xformers.ops import LowerTriangularMask, memory_efficient_attention
def took(attend, *given, **named):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(tuple(one.shape)) or one, lambda one: one):
        found = attend(*given, **named)
    return found.shape, found.dtype, sorted(saved)
def check(q, k, v):
    kv, qkv, flat = torch.stack([k, v], 2), torch.stack([q, k, v], 2), [each.flatten(0, 1) for each in (q, k, v)]
    whole = took(flash_attn.flash_attn_func, q, k, v, 0.1, causal=True)
    assert whole[2].count((4, 256, 2, 64)) == 4, "the inputs and the result"
    assert whole == took(flash_attn.flash_attn_kvpacked_func, q, kv, 0.1, causal=True)
    assert whole == took(flash_attn.flash_attn_qkvpacked_func, qkv, 0.1, causal=True)
    assert len(flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)) == 3
    parts = took(flash_attn.flash_attn_varlen_func, *flat, rows, rows, 256, 256, causal=True)
    named = dict(cu_seqlens_q=rows, cu_seqlens_k=rows, max_seqlen_q=256, max_seqlen_k=256)
    assert parts == took(flash_attn.flash_attn_varlen_func, *flat, causal=True, **named)
    packed = [torch.stack(flat[1:], 1), torch.stack(flat, 1)]
    both = rows, rows, 256, 256
    assert parts == took(flash_attn.flash_attn_varlen_kvpacked_func, flat[0], packed[0], *both, causal=True)
    assert parts == took(flash_attn.flash_attn_varlen_qkvpacked_func, packed[1], rows, 256, causal=True)
    assert whole == took(memory_efficient_attention, q, k, v, LowerTriangularMask, 0.1)
    one = took(memory_efficient_attention, q[:, :, 0], k[:, :, 0], v[:, :, 0])
    assert one[0] == (4, 256, 64)
    bias = torch.zeros(4, 256, 256, device="cuda", dtype=q.dtype)
    assert took(memory_efficient_attention, q[:, :, 0], k[:, :, 0], v[:, :, 0], bias)[0] == one[0]
    for mask in (bias[:1, None], bias[:, None].expand(4, 2, 256, 256)):
        assert took(memory_efficient_attention, q, k, v, mask)[:2] == whole[:2]
    wide = memory_efficient_attention(*(each.float() for each in (q, k, v)), LowerTriangularMask())
    assert wide.shape == q.shape and wide.dtype == torch.float32
    return memory_efficient_attention(q, k, v, bias[:, None])
"""


def test_the_forms_of_a_packages_attention_are_one_another(tmp_path):
    assert play(tmp_path, SCRIPT.format(imported=FORMS, attended="check(q, k, v)")).verdict == "fits"


def test_attention_that_is_not_played_is_refused_with_what_to_ask_instead(tmp_path):
    x = torch.zeros(1, 2, 1, 8)
    with pytest.raises(Refusal, match="flash_attn_with_kvcache is not played. Generate without"):
        package_attention.flash_attn_with_kvcache(x, x, x)
    with pytest.raises(Refusal, match="attn_bias=Mock is not played. Ask with a mask as a tensor"):
        package_attention.memory_efficient_attention(x, x, x, type("Mock", (), {})())


def test_a_package_is_played_where_a_script_fails_without_it(tmp_path, monkeypatch):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(imported=FLASH, attended="flash_attn_func(q, k, v)"))
    (found,) = check.followed(command.parse([str(file)]), {GPU: gpu_of(GPU)}, check.Settings())
    assert found.estimates and [note for note in found.outcome.notes if note.startswith("flash-attn is not installed")]


def test_what_else_a_package_has_is_refused_in_words():
    with pytest.raises(ImportError) as found:
        exec("from xformers.ops import SwiGLU")
    assert played_packages.lacking(found.value).startswith("xformers is installed on machines with a GPU alone.")
    unset = OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")
    assert played_packages.lacking(unset).startswith("CUDA's compiler is installed on machines with a GPU alone.")
    with pytest.raises(ImportError) as found:
        exec("from pathlib import flash_attn")
    assert not played_packages.lacking(found.value)
    others = (RuntimeError("flash_attn went wrong"), ValueError(), ImportError("No module named 'mine'", name="mine"))
    assert [played_packages.lacking(other) for other in others] == [""] * 3
    assert (played_packages.lacked("xformers is installed on"), played_packages.lacked("CUDA")) == ("xformers", None)


def test_modules_and_versions_are_found():
    padding = importlib.import_module("flash_attn.bert_padding")
    assert callable(padding.unpad_input) and callable(padding.pad_input)
    assert padding.index_first_axis(torch.arange(6), torch.tensor([1, 3])).tolist() == [1, 3]
    assert callable(importlib.import_module("flash_attn.flash_attn_interface").flash_attn_varlen_qkvpacked_func)
    assert importlib.metadata.version("flash-attn") == "2.8.3"


def test_32_bits_and_old_gpus_fail_as_they_do_there(tmp_path):
    with pytest.raises(RuntimeError, match="fp16 and bf16"):
        play(tmp_path, SCRIPT.format(imported=FLASH, attended="flash_attn_func(q.float(), k.float(), v.float())"))
    with pytest.raises(RuntimeError, match="Ampere"):
        play(tmp_path, SCRIPT.format(imported=FLASH, attended="flash_attn_func(q, k, v)"), gpu="t4_16gb")
