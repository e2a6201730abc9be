"""The private state of Accelerate is what legroom.compat.accelerate_private takes it for."""

from __future__ import annotations

import importlib.util
import inspect

import accelerate
import pytest
import torch
import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from support.accelerate_state import own_state
from torch.distributed.fsdp import fully_shard
from transformers import Trainer

from legroom.compat import accelerate_private, torch_distributed_private


@pytest.fixture
def accelerate_state():
    with own_state() as state:
        yield state


@pytest.fixture
def process_group():
    """One rank on the fake process group."""
    dist.init_process_group("fake", store=torch_distributed_private.fake_process_group_store(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_step_looks_for_no_package(accelerate_state, monkeypatch):
    """Fails if Accelerate's step looks for a package by another name, or no longer needs the cached check."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = accelerate.Accelerator(cpu=True).prepare(torch.optim.SGD([weight], lr=0.5))
    looked_for = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: looked_for.append(name))
    # Accelerate's own: a job in this process may have cached the check. It is put back at the end.
    monkeypatch.setattr(accelerate.optimizer, "is_lomo_available", accelerate.utils.imports.is_lomo_available)
    optimizer.step()
    assert looked_for
    accelerate_private.cache_lomo_check()
    looked_for.clear()
    weight.grad = torch.ones(2)
    optimizer.step()
    assert not looked_for and weight.tolist() == [0.5, 0.5]


def test_set_process_device(accelerate_state):
    accelerate_private.set_process_device(torch.device("meta"))
    assert PartialState().device.type == "meta"


def test_set_accelerator_device(accelerate_state):
    accelerator = accelerate.Accelerator(cpu=True)
    accelerate_private.set_accelerator_device(torch.device("meta"))
    assert accelerator.device.type == PartialState().device.type == "meta"


def test_set_process_multi_gpu(accelerate_state):
    accelerate_private.set_process_multi_gpu(4)
    state = accelerate_state
    assert (state.num_processes, state.process_index, state.distributed_type.value) == (4, 0, "MULTI_GPU")


def test_a_state_of_its_own_leaves_the_process_as_it_was(accelerate_state):
    accelerator = accelerate.Accelerator(cpu=True)
    with accelerate_private.state_of_its_own():
        accelerate_private.set_process_device(torch.device("meta"))
        assert accelerate.Accelerator(cpu=False).device.type == "meta"
    assert accelerator.device.type == PartialState().device.type == "cpu"


def test_outputs_as_computed(accelerate_state):
    with accelerate_private.outputs_as_computed():
        model = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(torch.nn.Linear(2, 2))
    assert model(torch.ones(1, 2)).dtype == torch.bfloat16


def test_replaced_accelerator():
    class Replacement(accelerate.Accelerator):
        pass

    original = accelerate.Accelerator
    with accelerate_private.replaced_accelerator(Replacement):
        assert accelerate.Accelerator is Replacement
    assert accelerate.Accelerator is original


def test_allow_fsdp_on_cpu(accelerate_state):
    """Without it, the Accelerator drops the plugin's mode."""
    accelerate_private.allow_fsdp_on_cpu()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_ram_efficient_loading=False, activation_checkpointing=False
    )
    assert accelerate.Accelerator(fsdp_plugin=plugin).is_fsdp2


def test_keep_sharded_parameters(process_group, accelerate_state, monkeypatch):
    """Parameters without an element have one address, by which Accelerate would take them for one."""
    monkeypatch.setattr(accelerate.Accelerator, "_prepare_fsdp2", accelerate.Accelerator._prepare_fsdp2)
    accelerate.state.PartialState(cpu=True)
    accelerate_private.allow_fsdp_on_cpu()
    accelerate_private.keep_sharded_parameters()
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(0)) for _ in range(3)])
    model.forward = lambda: model[0].sum()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_ram_efficient_loading=False, activation_checkpointing=False
    )
    accelerator = accelerate.Accelerator(fsdp_plugin=plugin)
    _, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert [id(weight) for weight in optimizer.param_groups[0]["params"]] == [id(weight) for weight in model]


def test_never_postpone_reduction(process_group, accelerate_state):
    accelerator = accelerate.Accelerator(cpu=True)
    model = fully_shard(torch.nn.Linear(2, 2), mesh=dist.init_device_mesh("cpu", (1,)))
    called = []
    model.set_requires_gradient_sync = lambda value, *_, **__: called.append(value)
    with accelerator.no_sync(model):
        pass
    accelerate_private.never_postpone_reduction(accelerator)
    before = list(called)
    with accelerator.no_sync(model=model):
        pass
    assert called == before


def test_keep_deepspeed_engine(accelerate_state):
    """`free_memory` ends the engine and forgets what was prepared; `Trainer.train` calls it."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    accelerate_private.keep_deepspeed_engine(accelerator)
    assert accelerator.free_memory(model) == (model,) and accelerator._models == [model]
    assert "self.accelerator.free_memory()" in inspect.getsource(Trainer._inner_training_loop)


def test_forward_without_autocast(accelerate_state):
    class AutocastSeen(torch.nn.Linear):
        def forward(self, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x)

    seen: list[bool] = []
    model = AutocastSeen(2, 2)
    assert accelerate_private.forward_without_autocast(model) is model
    accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    model(torch.ones(1, 2))
    accelerate_private.forward_without_autocast(model)(torch.ones(1, 2))
    assert seen == [True, False]


def test_the_launchers_environment_is_made(tmp_path, monkeypatch):
    """Fails if `accelerate launch` reads its flags and its file by another function."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    file = tmp_path / "config.yaml"
    file.write_text("distributed_type: 'NO'\nmixed_precision: bf16\nnum_processes: 1\nuse_cpu: true\n")
    made = accelerate_private.launch_environment(["--config_file", str(file), "--gradient_accumulation_steps", "4"])
    assert made["ACCELERATE_MIXED_PRECISION"] == "bf16"
