"""The configuration of a small model with the parts of a large one: its sizes are lowered by their names (SIZES), and
layers are left out so that one of each kind stays."""

from __future__ import annotations

import re
from typing import Any

VOCAB = 512
FIRST_ORDINARY_ID = 100  # below it: ids of special tokens, which random data does not have
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_blocks", "depth")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
MOST_LAYERS = 8
# (pattern of a whole name, size): the first that matches; a size is lowered to it, and never raised.
SIZES = [
    (re.compile(pattern), size)
    for pattern, size in (
        (r"(max_)?(2d_)?position_embeddings|n_positions|n_ctx|max_(source|target)_positions", 128),
        (r"max_seq_len|seq_length|max_sequence_length|model_max_length|original_max_position_embeddings", 128),
        (r"(entity_|decoder_)?vocab_size(_per_layer_input)?|ngram_vocab_size_base", VOCAB),
        (r".*sliding_window(_size)?|attention_chunk_size|local_attention|window_size|index_topk", 32),
        (r"hidden_size(_global|_per_layer_input)?|d_model|n_embd|dim|emb_dim|embed_dim|embedding_size", 64),
        (r"word_embed_proj_dim|pooler_hidden_size|attention_hidden_size|d_embed|prediction_head_size|d_latents", 64),
        (r"mamba_n_heads|n_mamba_heads", 8),
        (r"(num_|n_)?(encoder_|decoder_|swa_|linear_)?(attention_|attn_)?(heads|head)", 4),
        (r"swa_num_attention_heads|linear_num_(key|value)_heads|index_n_heads", 4),
        (r".*(key_value_heads|kv_heads|kv_n_heads)", 2),
        (r"qk_head_dim", 32),
        (r"(swa_|v_|qk_nope_|qk_rope_|linear_key_|linear_value_|linear_|index_|attention_|global_)?head_dim", 16),
        (r"d_kv|d_head|dim_head|kv_channels|attention_head_dim|mamba_d_head|mamba_headdim", 16),
        (r"rotary_dim", 8),
        (r".*lora_rank|.*lowrank|laurel_rank|d_rel|adapter_rank", 16),
        (r"(moe_|expert_|shared_|shared_expert_|shared_experts_|mamba_)?(intermediate|ffn_hidden)_size(_mlp)?", 128),
        (r"(encoder_|decoder_)?ffn_dim|d_ff|dim_ff|dff|d_inner|n_inner|moe_ffn_hidden_size", 128),
        (r"(moe_)?(num|n)_(routed_|local_)?experts|zero_expert_num", 4),
        (r".*experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts", 2),
        (r"n_group|num_expert_group", 2),
        (r"topk_group", 1),
        (r"state_size|mamba_d_state|ssm_state_size|.*chunk_size", 16),
        (r"time_step_rank|mamba_dt_rank", 8),
        (r"(mamba_)?n_groups|first_k_dense_replace|num_dense_layers|num_latents", 1),
        (r"(?!hybrid_).*layers|n_layer|num_blocks|depth", 2),
    )
]
DEPTH = [(pattern, size) for pattern, size in SIZES if pattern.fullmatch("num_layers") or size == VOCAB]
SPECIAL_IDS = re.compile(r".*(_token_id|_token_index|_id|_index)")


def shrunk(values: dict[str, Any], narrow: bool = True) -> dict[str, Any]:
    """The values of a configuration, and of those inside it, with small sizes. narrow: False keeps the widths, of
    which some architectures need several that fit together."""
    count = next((values[key] for key in LAYER_COUNTS if isinstance(values.get(key), int)), 0)
    lists = {key: value for key, value in values.items() if isinstance(value, list) and len(value) == count > 0}
    by_layer = {int(index): value for index, value in (values.get("per_layer_config") or {}).items()}
    kept = distinct_layers([*lists.values(), [by_layer.get(i) for i in range(count)]], count)
    heads = next((values[key] for key in HEADS if isinstance(values.get(key), int)), None)
    small: dict[str, Any] = {}
    for key, value in values.items():
        if key == "per_layer_config" and by_layer:
            small[key] = {new: shrunk(by_layer[old], narrow) for new, old in enumerate(kept) if old in by_layer}
        elif key in lists:
            small[key] = [value[i] for i in kept]
        elif key in LAYER_COUNTS and isinstance(value, int):
            small[key] = len(kept)
        elif narrow and key == "head_dim" and value is None:
            small[key] = 16  # some classes have no default
        elif narrow and "key_value_heads" in key and (value is None or value == heads):
            small[key] = None if heads is None else min(4, heads)
        elif isinstance(value, dict) and key not in ("id2label", "label2id"):
            small[key] = shrunk(value, narrow)
        else:
            small[key] = lowered(key, value, SIZES if narrow else DEPTH) if type(value) is int else value
    return small


def distinct_layers(lists: list[list], count: int) -> list[int]:
    """The first layer of each kind, two layers at least. lists: a value for each layer."""
    kinds: dict[str, int] = {}
    for i in range(count):
        kinds.setdefault(str([each[i] for each in lists]), i)
    kept = sorted(kinds.values())[:MOST_LAYERS]
    return kept if len(kept) > 1 or count < 2 else [0, 1]


def lowered(key: str, value: int, sizes: list[tuple[re.Pattern, int]]) -> int:
    """A size of a small model, or the id of a special token. sizes: as SIZES."""
    for pattern, size in sizes:
        if pattern.fullmatch(key):
            return min(value, size)
    if SPECIAL_IDS.fullmatch(key) and value >= FIRST_ORDINARY_ID:
        return 3 + sum(map(ord, key)) % (FIRST_ORDINARY_ID - 3)
    return value
