"""The menu of GPUs: its figures, the names that devices give themselves, and that a run does not read it."""

from __future__ import annotations

import pytest
from conftest import CONF, compose

from legroom import config
from legroom.machine import gpu_specs, host
from legroom.options import gpu as gpu_options
from legroom.options import menus
from legroom.records import record

TERA = 1e12
GIB = 2**30
OPTIONS = sorted(set(menus.options("gpu", [CONF])) - {"auto"})


@pytest.mark.parametrize(
    "name,precision,peak",
    [
        # NVIDIA's data sheets: dense, without sparsity.
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "bf16_pure", 989.4),  # 16-bit weights use the 16-bit units
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA A100-PCIE-40GB", "tf32", 156.0),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "bf16", 438.9),
        ("Tesla V100-SXM2-16GB", "fp32", 15.7),
        ("Tesla V100-PCIE-32GB", "fp16", 112.0),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA L40", "bf16", 181.0),
        ("NVIDIA L40S", "bf16", 362.0),
    ],
)
def test_the_peak_of_a_known_device(name, precision, peak):
    assert gpu_specs.peak_flops(name, precision) == pytest.approx(peak * TERA)


@pytest.mark.parametrize(
    "name,precision",
    [
        ("AMD EPYC", "fp32"),
        ("NVIDIA A1000", "fp32"),
        ("NVIDIA L400", "bf16"),
        ("Tesla V100-SXM2-16GB", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16"),
        ("NVIDIA GeForce RTX 4060 Ti", "bf16"),
        ("Quadro RTX 6000", "fp16"),
        ("NVIDIA GB300", "bf16"),
    ],
)
def test_what_the_table_lacks_has_no_peak(name, precision):
    assert gpu_specs.peak_flops(name, precision) is None


def test_cards_of_one_chip_are_told_apart_by_their_memory():
    assert gpu_specs.find("NVIDIA A100-SXM4-40GB", 40 * GIB)["name"] == "a100_40gb"
    assert gpu_specs.find("NVIDIA A100-SXM4-80GB", 80 * GIB)["name"] == "a100_80gb"
    assert gpu_specs.find("NVIDIA A100 80GB PCIe", 80 * GIB)["link"] == "pcie"


@pytest.mark.parametrize("option", OPTIONS)
def test_every_gpu_is_found_and_has_every_figure(option):
    figures = gpu_specs.options()[option]
    assert gpu_specs.find(figures["device_name"], figures["memory_bytes"]) == figures
    assert set(figures) == set(config.node_types(config.Gpu)) - {"facts"}
    nominal = int(option.split("_")[-1].removesuffix("gb"))
    assert 0.9 * nominal * 1e9 < figures["memory_bytes"] <= nominal * 1.08 * 1e9  # GiB or GB, less what is kept back
    assert figures["fp32_tflops"] < figures["fp16_tflops"] or option == "gtx1080ti_11gb"
    if float(figures["capability"]) < 8:  # no TF32 and no bf16 before Ampere
        assert figures["tf32_tflops"] is None and figures["bf16_tflops"] is None
    elif option.startswith("mi250"):  # no TF32 before CDNA 3
        assert figures["tf32_tflops"] is None and figures["bf16_tflops"] == figures["fp16_tflops"]
    else:
        assert figures["fp32_tflops"] <= figures["tf32_tflops"] <= figures["bf16_tflops"] == figures["fp16_tflops"]


@pytest.mark.parametrize("option", OPTIONS[::10])
def test_a_run_refuses_a_gpu_that_is_only_predicted_for(option):
    problems = compose("device=cpu", f"gpu={option}").problems
    assert len(problems) == 1 and f"gpu={option} belongs to recipe=estimate" in problems[0]


def test_the_menu_does_not_change_the_key_of_a_run():
    told = compose("device=cpu")
    values = config.to_dict(told.cfg)
    before_the_menu = {key: value for key, value in values.items() if key != "gpu"}
    versions = told.record.environment["versions"]
    assert record.config_key(values, versions) == record.config_key(before_the_menu, versions) == told.record.config_key
    values["recipe"]["kind"] = "estimate"
    assert record.config_key(values, versions) != record.config_key(values | {"gpu": {"name": "l4_24gb"}}, versions)


def estimated(option: str) -> config.Config:
    cfg = compose("device=cpu").cfg
    cfg.recipe.kind, cfg.gpu, cfg.device = "estimate", config.from_dict({"name": option}, config.Gpu), "auto"
    return cfg


def test_auto_is_the_gpu_at_hand_with_its_own_memory(pretend_gpu):
    pretend_gpu((8, 0), "NVIDIA A100-SXM4-80GB")
    cfg = estimated("auto")
    assert gpu_options.resolve(cfg) == []
    assert cfg.gpu.memory_bytes == 16 * GIB and cfg.gpu.capability == "8.0"  # what NVML says
    assert cfg.gpu.name == "auto" and cfg.gpu.bf16_tflops == 312.0  # what the chip has


def test_auto_without_figures_is_refused(pretend_gpu, monkeypatch):
    pretend_gpu((7, 5), "NVIDIA Pretended")
    assert "NVIDIA Pretended" in gpu_options.resolve(estimated("auto"))[0]
    monkeypatch.setattr(host, "gpus", lambda: ())
    assert "gpu=a100_40gb" in gpu_options.resolve(estimated("auto"))[0]
    assert gpu_options.resolve(estimated("l4_24gb")) == []


def test_an_estimate_for_the_cpu_needs_no_gpu_and_takes_none(monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ())
    assert compose("recipe=estimate", "device=cpu").problems == []
    problems = compose("recipe=estimate", "device=cpu", "gpu=l4_24gb").problems
    assert len(problems) == 1 and "device=cpu" in problems[0] and "gpu=l4_24gb" in problems[0]


def test_a_peak_that_is_missing_is_asked_for():
    """As of a card that is none of the menu: another one's figures, and what is different."""
    own = ("recipe=estimate", "gpu=t4_16gb", "gpu.capability=8.6")
    (problem,) = compose(*own, "precision=bf16_pure").problems
    assert problem.endswith("the peak of Tesla T4 in bf16 is not known. Add gpu.bf16_tflops=, in dense TFLOP/s.")
    assert compose(*own, "precision=bf16_pure", "gpu.bf16_tflops=31").problems == []
    (problem,) = compose(*own[:2], "precision=bf16").problems
    assert "needs compute capability 8.0" in problem


@pytest.mark.parametrize("capability", ["8", "abc", "8.x", "9.0a"])
def test_a_capability_that_is_none_is_refused(capability):
    (problem,) = compose("recipe=estimate", "gpu=a100_40gb", f"gpu.capability={capability}").problems
    assert f"gpu.capability={capability}" in problem and "Type it as in gpu.capability=8.6" in problem


def test_a_power_limit_is_a_share_and_no_watts():
    assert not compose("recipe=estimate", "gpu=h100_80gb", "gpu.power_limit=1").problems
    (problem,) = compose("recipe=estimate", "gpu=h100_80gb", "gpu.power_limit=500").problems
    assert problem.startswith("gpu.power_limit=500: it is a share")
