"""The table of peak arithmetic, by the names that devices give themselves."""

from __future__ import annotations

import pytest
import torch

from recipes.measure import device

TERA = 1e12


@pytest.mark.parametrize("name,precision,peak", [
    # NVIDIA's data sheets: dense, without sparsity.
    ("NVIDIA H100 80GB HBM3", "bf16", 989.4), ("NVIDIA H100 PCIe", "bf16", 756.0), ("NVIDIA H200", "fp16", 989.4),
    ("NVIDIA A100-SXM4-80GB", "bf16", 312.0), ("NVIDIA A100-PCIE-40GB", "tf32", 156.0),
    ("NVIDIA A100-SXM4-40GB", "fp32", 19.5),
    ("Tesla V100-SXM2-16GB", "fp32", 15.7), ("Tesla V100-SXM2-16GB", "fp16", 125.0), ("Tesla T4", "fp16", 65.0),
    ("NVIDIA GeForce RTX 4090", "bf16", 165.2), ("NVIDIA L4", "bf16", 121.0), ("NVIDIA A10G", "bf16", 70.0),
])
def test_the_peak_of_a_known_device(name, precision, peak):
    assert device.peak_flops(name, precision) == pytest.approx(peak * TERA)


def test_16_bit_weights_use_the_16_bit_units():
    assert device.peak_flops("NVIDIA H100 80GB HBM3", "bf16_pure") == device.peak_flops("NVIDIA H100 80GB HBM3", "bf16")


@pytest.mark.parametrize("name,precision", [
    ("AMD EPYC", "fp32"), ("NVIDIA A1000", "fp32"), ("NVIDIA L400", "bf16"), ("Tesla V100-SXM2-16GB", "bf16"),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
])
def test_what_the_table_lacks_has_no_peak(name, precision):
    assert device.peak_flops(name, precision) is None


def test_the_peak_of_the_host_is_in_bytes():
    block = torch.ones(2**25)  # 128 MiB of pages that are written to
    assert device.host_peak_rss_bytes() > block.numel() * block.element_size()
