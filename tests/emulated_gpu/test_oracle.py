"""The estimate beside the recipe on the emulated GPU, of small configurations: `make test-cuda-build`."""

import oracle
import pytest

from legroom.script_check import cuda_build

pytestmark = pytest.mark.cuda_build

SMALL = "model.layers=2 data.seq_len=256 batch.per_device=2"
TWO_RANKS = "parallelism.num_processes=2"


@pytest.fixture(scope="module", autouse=True)
def processes():
    if not cuda_build.is_fetched():
        pytest.skip("no CUDA build of torch is fetched: make cuda-build")
    yield
    oracle.close()


def compared(gpu: str, recipe: str, overrides: str) -> oracle.Compared:
    both = oracle.compare(oracle.Row(gpu, overrides.split(), recipe))
    assert not both.error
    return both


def test_the_estimate_has_the_memory_of_the_real_stack():
    short = next(row for row in oracle.rows() if row.is_short)
    both = compared(short.gpu, short.recipe, " ".join(short.overrides))
    assert both.live_bytes == 0
    assert abs(both.difference(oracle.ALLOCATED)) < 0.0001
    assert abs(both.difference(oracle.RESERVED)) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize(
    "gpu, recipe, overrides",
    [
        ("a100_80gb", "accelerate", f"model=bert_base precision=bf16 optim=adafactor {SMALL}"),  # buffers of means
        ("rtx4090_24gb", "accelerate", f"model=gpt2 precision=bf16 accumulation=x4 {SMALL}"),  # losses are kept
        ("t4_16gb", "accelerate", f"model=bert_base precision=fp16 {SMALL}"),  # random numbers' seeds on the host
        # Gathers and reductions on streams of their own, which share no memory.
        ("rtx4090_24gb", "accelerate", f"model=gpt2 precision=bf16 parallelism=fsdp {TWO_RANKS} {SMALL}"),
        # The first step's buckets, which NCCL's process group holds.
        ("rtx4090_24gb", "accelerate", f"model=smollm2_135m precision=bf16 parallelism=ddp {TWO_RANKS} {SMALL}"),
    ],
    ids=["adafactor", "accumulation", "dropout", "fsdp", "ddp"],
)
def test_it_has_that_of_what_a_lever_adds_outside_tensors(gpu, recipe, overrides):
    both = compared(gpu, recipe, overrides)
    assert both.live_bytes == 0
    assert abs(both.difference(oracle.ALLOCATED)) < 0.0001
    assert both.estimated[oracle.RESERVED] == both.real[oracle.RESERVED]
