"""What control groups leave of the memory, in files as Linux writes them, and what is said of it before a job loads."""

from __future__ import annotations

import pytest
from conftest import compose

from legroom.machine import cgroups, host
from legroom.models import host_memory
from legroom.units import GIB


@pytest.fixture
def groups(tmp_path):
    """groups(own, **files) -> the arguments of `cgroups`: what /proc/self/cgroup says, and files below the mount."""

    def groups(own, files):
        (tmp_path / "own").write_text(own)
        for name, content in files.items():
            path = tmp_path / "mounted" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path / "own", tmp_path / "mounted"

    return groups


NO_LIMIT = f"{2**63 - 4096}\n"


@pytest.mark.parametrize(
    "own, files, expected",
    [
        (
            "0::/\n",
            {"memory.max": "800\n", "memory.current": "300\n", "memory.stat": "inactive_file 100\n"},
            (800, 600),
        ),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "500\n", "a/memory.current": "200\n"}, (500, 300)),
        ("0::/gone\n", {"memory.max": "500\n", "memory.current": "600\n"}, (500, 0)),  # seen from inside a container
        ("0::/\n", {"memory.max": "max\n", "memory.current": "3\n"}, None),
        (
            "4:memory:/job/step\n0::/\n",
            {
                "memory/job/step/memory.limit_in_bytes": NO_LIMIT,
                "memory/job/step/memory.usage_in_bytes": "10\n",
                "memory/job/memory.limit_in_bytes": "900\n",
                "memory/job/memory.usage_in_bytes": "400\n",
                "memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 50\n",
            },
            (900, 550),
        ),
        ("", {}, None),
    ],
    ids=["v2", "v2 around it", "v2 hidden", "v2 no limit", "v1 around it", "none"],
)
def test_the_tightest_limit_around_the_process_counts(groups, own, files, expected):
    assert cgroups.tightest(*groups(own, files)) == expected


def test_processes_that_the_kernel_killed_in_a_group_are_counted(groups):
    own, mounted = groups("0::/a\n", {"a/memory.events": "oom 5\noom_kill 2\n", "memory.events": "oom_kill 3\n"})
    assert cgroups.kills(own, mounted) == 5


def test_the_hosts_memory_is_at_most_the_groups(monkeypatch):
    monkeypatch.setattr(cgroups, "tightest", lambda: (2 * GIB, GIB // 2))
    assert (host.memory_bytes(), host.free_memory_bytes()) == (2 * GIB, GIB // 2)
    monkeypatch.setattr(cgroups, "tightest", lambda: None)
    assert (host.memory_bytes() or 0) >= (host.free_memory_bytes() or 0) > 0


@pytest.mark.parametrize(
    "overrides, free, said",
    [
        (["model=bert_tiny"], GIB // 1000, "control group"),
        (["model=bert_tiny"], GIB, None),
        (["model=bert_large"], 4 * GIB, "at least 4.99 GiB"),  # 335 M parameters x 16 bytes
        (["model=bert_large", "adapter=lora"], 5 * GIB, None),
        (["model=bert_large", "launch.memory_limit_gib=3"], 64 * GIB, "launch.memory_limit_gib"),
        (["model=llama_8b", "precision=bf16_pure"], 64 * GIB, "at least"),
        (["model=bert_large", "save.every_steps=5"], 6 * GIB, "a checkpoint beside what is trained: at least 7.49"),
        (["model=bert_large", "save.every_steps=5", "optim=sgd"], 5 * GIB, None),
        (["model=bert_large", "save.final=true"], 5 * GIB, None),
        (
            ["model=gpt2", "save.final=true", "save.merge=true", "adapter=lora", "eval.enabled=false"],
            GIB // 2,
            "save.merge=false",
        ),
        (["model=gpt2", "save.final=true", "adapter=lora", "eval.enabled=false"], GIB // 2, None),
        (["model=gpt2", "eval.batch=64", "data.eval_samples=64"], 4 * GIB, "eval.batch"),  # 12 GiB of logits
        (["model=gpt2", "eval.batch=64", "data.eval_samples=64", "loss=chunked"], 4 * GIB, None),
        (["model=gpt2", "eval.batch=64", "data.eval_samples=2"], 4 * GIB, None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_more_than_is_free_is_said_before_anything_is_loaded(monkeypatch, overrides, free, said):
    monkeypatch.setattr(host, "free_memory_bytes", lambda: free)
    found = host_memory.shortage(compose("device=cpu", *overrides).cfg, 1)
    assert found is None if said is None else said in (found or "")


def test_host_memory_of_sharded_and_replicated_weights():
    words = ["device=cpu", "model=bert_tiny", "parallelism.num_processes=2", "save.final=true", "optim=sgd"]
    found = {}
    for mode in ("ddp", "fsdp"):
        found[mode] = {what: size for what, size, _ in host_memory.needs(compose(*words, f"parallelism={mode}").cfg, 2)}
    (held, saved), (held_sharded, gathered) = (list(each.values())[:2] for each in found.values())
    assert held == 2 * held_sharded == 2 * saved  # weights and gradients; then the weights alone
    assert gathered == held_sharded  # the shards, and the whole weights on rank 0


def test_states_that_are_offloaded_are_shared_out_between_the_ranks():
    """ZeRO loads the whole weights on each rank; one copy of gradients and states is on the host of all."""
    words = ["recipe=estimate", "gpu=a100_80gb", "model=bert_tiny", "parallelism=zero", "parallelism.stage=3"]
    cfg = compose(*words, "parallelism.offload=optimizer", "parallelism.num_processes=4").cfg
    (_, one, _), (_, four, _) = (next(iter(host_memory.needs(cfg, ranks))) for ranks in (1, 4))
    weights = host_memory.sizes(cfg)[0]
    assert (one, four - one) == (4 * weights, 3 * weights)


def test_the_warning_is_in_the_record(train):
    sizes = ["model.width=512", "model.feed_forward=2048", "model.layers=2"]  # some 100 MiB; what is said takes some
    run = train("launch.memory_limit_gib=0.05", *sizes, status=None)
    assert any("launch.memory_limit_gib" in text for text in run.record.warnings)
