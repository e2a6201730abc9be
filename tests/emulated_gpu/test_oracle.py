"""The estimate beside the recipe on the emulated GPU, of the quickest configuration of the oracle's list."""

import oracle
import pytest

from legroom.script_check import cuda_build

pytestmark = pytest.mark.cuda_build


@pytest.mark.parametrize("row", [row for row in oracle.rows() if row.is_short][:1], ids=lambda row: row.gpu)
def test_the_estimate_has_the_live_tensors_and_the_reserved_memory_of_the_real_stack(row):
    if not cuda_build.is_fetched():
        pytest.skip("no CUDA build of torch is fetched: make cuda-build")
    found = oracle.compare(row)
    assert not found.error
    assert abs(found.live_bytes) <= 384
    assert abs(found.difference(oracle.ALLOCATED)) < 0.005
    assert abs(found.difference(oracle.RESERVED)) < 0.005
