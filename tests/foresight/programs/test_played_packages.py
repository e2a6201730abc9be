"""flash-attn and xformers that are not installed: a script that fails without them gets torch's copies of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import pytest
import torch
from played_scripts import GPU, play

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
