"""Machines of clouds by name: what a name stands for, in estimates, searches and checks."""

from __future__ import annotations

import re

import pytest
from conftest import compose

from legroom.cli import fit
from legroom.errors import Refusal
from legroom.estimator import cards
from legroom.foresight.search import plan, request
from legroom.foresight.search.request import Options, Place
from legroom.machine import instances
from legroom.options import gpu as gpu_options
from legroom.options import validate
from legroom.report.page import settings

P5 = "aws/p5.48xlarge"
TINY = ["recipe=estimate", "model=bert_tiny"]


@pytest.mark.parametrize("instance", instances.known().values(), ids=lambda instance: instance.name)
def test_what_has_a_price_has_its_day_and_its_source(instance):
    assert instances.find(instance.name) is instance
    if instance.price is None:
        assert "no price was read" in instance.text
    else:
        assert instance.price > 0 and instance.source
        assert re.search(r"20\d\d-\d\d-\d\d", instance.price_text)


def test_a_name_is_read_in_capitals_and_as_azure_prints_it():
    assert instances.find("Azure/Standard_nd96isr_h100_V5") is instances.known()["azure/ND96isr_H100_v5"]
    assert instances.find("aws/p5") is None


def price_of(name) -> float:
    price = instances.known()[name].price
    assert price is not None
    return price


def estimated(name, *overrides):
    cfg, _, problems = compose(*instances.in_overrides([*TINY, f"gpu={name}", *overrides]))
    assert not problems, problems
    return cfg


def test_card_memory_and_price_are_those_of_the_machine():
    cfg = estimated(P5)
    assert (cfg.gpu.device_name, cfg.gpu.host_memory_gib) == ("NVIDIA H100 80GB HBM3", 2048)
    assert cfg.gpu.price_per_hour == instances.known()[P5].price  # one GPU alone pays for the machine
    assert any("1 of 8 GPUs" in line for line in gpu_options.warnings(cfg))
    assert estimated("aws/g5.xlarge").gpu.bf16_tflops != estimated("aws/g6.xlarge").gpu.bf16_tflops


def test_a_mode_of_several_ranks_has_all_gpus_of_a_machine():
    cfg = estimated(P5, "parallelism=ddp")
    assert cfg.parallelism.num_processes == 8
    assert (cfg.gpu.price_per_hour or 0) * 8 == pytest.approx(price_of(P5))
    (line,) = gpu_options.warnings(cfg)
    assert "2026-11-09" in line and "2,048 GiB" in line


def test_more_ranks_are_more_machines_and_their_network():
    cfg = estimated(P5, "parallelism=fsdp", "parallelism.num_processes=16")
    assert (cfg.gpu.machines, cfg.gpu.machine_link_gb_per_second) == (2, 400)
    assert (cfg.gpu.price_per_hour or 0) * 16 == pytest.approx(2 * price_of(P5))


@pytest.mark.parametrize("name, tensor_size, ranks", [(P5, 4, 8), (P5, 8, 16), ("runpod/h100_sxm", 2, 4)])
def test_a_mesh_has_the_gpus_of_its_machines_or_more_of_them(name, tensor_size, ranks):
    sizes = ["parallelism.replicate_size=2", f"parallelism.tensor_size={tensor_size}"]
    cfg = estimated(name, "model=llama_1b", "parallelism=mesh", *sizes)
    assert (cfg.parallelism.num_processes, cfg.gpu.machines) == (ranks, 2 if ranks > 8 else 1)


def test_more_machines_than_are_needed_are_paid_for():
    cfg = estimated(P5, "parallelism=fsdp", "parallelism.num_processes=8", "gpu.machines=2")
    assert (cfg.gpu.machines, cfg.gpu.machine_link_gb_per_second) == (2, 400)
    assert (cfg.gpu.price_per_hour or 0) * 8 == pytest.approx(2 * price_of(P5))
    assert any("8 of 16 GPUs train" in line for line in gpu_options.warnings(cfg))


def test_fewer_machines_than_have_so_many_gpus_are_refused():
    typed = [*TINY, f"gpu={P5}", "parallelism=fsdp", "parallelism.num_processes=32", "gpu.machines=2"]
    _, _, problems = compose(*instances.in_overrides(typed))
    assert problems == [
        f"gpu.machines=2 of {P5} have 16 GPUs, and 32 ranks need 4 of these machines. Leave gpu.machines out."
    ]


@pytest.mark.parametrize("typed_too", [[], ["parallelism.num_processes=16", "gpu.machines=2"]], ids=str)
def test_the_command_to_train_names_no_machine_which_a_training_refuses(typed_too):
    typed = [*TINY, f"gpu={P5}", "parallelism=ddp", *typed_too]
    outcome = compose(*instances.in_overrides(typed)).record
    assert outcome is not None
    assert settings.to_train(outcome).endswith(" ".join(["model=bert_tiny parallelism=ddp", *typed_too[:1]]))


def test_what_is_typed_stays():
    cfg = estimated(P5, "gpu.price_per_hour=2", "gpu.host_memory_gib=100")
    assert (cfg.gpu.price_per_hour, cfg.gpu.host_memory_gib) == (2, 100)


@pytest.mark.parametrize(
    "typed, said",
    [
        ("gpu=aws/p5.48xlarg", "Did you mean aws/p5.48xlarge"),
        ("gpu=gcp/p5.48xlarge", "gcp/a3-highgpu-8g"),
        ("gpu=aws/p5.48xlarge,l4_24gb", "one kind"),
    ],
)
def test_what_is_no_name_is_refused(typed, said):
    with pytest.raises(Refusal, match=said):
        instances.in_overrides([typed])


def test_a_training_cannot_name_a_machine_that_it_is_not_on():
    _, _, problems = compose("recipe=accelerate", "model=bert_tiny", "gpu=auto", f"gpu.instance={P5}")
    assert problems and "recipe=estimate" in problems[0]


def test_fit_searches_machines_and_knows_their_prices():
    places, others, problems = request.read_places([f"gpu={P5},gcp/a3-highgpu-8g", "seed=3"], Options(sort="cost"))
    assert not problems and [place.gpu for place in places] == [P5, "gcp/a3-highgpu-8g"]
    assert places[0].overrides(others, Options()) == ["seed=3", "gpu=auto", f"gpu.instance={P5}"]
    assert Place(P5, 8).label == f"8 x {P5}"
    _, _, problems = request.read_places(["gpu=aws/p5,l4_24gb"], Options())
    assert problems and "no such instance" in problems[0]


def test_a_search_over_the_gpus_of_a_machine_has_configurations():
    """What is validated again, with another mode, keeps the machine and its price."""
    (place,), others, _ = request.read_places([f"gpu={P5}", "model=bert_tiny", "batch.effective=64"], Options(gpus=8))
    search, problems = plan.plan(place.overrides(others, Options()), Options(gpus=8))
    assert search is not None, problems
    assert search.values["parallelism"] and not any(P5 in line for line in search.left_out)
    chosen = {"parallelism": search.values["parallelism"][-1]}
    assert not validate.validate(search.config(chosen))
    assert (search.config(chosen).gpu.price_per_hour or 0) * 8 == pytest.approx(price_of(P5))
    assert "gpu" not in search.command(chosen)


def test_the_cards_of_check_have_such_names():
    assert cards.gpu_of("runpod/h100_pcie").device_name == "NVIDIA H100 PCIe"
    with pytest.raises(Refusal, match="no such instance"):
        cards.gpu_of("aws/p7")


def test_a_search_says_what_its_machines_have_and_when_their_price_was_read(monkeypatch, capsys):
    monkeypatch.setattr(fit.plan, "plan_all", lambda *_: ([], {"all": ["nothing is searched here"]}))
    with pytest.raises(Refusal, match="nothing is searched here"):
        fit.main(["model=bert_tiny", f"gpu={P5},gcp/g2-standard-4"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{P5}: 8 x NVIDIA H100") and "2026-11-09" in said[0]
    assert "no price was read" in said[1]
