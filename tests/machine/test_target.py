"""The target of a configuration: the device and the GPU that a job computes on."""

import sys

import pytest
from conftest import compose

from legroom import config
from legroom.machine import host, interpreter


def test_auto_is_the_gpu_that_is_there(pretend_gpu):
    assert compose("device=cpu").cfg.target == host.Target("cpu", None)
    pretend_gpu((8, 6))
    cfg = compose().cfg
    assert cfg.target.on_gpu and cfg.target.gpu == host.gpus()[0]
    assert not compose("device=cpu").cfg.target.on_gpu


def test_an_estimate_is_for_a_gpu_that_need_not_be_there():
    cfg = compose("recipe=estimate", "gpu=l4_24gb").cfg
    gpu = cfg.target.gpu
    assert cfg.target.on_gpu and (gpu.name, gpu.memory_bytes, gpu.capability) == (
        cfg.gpu.device_name,
        cfg.gpu.memory_bytes,
        (8, 9),
    )
    assert compose("recipe=estimate", "device=cpu").cfg.target == host.Target("cpu", None)


def test_a_copy_without_compilation_has_the_same_target():
    cfg = compose("recipe=estimate", "gpu=l4_24gb", "compile=true").cfg
    assert cfg.as_written().target == cfg.target and cfg.compile and not cfg.as_written().compile


def test_no_record_holds_it_and_a_worker_finds_it_again():
    cfg = compose("recipe=estimate", "gpu=l4_24gb").cfg
    values = config.to_dict(cfg)
    assert "target" not in values and host.configuration(values).target == cfg.target


def test_a_capability_that_is_none_is_refused_and_described():
    problems = compose("recipe=estimate", "gpu=l4_24gb", "gpu.capability=new").problems
    assert len(problems) == 1 and "gpu.capability=new" in problems[0]
    assert config.Gpu(capability="new").compute_capability == (0, 0)
    assert config.Gpu(capability="9.0", link="nvlink").kernel_rules == (9, 0)


@pytest.mark.parametrize(
    "code, said",
    [(7, "exit code 7"), (0, "exit code 0"), (-9, "SIGKILL"), (-35, "signal 35")],
)
def test_how_a_process_ended_is_said(code, said):
    assert interpreter.exit_text(code) == said
    assert "the worker was ended" in interpreter.exit_text(interpreter.UNWATCHED)


def test_without_psutil_the_memory_is_not_known(monkeypatch):
    assert 0 < host.free_memory_bytes() <= host.memory_bytes()
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert host.free_memory_bytes() is host.memory_bytes() is None
