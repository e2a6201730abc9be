"""Steps of published runs, as their own training loops and libraries did them, on the fake device.

What differs from a step of this repository is written down here with its source; nothing is fitted to the measured
values. xMem's runs: transformers 4.51.3. fms-acceleration's: 4.48.1 and 4.45.2. The guide's table: January 2022, so
torch 1.10 and transformers 4.15.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import library_patches
import torch
import transformers
from published_models import ARCHITECTURES, SDPA_4_51
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from legroom.estimator.fake_gpu.device import FakeDevice
from legroom.estimator.fake_gpu.op_trace import OpTrace
from legroom.estimator.memory import allocator
from legroom.estimator.speed.operations import Tally

ITERATIONS = 4  # as many as xMem ran; the other runs reach their steady state earlier


@dataclass(frozen=True)
class SimulatedRun:
    """A training loop on the fake device: the allocator's bytes over all iterations, the operations of one of them."""

    demand: allocator.Demand
    tally: Tally


def xmem(
    model: str,
    batch: int,
    length: int,
    optimizer: str,
    zero_grad_mode: int,
    capability: tuple[int, int],
    capacity_bytes: int,
) -> SimulatedRun:
    """xMem's training loop in fp32.

    batch, length: B and T of a batch of tokens. zero_grad_mode: gradients are dropped 0: before the forward pass,
    1: before the backward pass, 2: after the optimizer's step. capacity_bytes: what the allocator may reserve.
    """

    def iteration(network, optim, inputs, state):
        if zero_grad_mode == 0:
            optim.zero_grad()
        state["outputs"] = network(**inputs)  # the previous outputs (logits, cache) stay alive until this returns
        if zero_grad_mode == 1:
            optim.zero_grad()
        state["outputs"].loss.backward()
        optim.step()
        if zero_grad_mode == 2:
            optim.zero_grad()

    return _simulate(model, batch, length, optimizer, torch.float32, iteration, capability, capacity_bytes)


def fine_tuning(model: str, batch: int, length: int, capability: tuple[int, int], capacity_bytes: int) -> SimulatedRun:
    """The Trainer as fms-acceleration ran it: weights in bf16, checkpointing, clipping, AdamW with foreach."""

    def iteration(network, optim, inputs, state):
        network.config.use_cache = False
        if not network.is_gradient_checkpointing:
            network.gradient_checkpointing_enable({"use_reentrant": False})
        network(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optim.step()
        optim.zero_grad()

    return _simulate(model, batch, length, "AdamW", torch.bfloat16, iteration, capability, capacity_bytes)


def _simulate(
    model: str,
    batch: int,
    length: int,
    optimizer: str,
    dtype: torch.dtype,
    iteration: Callable[[Any, torch.optim.Optimizer, dict, dict], None],
    capability: tuple[int, int],
    capacity_bytes: int,
) -> SimulatedRun:
    architecture = ARCHITECTURES[model]
    config = transformers.AutoConfig.for_model(architecture.model_type, **architecture.sizes)
    auto_class = getattr(transformers, architecture.auto_class)
    with FakeDevice(capability) as fake, transformers_4_51():
        with fake.building():
            network = auto_class.from_config(config, attn_implementation=architecture.attention, dtype=dtype)
            network.tie_weights()
            tokens = torch.zeros(batch, length, dtype=torch.long)
            inputs = {
                "input_ids": tokens,
                "labels": torch.zeros_like(tokens),
                "attention_mask": torch.ones_like(tokens),
            }
        if architecture.forward is not None:
            network.forward = functools.partial(architecture.forward, network)
        network.train()
        optim = getattr(torch.optim, optimizer)(network.parameters(), lr=1e-3)
        trace, state = OpTrace(fake, network, optim), {}
        for _ in range(ITERATIONS):
            with trace:
                iteration(network, optim, inputs, state)
        return SimulatedRun(allocator.replay(trace.allocator_events(repeats=1), capacity_bytes), trace.step_tally(1))


# --- earlier versions of the libraries ------------------------------------------------------------------


class _ConstantsFromHost(TorchFunctionMode):
    """Makes `torch.tensor(value, device=...)` on the host and copies it to the device.

    torch does the same, below the level at which the fake device sees operations.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None:
            return func(*args, **{key: value for key, value in kwargs.items() if key != "device"}).to(kwargs["device"])
        return func(*args, **kwargs)


@contextlib.contextmanager
def transformers_4_51() -> Iterator[None]:
    """transformers 4.51.3 where its memory differs from today's version.

    cache_utils.py keeps the first keys and values without a copy, and integrations/sdpa_attention.py makes queries,
    keys and values contiguous first.
    """

    def contiguous(module, query, key, value, mask, **settings):
        return sdpa_attention_forward(
            module, query.contiguous(), key.contiguous(), value.contiguous(), mask, **settings
        )

    AttentionInterface.register(SDPA_4_51, contiguous)
    AttentionMaskInterface.register(SDPA_4_51, sdpa_mask)
    with library_patches.cache_without_first_copy(), _ConstantsFromHost():
        yield


class _SavedForBackward(torch.autograd.Function):
    """The identity; its input is saved until the backward pass has used it."""

    @staticmethod
    def forward(ctx, tensor):
        ctx.save_for_backward(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0]


@contextlib.contextmanager
def libraries_of_january_2022() -> Iterator[None]:
    """The guide's libraries where their memory differs from today's versions, for a step of this repository's loop.

    torch 1.10: softmax saves its input beside its result (pytorch issue 64000; changed in 1.11 by pull request 65242),
    and gradients are kept as zeros between steps (`zero_grad(set_to_none=False)` until 2.0). transformers 4.15: AdamW
    updates one parameter after the other (optimization.py), without the temporaries of foreach; and BERT always adds
    its mask, which is in fp32, to the scores (modeling_bert.py), so that the input of softmax is in fp32 under
    autocast, too.
    """
    softmax = torch.nn.functional.softmax

    def softmax_1_10(scores, *args, **settings):
        return softmax(_SavedForBackward.apply(scores.float()), *args, **settings)

    with (
        library_patches.softmax_replaced(softmax_1_10),
        library_patches.gradients_kept_as_zeros(),
        library_patches.adam_without_foreach(),
    ):
        yield
