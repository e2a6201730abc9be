"""The fixtures of the tests under played GPUs (played_gpu.py). A test file names this file in `pytest_plugins`."""

from __future__ import annotations

import sys

import conftest
import played_gpu
import pytest

from legroom.jobs import fork_client
from legroom.machine import host

CARDS = 2  # of the machine that is played


def _parent(patch: pytest.MonkeyPatch) -> None:
    """This process and those that it starts see the cards. torch is not played here: the parent does not use it."""
    patch.setitem(sys.modules, "pynvml", played_gpu.nvml(played_gpu.Cards(CARDS)))
    patch.setattr(host, "torch_has_cuda", lambda: True)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in played_gpu.environment(CARDS).items():
        patch.setenv(name, value)


@pytest.fixture(scope="session")
def _gpu_server(tmp_path_factory):
    """A fork server whose workers have the cards and first run the code in a file; (fork server, file)."""
    folder = tmp_path_factory.mktemp("played")
    (folder / "fault.py").write_text("")
    (folder / "sitecustomize.py").write_text(
        "import played_gpu\nplayed_gpu.install()\n" + conftest.SITECUSTOMIZE  # one of them in a process
    )
    with pytest.MonkeyPatch.context() as patch:
        host.gpus.cache_clear()
        _parent(patch)
        patch.setenv("PYTHONPATH", f"{folder}:{played_gpu.SUPPORT}")
        patch.setenv("LEGROOM_TEST_FAULT", str(folder / "fault.py"))
        fork_server = fork_client.ForkServer()
    host.gpus.cache_clear()
    yield fork_server, folder / "fault.py"
    fork_server.close()


@pytest.fixture
def gpus(monkeypatch, _gpu_server):
    """gpus(code="") -> the fork server: this machine has the cards, and the next workers first run the code.

    The code sees `job`; `from played_gpu import CARDS` has the cards of that worker.
    """
    fork_server, file = _gpu_server
    _parent(monkeypatch)
    host.gpus.cache_clear()

    def gpus(code: str = "") -> fork_client.ForkServer:
        file.write_text(code)
        return fork_server

    yield gpus
    file.write_text("")
    host.gpus.cache_clear()


@pytest.fixture
def on_gpu(gpus, train):
    """on_gpu(*overrides, code="", status="ok") -> Run: as `train`, with device=cuda."""

    def on_gpu(*overrides: str, code: str = "", status: str | None = "ok"):
        return train("device=cuda", *overrides, fork_server=gpus(code), status=status)

    return on_gpu
