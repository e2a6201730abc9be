"""Steps of published runs, as their own loops and libraries did them, on the fake device.

What differs from a step of this repository's is written down here, with the source that says so; nothing is
fitted to what was measured. xMem's runs: transformers 4.51.3. fms-acceleration's: 4.48.1 and 4.45.2. The guide's
table: January 2022, so torch 1.10 and transformers 4.15.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from recipes.foresight.fake_gpu.device import FakeDevice
from recipes.foresight.fake_gpu.op_trace import OpTrace
from recipes.foresight.memory import allocator
from recipes.foresight.speed import roofline

ITERATIONS = 4  # as xMem ran; the others' steady state comes earlier
SDPA_THEN = "sdpa_4_51"


@dataclass(frozen=True)
class Architecture:
    """A model by the sizes that docs/reference/README.md gives. forward: of then, where today's is another."""

    kind: str  # the class of transformers that gives it a head
    model_type: str
    sizes: dict
    attention: str
    forward: Callable | None = None


def _forward_then(network, input_ids, labels, attention_mask):
    """The forward pass of causal models in 4.48 and before: a copy of the logits without the last goes into the loss.

    Granite (4.45.2) scales its logits and turns them to fp32; GPT-BigCode (4.48.1) does neither.
    """
    from transformers.modeling_outputs import CausalLMOutput

    logits = network.lm_head(network.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)[0])
    if network.config.model_type == "granite":
        logits = logits / network.config.logits_scaling
        logits = logits.float()
    shifted = logits[..., :-1, :].contiguous()
    loss = torch.nn.functional.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels[..., 1:].contiguous().view(-1))
    return CausalLMOutput(loss, logits)


CAUSAL, SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
ARCHITECTURES = {
    "EleutherAI/gpt-neo-125M": Architecture(
        CAUSAL,
        "gpt_neo",
        dict(
            num_layers=12,
            hidden_size=768,
            num_heads=12,
            intermediate_size=3072,
            vocab_size=50257,
            window_size=256,
            max_position_embeddings=2048,
            attention_types=[[["global", "local"], 6]],
        ),
        "eager",
    ),
    "cerebras/Cerebras-GPT-111M": Architecture(
        CAUSAL,
        "gpt2",
        dict(  # its published config: plain GELU, no dropout
            n_layer=10,
            n_embd=768,
            n_head=12,
            n_inner=3072,
            n_positions=2048,
            vocab_size=50257,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        SDPA_THEN,
    ),
    "T5-small": Architecture(
        SEQ2SEQ,
        "t5",
        dict(d_model=512, d_ff=2048, num_layers=6, num_heads=8, vocab_size=32128, decoder_start_token_id=0),
        "eager",
    ),
    "bigcode/gpt_bigcode-santacoder": Architecture(
        CAUSAL,
        "gpt_bigcode",
        dict(n_layer=24, n_embd=2048, n_head=16, n_inner=8192, n_positions=2048, vocab_size=49280, multi_query=True),
        "sdpa",
        _forward_then,
    ),
    "ibm/PowerLM-3b": Architecture(
        CAUSAL,
        "granite",
        dict(
            num_hidden_layers=40,
            hidden_size=2304,
            num_attention_heads=36,
            num_key_value_heads=36,
            intermediate_size=9216,
            vocab_size=49152,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        ),
        "sdpa",
        _forward_then,
    ),
}


@dataclass(frozen=True)
class Taken:
    """What a step takes: the allocator's bytes, and the operations for its time."""

    demand: allocator.Demand
    tally: roofline.Tally


def xmem(
    model: str,
    batch: int,
    length: int,
    optimizer: str,
    zero_grad_mode: int,
    capability: tuple[int, int],
    capacity_bytes: int,
) -> Taken:
    """An iteration of xMem's loop. zero_grad_mode: 0 before the forward pass, 1 before the backward pass, 2 last."""

    def iteration(network, optim, inputs, held):
        if zero_grad_mode == 0:
            optim.zero_grad()
        held["outputs"] = network(**inputs)  # those before live until this returns: the logits, and the cache
        if zero_grad_mode == 1:
            optim.zero_grad()
        held["outputs"].loss.backward()
        optim.step()
        if zero_grad_mode == 2:
            optim.zero_grad()

    return _take(model, batch, length, optimizer, torch.float32, iteration, capability, capacity_bytes)


def fine_tuning(model: str, batch: int, length: int, capability: tuple[int, int], capacity_bytes: int) -> Taken:
    """A step of the Trainer as fms-acceleration ran it: bf16 throughout, checkpointing, clipping, foreach AdamW."""

    def iteration(network, optim, inputs, held):
        network.config.use_cache = False
        if not network.is_gradient_checkpointing:
            network.gradient_checkpointing_enable({"use_reentrant": False})
        network(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optim.step()
        optim.zero_grad()

    return _take(model, batch, length, "AdamW", torch.bfloat16, iteration, capability, capacity_bytes)


def _take(model, batch, length, optimizer, dtype, iteration, capability, capacity_bytes) -> Taken:
    import transformers

    told = ARCHITECTURES[model]
    config = transformers.AutoConfig.for_model(told.model_type, **told.sizes)
    kind = getattr(transformers, told.kind)
    with FakeDevice(capability) as fake, _as_then():
        with fake.building():
            network = kind.from_config(config, attn_implementation=told.attention, dtype=dtype)
            network.tie_weights()
            tokens = torch.zeros(batch, length, dtype=torch.long)
            inputs = {
                "input_ids": tokens,
                "labels": torch.zeros_like(tokens),
                "attention_mask": torch.ones_like(tokens),
            }
        if told.forward is not None:
            network.forward = functools.partial(told.forward, network)
        network.train()
        optim = getattr(torch.optim, optimizer)(network.parameters(), lr=1e-3)
        tape, held = OpTrace(network, optim, fake.device, capability), {}
        for _ in range(ITERATIONS):
            with tape:
                iteration(network, optim, inputs, held)
        return Taken(allocator.replay(tape.events(), capacity_bytes), tape.step_tally(1))


# --- the libraries of then --------------------------------------------------------------------------


class _Constants(TorchFunctionMode):
    """`torch.tensor(value, device=...)`: made on the host and copied, as torch does it below this device's reach."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None:
            return func(*args, **{key: value for key, value in kwargs.items() if key != "device"}).to(kwargs["device"])
        return func(*args, **kwargs)


@contextlib.contextmanager
def _as_then():
    """transformers 4.51.3 where it differs: cache_utils.py keeps keys and values as they come (today it copies
    them), and integrations/sdpa_attention.py makes queries, keys and values contiguous first."""
    from transformers import AttentionInterface
    from transformers.cache_utils import DynamicLayer
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def keep(layer, keys, values, *_, **__):
        layer.keys, layer.values, layer.is_initialized = keys, values, True
        layer.dtype, layer.device = keys.dtype, keys.device
        return keys, values

    def contiguous(module, query, key, value, mask, **settings):
        return sdpa_attention_forward(
            module, query.contiguous(), key.contiguous(), value.contiguous(), mask, **settings
        )

    AttentionInterface.register(SDPA_THEN, contiguous)
    AttentionMaskInterface.register(SDPA_THEN, sdpa_mask)
    with mock.patch.object(DynamicLayer, "update", keep), _Constants():
        yield


class _Kept(torch.autograd.Function):
    """Its input, kept until the backward pass has gone through it."""

    @staticmethod
    def forward(ctx, tensor):
        ctx.save_for_backward(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@contextlib.contextmanager
def january_2022():
    """The guide's libraries where they take other memory than today's, for a step of our own loop.

    torch 1.10: softmax saves its input beside its result (pytorch issue 64000, mended in 1.11 by pull request 65242),
    and gradients are kept as zeros between steps (`zero_grad(set_to_none=False)` until 2.0). transformers 4.15: AdamW
    goes weight by weight (optimization.py), without foreach's temporaries; and BERT always adds its mask, which is in
    fp32, to the scores (modeling_bert.py), so that softmax's input is in fp32 under autocast, too.
    """
    from torch.optim import Optimizer, adam

    softmax, zero_grad = torch.nn.functional.softmax, Optimizer.zero_grad

    def saving(scores, *args, **settings):
        return softmax(_Kept.apply(scores.float()), *args, **settings)

    with (
        mock.patch.object(torch.nn.functional, "softmax", saving),
        mock.patch.object(Optimizer, "zero_grad", lambda self, set_to_none=False: zero_grad(self, False)),
        mock.patch.object(adam, "_default_to_fused_or_foreach", lambda *_, **__: (False, False)),
    ):
        yield
