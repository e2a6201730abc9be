"""What the host says of its memory."""

from __future__ import annotations

import torch

from recipes.measure import device_memory


def test_the_peak_of_the_host_is_in_bytes():
    block = torch.ones(2**25)  # 128 MiB of pages that are written to
    assert device_memory.host_peak_rss_bytes() > block.numel() * block.element_size()
