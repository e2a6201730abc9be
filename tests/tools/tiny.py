"""Tiny models of any architecture of transformers: its own configuration class, with small sizes and random weights.

The configuration is one of `shrunk`; what an architecture needs beyond that stands in OVERRIDES.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from legroom.data import collate
from legroom.models import architectures, behaviour, shifted_loss
from legroom.models.shrunk import FIRST_ORDINARY_ID, VOCAB, shrunk

NAMES = {
    "language_modelling": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
REPORT = "tiny.json"
MOST_PARAMETERS = 40_000_000
# What cannot be seen in the names: sizes that depend on others, and values that the class leaves open.
OVERRIDES: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": VOCAB},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2},
    "esm": {"vocab_size": VOCAB, "pad_token_id": 1, "mask_token_id": 4},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4_unified_assistant": {"text_config": {"num_kv_shared_layers": 0}},
    "jamba": {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "layoutlmv3": {"coordinate_size": 12, "shape_size": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lilt": {"hidden_size": 96, "num_attention_heads": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "marian": {"decoder_vocab_size": VOCAB},
    "mistral4": {"head_dim": 32},
    "qwen4_exp_text": {
        "indexer_compress_ratio": 4,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 2,
        "indexer_head_dim": 16,
        "indexer_budget": 32,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},  # two recurrent layers, and the first with attention
    "reformer": {
        "axial_pos_embds_dim": [16, 48],
        "axial_pos_shape": [4, 8],
        "max_position_embeddings": 32,
        "num_buckets": 2,
    },
    "xmod": {"default_language": "en_XX"},
    "xlstm": {"embedding_dim": 64},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
    "zamba2": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "hybrid_layer_ids": [1],
        "num_query_groups": 4,
        "num_key_value_heads": 4,
    },
}
OVERRIDES["qwen4_exp"] = {"text_config": OVERRIDES["qwen4_exp_text"]}


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The values with changes, inside nested dictionaries too."""
    nested = {key: merged(values.get(key) or {}, new) for key, new in changes.items() if isinstance(new, dict)}
    return values | changes | nested


def tiny_configuration(kind: str, task: str) -> PretrainedConfig:
    """The configuration of a tiny model. kind: its `model_type`."""
    config_class = CONFIG_MAPPING[kind]
    values = merged(shrunk(config_class().to_dict()), OVERRIDES.get(kind, {}))
    if values.get("is_encoder_decoder") and values.get("decoder_start_token_id") is None:
        values["decoder_start_token_id"] = 0
    if "is_decoder" in values or kind == "reformer":  # an encoder that is built as a decoder sees no later token
        values["is_decoder"] = task == "language_modelling"
    return config_class.from_dict(values)


def tiny_model(kind: str, task: str) -> PreTrainedModel:
    """A tiny model with random weights. Raises what transformers raises, and ValueError if it is not tiny."""
    with torch.device("meta"):
        count = sum(
            weight.numel()
            for weight in architectures.AUTO_CLASSES[task].from_config(tiny_configuration(kind, task)).parameters()
        )
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} M parameters, whose sizes have other names than those of SIZES")
    torch.manual_seed(0)
    return architectures.AUTO_CLASSES[task].from_config(tiny_configuration(kind, task))


def save(kind: str, task: str, folder: Path, with_step: bool = False) -> None:
    """Save a tiny model in a folder, with a report: why there is none, what is done for it and what remains wrong, and
    with_step why transformers' own step fails.

    The report (REPORT) is JSON: {"architecture", "parameters", "not_made", "not_trained", "said", "wrong"}.
    """
    torch.set_num_threads(1)
    report: dict[str, Any] = {"not_made": None, "not_trained": None, "said": "", "wrong": ""}
    try:
        model = tiny_model(kind, task)
        report |= {"architecture": type(model).__name__, "parameters": sum(w.numel() for w in model.parameters())}
        model.save_pretrained(folder)
    except Exception as error:
        report["not_made"] = one_line(error)
    else:
        report["not_trained"] = failure_of_step(model, task) if with_step else None
        try:
            report["said"], report["wrong"] = checked(model, tiny_configuration(kind, task), task)
        except Exception as error:  # of a model that cannot be trained either: else it counts
            report["wrong"] = f"not checked: {one_line(error)}"
    (folder / REPORT).write_text(json.dumps(report))


@torch.no_grad()
def checked(model: PreTrainedModel, config: PretrainedConfig, task: str) -> tuple[str, str]:
    """(what Legroom does for this class, what would be trained wrong nevertheless; "": nothing).

    config: that the model was made from. The checks are not those of `behaviour`: a label is seen in the change of the
    loss, which auxiliary losses do not enter.
    """
    found, said, wrong = behaviour.of(config, task), [], []
    if found.unknown:
        said.append(f"behaviour assumed ({found.unknown})")
    if not found.shifts_labels:
        shifted_loss.use_shifted_loss(model)
        said.append("labels are shifted here")
    if found.padding != "right":
        said.append("padded on the left" if found.padding else "no rows of different lengths")
    architectures.set_special_ids(model.config, 0, task)
    model.eval().config.use_cache = False
    vocab, last = architectures.vocabulary(model.config) or VOCAB, architectures.last_id(model.config, task)
    ids = torch.randint(
        min(FIRST_ORDINARY_ID, vocab // 2), vocab - 1, (30,), generator=torch.Generator().manual_seed(7)
    )
    rows = [ids[:11].clone(), ids.clone()]
    for row in rows:
        row[-1] = row[-1] if last is None else last

    def run(**inputs: torch.Tensor) -> Any:
        torch.manual_seed(0)  # for those that draw numbers in evaluation mode, too
        return model(**inputs)

    if task == "language_modelling":
        output = run(input_ids=ids[None], labels=ids[None])
        for position in (0, 1, 17, 29):  # the mean over 29 labels of the loss of the next token, and of no other
            labels = ids.clone()
            labels[position] += 1
            before = output.logits[0, position - 1, ids[position : position + 1] + torch.arange(2)]
            expected = (before[0] - before[1]).item() / 29 if position else 0.0
            change = (run(input_ids=ids[None], labels=labels[None]).loss - output.loss).item()
            if abs(change - expected) > 1e-5:
                wrong.append(f"label {position} changes the loss by {change:.1e}, not {expected:.1e}")
        later = ids.clone()
        later[15:] += 1
        moved = (run(input_ids=later[None]).logits - output.logits)[:, :15].abs().max().item()
        if moved > 1e-5 and found.is_causal:
            wrong.append(f"later tokens move earlier logits by {moved:.1e}")
    if found.padding:
        pad, with_mask = model.config.get_text_config().pad_token_id, task == "classification"
        batch = collate.Padding(1, 64, pad, with_mask, found.padding)
        one, other = (run(**batch([{"input_ids": row} for row in part])).logits[0] for part in (rows[:1], rows))
        moved = (one - other[: len(one)]).abs().max().item()
        if moved > 1e-5:
            wrong.append(f"a longer row moves the logits by {moved:.1e}")
    return ", ".join(said), "; ".join(wrong) if found.is_causal else ""


def failure_of_step(model: PreTrainedModel, task: str) -> str | None:
    """Why `plain_step` fails; None where it does not."""
    try:
        plain_step(model, task)
    except Exception as error:
        return one_line(error)
    return None


def plain_step(model: PreTrainedModel, task: str) -> None:
    """A forward and a backward pass as transformers' documentation has them. Raises what they raise."""
    text = model.config.get_text_config()
    vocab = getattr(text, "vocab_size", VOCAB)
    ids = torch.randint(min(FIRST_ORDINARY_ID, vocab // 2), vocab, (2, 32))
    if getattr(text, "eos_token_id", None) is not None:
        ids[:, -1] = text.eos_token_id
    for config in (model.config, text):
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0
    labels = ids if task == "language_modelling" else torch.tensor([0, 1])
    model.config.use_cache = False
    model.train()
    model(input_ids=ids, labels=labels).loss.backward()


def one_line(error: BaseException) -> str:
    """An exception with the place in transformers or torch that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text} ({frame.filename.rpartition('site-packages/')[2]}:{frame.lineno})"
