"""The models of published runs, by the sizes that docs/reference/README.md gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutput

SDPA_4_51 = "sdpa_4_51"  # the attention that published_runs.transformers_4_51 registers


@dataclass(frozen=True)
class Architecture:
    """A model to build. `forward`: the forward pass of the run's version of transformers, where today's differs."""

    auto_class: str  # the class of transformers that adds the head
    model_type: str
    sizes: dict[str, Any]
    attention: str
    forward: Callable[..., CausalLMOutput] | None = None


def causal_forward_4_48(
    network: Any, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor
) -> CausalLMOutput:
    """The forward pass of causal language models in transformers 4.48 and earlier.

    The loss is computed on a contiguous copy of the logits without the last position. Granite (4.45.2) scales its
    logits and converts them to fp32; GPT-BigCode (4.48.1) does neither.

    input_ids, labels, attention_mask: (B, T). Sources: modeling_granite.py and modeling_gpt_bigcode.py.
    """
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
        dict(  # its published configuration: GELU without an approximation, no dropout
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
        SDPA_4_51,
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
        causal_forward_4_48,
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
        causal_forward_4_48,
    ),
}
