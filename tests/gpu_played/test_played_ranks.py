"""Several played GPUs: each rank has its own, and what they exchange goes through the lines for GPUs."""

import pytest

pytest_plugins = ["gpu_fixtures"]
TWO = ["train.max_steps=3", "measure.ledger=true", "parallelism.num_processes=2"]
MODES = {
    "ddp": ["parallelism=ddp", "parallelism.nccl_p2p=false", "precision=fp16"],
    "fsdp": ["parallelism=fsdp", "precision=bf16"],
    "shard_grad_op": ["parallelism=fsdp", "parallelism.strategy=shard_grad_op"],
    "offload": ["parallelism=fsdp", "parallelism.cpu_offload=true"],
    "fsdp_tp": ["parallelism=fsdp_tp", "parallelism.tensor_size=2", "model=llama_tiny"],
}
CHECK = """
import atexit, os
from legroom.records.record import Memory
of_rank = Memory.of_rank
def checked(memory, rank):
    import torch, torch.distributed as dist
    assert os.environ["CUDA_VISIBLE_DEVICES"] == f"GPU-played-{rank}", os.environ["CUDA_VISIBLE_DEVICES"]
    assert torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    direct = job.record.config["parallelism"]["nccl_p2p"] is not False
    assert ("NCCL_P2P_DISABLE" in os.environ) != direct
    return of_rank(memory, rank)
Memory.of_rank = checked
"""


@pytest.mark.slow_for("ddp-trainer", "fsdp-trainer", "fsdp_tp-trainer", "offload-trainer")
@pytest.mark.parametrize("recipe", ["trainer", pytest.param("accelerate", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_have_a_card_each(on_gpu, train, recipe, mode):
    words = [f"recipe={recipe}", *MODES[mode], *TWO]
    record = on_gpu(*words, code=CHECK).record
    assert [rank["rank"] for rank in record.memory.per_rank] == [0, 1]
    assert all(rank["peak_reserved_bytes"] > 0 and rank["context_bytes"] > 0 for rank in record.memory.per_rank)
    assert record.memory.all_ranks_bytes["peak_reserved_bytes"] == sum(
        rank["peak_reserved_bytes"] for rank in record.memory.per_rank
    )
    if recipe == "accelerate" and mode != "offload":
        words = [word for word in words if "nccl" not in word]
        on_cpu = train(*words, "precision=fp32", "device=cpu").record
        assert record.training.losses == pytest.approx(on_cpu.training.losses, rel=0.05)


def test_one_process_trains_on_both_cards(on_gpu):
    record = on_gpu("parallelism=dp", "recipe=trainer", "data.samples=16", "train.max_steps=3").record
    raw = on_gpu("parallelism=dp", "recipe=accelerate", "data.samples=16", "train.max_steps=3").record
    assert record.config["parallelism"]["replicas"] == 2 and record.training.samples == 12
    assert record.training.losses == pytest.approx(raw.training.losses, rel=1e-4)


def test_out_of_memory_of_another_rank_is_the_jobs_result(on_gpu):
    code = """
import torch
from played_gpu import CARDS
def full(*_):
    raise CARDS.out_of_memory(20 * 2**20)
if job.rank_info.rank == 1:
    torch.nn.modules.module.register_module_forward_pre_hook(full)
"""
    error = on_gpu("parallelism=ddp", *TWO, code=code, status="oom").record.error
    assert error.rank == 1 and "CUDA out of memory" in error.message
