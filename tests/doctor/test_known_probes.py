"""What the doctor's probes call right and wrong, with made-up libraries; and how it gathers its findings."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from legroom.doctor import checks, page, probe
from legroom.machine import host, nvml


@pytest.mark.parametrize(
    "moved, dtype, right",
    [
        (0.1, torch.uint8, True),
        (0.0901, torch.uint8, True),
        (0.0899, torch.uint8, False),
        (0.1099, torch.uint8, True),
        (0.1101, torch.uint8, False),
        (-0.1, torch.uint8, True),
        (0.0, torch.uint8, False),
        (0.1, torch.float32, False),
    ],
)
def test_a_step_of_8bit_adamw_goes_as_far_as_it_should(moved, dtype, right, monkeypatch):
    class AdamW8bit:
        def __init__(self, weights, lr, weight_decay):
            (self.weight,) = weights
            assert self.weight.numel() >= 4096 and weight_decay == 0.0
            self.length, self.state = moved * lr / 0.1, {self.weight: {"state1": torch.zeros(1, dtype=dtype)}}

        def step(self):
            with torch.no_grad():
                self.weight -= self.length * self.weight.grad

    module = ModuleType("bitsandbytes.optim.adamw")
    module.AdamW8bit = AdamW8bit  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("bitsandbytes", "bitsandbytes.optim"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim.adamw", module)
    if right:
        assert probe._step_8bit("cpu") == {}
        return
    with pytest.raises(
        ArithmeticError, match=rf"its first step went {abs(moved):.4f} where 0.1 is right, with {dtype}"
    ):
        probe._step_8bit("cpu")


def test_a_wrong_product_is_an_error(monkeypatch):
    ones, asked = torch.ones, []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda n: f"Card {n}")
    monkeypatch.setattr(torch, "ones", lambda *sizes, device: asked.append(device) or ones(*sizes))
    assert probe._product(3) == {"name": "Card 3"} and asked == ["cuda:3"]
    monkeypatch.setattr(torch, "ones", lambda *sizes, device: 1.01 * ones(*sizes))
    with pytest.raises(ArithmeticError, match="a product of ones is wrong"):
        probe._product(0)


def test_cuda_says_why_it_is_not_there_and_how_many_cards_it_has(monkeypatch):
    started: list[bool] = []
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(True))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert probe._cuda() == {"count": 2} and started == [True]
    assert probe._torch() == {"cuda": torch.version.cuda}


@pytest.mark.parametrize(
    "asked, torch_fails, bitsandbytes_fails, tried",
    [
        (True, False, False, ["torch", "bitsandbytes", "bitsandbytes on cpu"]),
        (False, False, False, ["torch"]),
        (True, True, False, ["torch"]),
        (True, False, True, ["torch", "bitsandbytes"]),
    ],
)
def test_bitsandbytes_is_tried_where_it_and_torch_can_be_imported(
    asked, torch_fails, bitsandbytes_fails, tried, monkeypatch, capsys
):
    def answer(fails: bool) -> dict:
        if fails:
            raise ImportError("no")
        return {}

    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    monkeypatch.setattr(probe, "_torch", lambda: answer(torch_fails))
    monkeypatch.setattr(probe, "_bitsandbytes", lambda: answer(bitsandbytes_fails))
    monkeypatch.setattr(probe, "_step_8bit", lambda device: {})
    probe.devices(asked)
    begun = [line for line in capsys.readouterr().out.splitlines() if line.endswith(": null}")]
    assert [line.split('"')[1] for line in begun] == tried


class Done(SimpleNamespace):
    """A finished process."""


@pytest.mark.parametrize(
    "code, out, found",
    [
        (0, "", {}),
        (0, 'noise\nprobe result: {"a": null}\nprobe result: {"a": {"x": 1}}\n', {"a": {"x": 1}}),
        (1, 'probe result: {"a": null}\n', {"a": {"error": "its process ended with 1: last"}}),
        (1, "noise", {"python": {"error": "its process ended with 1: last"}}),
        (0, 'probe result: {"a": null}\n', {"a": {"error": "its process ended with 0: last"}}),
        (-11, 'probe result: {"a": {}}\nprobe result: {"b": null}', {"a": {}, "b": {"error": "KILLED"}}),
        (None, 'probe result: {"a": null}\n', {"a": {"error": "no answer in 120 s"}}),
        (None, None, {"python": {"error": "no answer in 120 s"}}),
    ],
    ids=range(8),
)
def test_what_a_probes_process_has_told(code, out, found, monkeypatch):
    def run(command, capture_output, stdin, timeout, env):
        assert command[1:] == ["-c", "code"] and env["HF_HUB_OFFLINE"] == "1"
        if code is None:
            raise probe.subprocess.TimeoutExpired(command, timeout, None if out is None else out.encode())
        return Done(stdout=(out or "").encode(), stderr=b"first\nlast\n", returncode=code)

    monkeypatch.setattr(probe.subprocess, "run", run)
    killed = {"error": "its process was killed by SIGSEGV"}
    assert probe.run("code") == {
        name: killed if facts == {"error": "KILLED"} else facts for name, facts in found.items()
    }


# --- gathering ---------------------------------------------------------------------------------------

CARD = SimpleNamespace(index=0)


@pytest.mark.parametrize(
    "cards, job_gpus, possible, visible, seen",
    [
        ([CARD], ("a",), False, ("b",), ("a",)),
        ([CARD], (), True, ("b",), ("b",)),
        ([CARD], (), False, ("b",), ()),
        ([], (), True, ("b",), ()),
    ],
)
def test_the_gpus_of_a_job_are_those_that_it_would_get(cards, job_gpus, possible, visible, seen, monkeypatch):
    calls: list[str] = []
    query = SimpleNamespace(cards=lambda: cards, driver="driver")
    packages = [
        checks.Package("torch", "2", None, None),
        checks.Package("bitsandbytes", "1", None, "8bit"),
        checks.Package("wandb", None, None, ""),
        checks.Package("rich", "1", None, None),
    ]

    def run(code: str) -> dict[str, Any]:
        calls.append(code)
        return {"rich": {"error": "x"}, "wandb": {"error": "y"}} if "imports" in code else {"torch": {}}

    monkeypatch.setattr(nvml, "Nvml", lambda: query)
    monkeypatch.setattr(checks.probe, "run", run)
    monkeypatch.setattr(checks, "packages", lambda: ("3.11", packages))
    monkeypatch.setattr(checks, "links", lambda count: [["X"]] * count)
    monkeypatch.setattr(checks, "examine_host", lambda: "the host")
    monkeypatch.setattr(host, "gpus", lambda: job_gpus)
    monkeypatch.setattr(host, "cuda_is_possible", lambda: possible)
    monkeypatch.setattr(nvml, "visible_gpus", lambda: visible)
    found = checks.examine()
    assert (found.jobs_gpus, found.jobs_error, found.cards, len(found.links)) == (seen, None, cards, len(cards))
    assert (found.driver, found.host, found.python_bound) == ("driver", "the host", "3.11")
    assert sorted(calls) == [
        f"from legroom.doctor import probe; probe.{call}"
        for call in ("devices(bitsandbytes=True)", "imports(['rich'])")
    ]
    assert [package.error for package in found.packages] == [None, None, None, "x"], "wandb is not installed"
    assert found.version("rich") == "1" and found.version("none") is None and found.torch_cuda is None
    monkeypatch.setattr(checks, "packages", lambda: ("3.11", packages[::2]))
    checks.examine()
    assert "from legroom.doctor import probe; probe.devices(bitsandbytes=False)" in calls

    def lost():
        raise RuntimeError("it fell off the bus")

    monkeypatch.setattr(host, "gpus", lost)
    found = checks.examine()
    assert (found.jobs_gpus, found.jobs_error) == ((), "RuntimeError: it fell off the bus")


@pytest.mark.parametrize("broken, code", [([], 0), (["this"], 1)])
def test_the_command_prints_the_page_and_ends_with_whether_something_is_broken(broken, code, monkeypatch, capsys):
    monkeypatch.setattr(checks, "examine", lambda: "found")
    monkeypatch.setattr(page, "page", lambda found: SimpleNamespace(lines=[("[bold]a", "bold"), ("b", "")]))
    monkeypatch.setattr(page.faults, "broken", lambda found: broken)
    for rich in (True, False):
        if not rich:
            monkeypatch.setitem(sys.modules, "rich.console", None)
        assert page.main() == code
        assert capsys.readouterr().out == "[bold]a\nb\n"
