"""The model families that can be built from sizes, and the names of their sizes in transformers."""

from __future__ import annotations

# Key of the model menu -> attribute of the family's configuration in transformers.
NAMES = {
    "bert": {
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "feed_forward": "intermediate_size",
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
    },
    "gpt2": {
        "layers": "n_layer",
        "width": "n_embd",
        "heads": "n_head",
        "feed_forward": "n_inner",
        "vocab": "vocab_size",
        "positions": "n_positions",
        "tied": "tie_word_embeddings",
    },
    "llama": {
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "feed_forward": "intermediate_size",
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
        "tied": "tie_word_embeddings",
    },
}
NAMES["mixtral"] = NAMES["llama"] | {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
DROPOUTS = {
    "bert": ["hidden_dropout_prob", "attention_probs_dropout_prob"],
    "gpt2": ["resid_pdrop", "embd_pdrop", "attn_pdrop"],
    "llama": ["attention_dropout"],
    "mixtral": ["attention_dropout"],
}
# Values that cannot be set by a key: Llama 3's rotary base, and token 0 as the end of a text (the published ids lie
# outside a small vocabulary). Mixtral's auxiliary loss, which balances the experts, stays off as in transformers
# (output_router_logits=False): accumulation and the perplexity need a loss that is the mean over tokens.
FIXED = {
    "bert": {},
    "gpt2": {"bos_token_id": 0, "eos_token_id": 0},
    "llama": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "mixtral": {"bos_token_id": 0, "eos_token_id": 0},
}
ENCODERS = {"bert"}
ROTARY = {"llama", "mixtral"}
LINEAR = {"bert", "llama"}  # families whose matrices are in nn.Linear, not in Conv1D or in one tensor for all experts
LIGER = {"llama", "mixtral"}  # of these families, those that Liger has kernels for
