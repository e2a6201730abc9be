"""kernels=liger: where it is refused, and on a played GPU that both recipes train with the kernels, put in once.

The kernels themselves need a GPU and triton: a stand-in for the package shows that they are reached.
"""

from __future__ import annotations

import shutil

import pytest
from conftest import compose

from legroom.machine import host

pytest_plugins = ["gpu_fixtures"]
LIGER = ["model=llama_tiny", "kernels=liger"]

# Its loss is twice the model's, so that the record shows which forward pass ran.
PACKAGE = """
import sys, types
from transformers.integrations import liger
liger.is_liger_kernel_available = lambda: True

def put_in(model, fused_linear_cross_entropy=True):
    assert "forward" not in vars(model), "put in twice, or over a wrapper"
    forward = model.forward
    def twice(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.loss = output.loss * (2 if fused_linear_cross_entropy else 3)
        return output
    model.forward = types.MethodType(lambda self, *args, **kwargs: twice(*args, **kwargs), model)

package, inner, patches = (types.ModuleType(name) for name in ("liger_kernel", "transformers", "monkey_patch"))
inner._apply_liger_kernel_to_instance, inner.monkey_patch = put_in, patches
patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": None}
sys.modules |= {"liger_kernel": package, "liger_kernel.transformers": inner}
"""


@pytest.fixture
def installed(monkeypatch):
    has = host.has
    monkeypatch.setattr(host, "has", lambda module: module in ("liger_kernel", "triton") or has(module))


@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_both_recipes_train_with_the_kernels(on_gpu, installed, recipe):
    words = [f"recipe={recipe}", "model=llama_tiny", "precision=bf16"]
    plain, with_kernels = on_gpu(*words).record, on_gpu(*words, "kernels=liger", code=PACKAGE).record
    assert with_kernels.training.losses[0] == pytest.approx(2 * plain.training.losses[0], rel=1e-6)
    assert with_kernels.memory.peak_tensor_bytes, with_kernels.warnings
    assert with_kernels.config["kernels"] == {"name": "liger", "kind": "liger"}


@pytest.mark.slow
def test_beside_an_adapter_they_are_in_the_model_itself(on_gpu, installed):
    words = ["recipe=accelerate", "model=llama_tiny", "adapter=lora"]
    plain, with_kernels = on_gpu(*words).record, on_gpu(*words, "kernels=liger", code=PACKAGE).record
    assert with_kernels.training.losses[0] == pytest.approx(2 * plain.training.losses[0], rel=1e-6)


@pytest.mark.slow
def test_a_classifier_keeps_its_loss(on_gpu, installed, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"text": "row {n}", "label": {n % 2}}}\n' for n in range(8)))
    words = ["recipe=accelerate", "model=llama_tiny", "data=text", "data.task=classification", f"data.path={file}"]
    plain, with_kernels = on_gpu(*words).record, on_gpu(*words, "kernels=liger", code=PACKAGE).record
    assert with_kernels.training.losses[0] == pytest.approx(3 * plain.training.losses[0], rel=1e-6)


def test_a_model_that_liger_does_not_know_is_refused_before_it_is_built(on_gpu, installed):
    code = PACKAGE.replace('{"llama": None}', '{"qwen3": None}')
    assert (
        "no kernels for model=llama_tiny (llama). Type kernels=none."
        in on_gpu(*LIGER, code=code, status="refused").record.error.message
    )


@pytest.mark.parametrize(
    "words, said",
    [
        (["device=cpu"], "kernels=liger needs a GPU: they are triton's. Choose loss=chunked"),
        (["recipe=estimate", "gpu=l4_24gb"], "recipe=estimate does not support kernels=liger"),
    ],
)
def test_it_is_refused_where_it_cannot_be(words, said):
    (problem,) = compose(*LIGER, *words).problems
    assert problem.startswith(said) and "loss=chunked" in problem


@pytest.mark.parametrize(
    "words, said",
    [
        (["loss=chunked"], "Leave one of them out"),
        (["compile=true"], "Leave one of them out"),
        (["precision=fp16"], "Choose precision=bf16"),
        (["parallelism=fsdp", "parallelism.num_processes=1"], "Choose parallelism=ddp"),
        (["model=gpt2_tiny"], "Choose model=llama_tiny"),
    ],
)
def test_what_contradicts_it_is_refused_with_what_to_type(pretend_gpu, installed, words, said):
    pretend_gpu((9, 0))
    has, host.has = host.has, lambda module: True  # triton, for compile
    try:
        (problem,) = [line for line in compose(*LIGER, *words).problems if "kernels=liger" in line]
    finally:
        host.has = has
    assert said in problem


def test_without_a_compiler_for_triton_it_says_what_to_install(pretend_gpu, installed, monkeypatch):
    pretend_gpu((9, 0))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    (problem,) = compose(*LIGER).problems
    assert problem.startswith("kernels=liger needs a C compiler") and "choose kernels=none" in problem


def test_without_the_package_it_says_what_to_install(pretend_gpu):
    pretend_gpu((9, 0))
    (problem,) = compose(*LIGER).problems
    assert problem == "kernels=liger needs the package liger_kernel: pip install liger_kernel, or choose kernels=none."
