"""What is said of estimates that are made up: batches that do not fit, a GPU that is not known, a picture of a step."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from conftest import compose
from matplotlib.figure import Figure
from test_step_estimate import made as estimated

from legroom import Refusal
from legroom.estimator import places
from legroom.estimator.cards import gpu_of
from legroom.estimator.speed.operation_names import MATMUL
from legroom.estimator.speed.operations import Operation, Tally
from legroom.estimator.step_estimate import precision_like
from legroom.foresight import not_followed
from legroom.foresight.search import objective
from legroom.machine import gpu_specs, host
from legroom.units import GIB, MIB


@functools.cache
def config(*words: str):
    return compose("recipe=estimate", "model=gpt2_tiny", "gpu=l4_24gb", *words).cfg


# --- batches ----------------------------------------------------------------------------------------


def test_an_adapter_is_proposed_where_there_is_none():
    assert objective.adapters(config("adapter=lora")) == []
    proposed = [" ".join(lever.overrides for lever in levers) for levers in objective.adapters(config())]
    assert proposed == ["adapter=lora", "adapter=qlora", "adapter=lora precision=bf16", "adapter=qlora precision=bf16"]


def test_a_refusal_has_the_scripts_line():
    assert not_followed.reason(config(), Refusal("type this.")) == "type this."
    assert places.own_line(None) == ""


# --- a GPU, a picture -------------------------------------------------------------------------------


def test_the_installed_gpu_is_found_by_its_name(monkeypatch):
    card = host.Gpu("GPU-0", "NVIDIA L4", 20 * GIB, (8, 9))
    for gpus in ((), (dataclasses.replace(card, name="NVIDIA Nothing"),)):
        monkeypatch.setattr(host, "gpus", lambda gpus=gpus: gpus)
        with pytest.raises(Refusal, match=r"gpu='auto': no GPU with known figures is installed here. Choose one: .*l4"):
            gpu_of("auto")
    monkeypatch.setattr(host, "gpus", lambda: (card,))
    found = gpu_of("auto")
    assert (found.memory_bytes, found.name, found.chip) == (20 * GIB, "l4_24gb", gpu_of("l4_24gb").chip)
    assert gpu_specs.options()["l4_24gb"]["memory_bytes"] != 20 * GIB, "the menu's own stay as they are"


@pytest.mark.parametrize("share, line", [(1.4, True), (1.6, False)])
def test_a_picture_has_a_line_for_the_capacity_where_that_is_near(tmp_path, monkeypatch, share, line):
    drawn, whole = [], estimated()
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.append((figure, path)))
    capacity = int(share * whole.tensor_bytes) + whole.context_bytes
    dataclasses.replace(whole, capacity_bytes=capacity).picture(tmp_path / "step.png", "a title")
    ((figure, path),) = drawn
    (axes,) = figure.axes
    texts = [text.get_text().strip() for text in axes.texts]
    assert path == tmp_path / "step.png" and figure.get_suptitle() == "a title"
    assert f"{whole.tensor_bytes / MIB:,.0f} MiB" in texts and {"forward", "backward", "step"} <= {*texts}
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("capacity of the GPU" in names) is line and {"weights", "gradients", "activations"} <= {*names}
    assert axes.get_xlim() == (0, len(whole.timeline) - 1)


def test_the_picture_of_a_script_is_on_its_page():
    with pytest.raises(Refusal, match="`legroom check` draws them on its page"):
        dataclasses.replace(estimated(), _trace=None).picture("step.png")


# --- the precision of a step of one's own -----------------------------------------------------------------------


@pytest.mark.parametrize("wide, precision", [(3, "bf16_pure"), (4, "bf16_pure"), (5, "bf16"), (8, "bf16")])
def test_a_step_in_16_bits_is_mixed_where_most_trained_weights_are_wider(wide, precision):
    tally = Tally()
    tally.put(Operation("mm", MATMUL, "bf16", flops=2), "forward")
    tally.put(Operation("mm", MATMUL, "fp32", flops=1), "forward")
    assert precision_like([tally], trained=8, trained_in_fp32=wide, uses_tf32=False) == precision
