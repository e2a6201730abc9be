"""The model families that can be built from sizes, and the names of their sizes in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Key of the model menu -> attribute of the configuration in transformers, where a family has it by no other name.
SIZES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "feed_forward": "intermediate_size",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
}
OTHER_SIZES = {
    "gpt2": {"layers": "n_layer", "width": "n_embd", "heads": "n_head", "feed_forward": "n_inner"}
    | {"positions": "n_positions"},
    "distilbert": {"layers": "n_layers", "width": "dim", "heads": "n_heads", "feed_forward": "hidden_dim"},
    "qwen3_moe": {"feed_forward": "moe_intermediate_size", "experts": "num_experts"},
    "deepseek_v2": {"feed_forward": "moe_intermediate_size", "experts": "n_routed_experts"},
}
BERTS_DROPOUTS = ["hidden_dropout_prob", "attention_probs_dropout_prob"]
DROPOUTS = {
    "bert": BERTS_DROPOUTS,
    "roberta": BERTS_DROPOUTS,
    "distilbert": ["dropout", "attention_dropout"],
    "modernbert": ["attention_dropout", "embedding_dropout", "mlp_dropout"],
    "gpt2": ["resid_pdrop", "embd_pdrop", "attn_pdrop"],
}
ATTENTIONS_DROPOUT = ["attention_dropout"]  # of all others
# Values that cannot be set by a key: Llama 3's rotary base, and token 0 as the end of a text (the published ids lie
# outside a small vocabulary). Mixtral's auxiliary loss, which balances the experts, stays off as in transformers
# (output_router_logits=False): accumulation and the perplexity need a loss that is the mean over tokens.
FIXED = {
    "bert": {},
    "roberta": {},  # counts positions from its padding token on, which is 1
    "distilbert": {},
    "llama": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
IDS = {"bos_token_id": 0, "eos_token_id": 0}  # of all others
IDS_WITH_PADDING = IDS | {"pad_token_id": 0}  # of those whose own lies outside a small vocabulary
FIXED |= {"gpt2": IDS, "mixtral": IDS, "modernbert": IDS_WITH_PADDING | {"cls_token_id": 0, "sep_token_id": 0}}
ENCODERS = {"bert", "roberta", "distilbert", "modernbert"}
TOKEN_TYPES = {"bert"}  # encoders that are given the types of the tokens
ROTARY = {"llama", "mixtral", "qwen2", "modernbert"}  # with heads of width / heads, and in pairs of numbers
EXPERTS = {"mixtral", "qwen3_moe", "deepseek_v2", "gpt_oss"}
NOT_LINEAR = EXPERTS | {"gpt2"}  # matrices in Conv1D, or in one tensor for all experts
LIGER = {"llama", "mixtral", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3"}  # its kernels
# How many layers repeat, where not all are alike: some see a window of the tokens alone.
PERIODS = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "modernbert": 3}


def values(family: str, sizes: Mapping[str, Any], dropout: float) -> dict[str, Any]:
    """Values of a family's configuration in transformers. sizes: keys of the menu; with None the family's own stay."""
    names = SIZES | OTHER_SIZES.get(family, {})
    found = {theirs: sizes[ours] for ours, theirs in names.items() if sizes[ours] is not None}
    found |= dict.fromkeys(DROPOUTS.get(family, ATTENTIONS_DROPOUT), dropout)
    return found | FIXED.get(family, IDS_WITH_PADDING) | (sizes["config"] or {})
