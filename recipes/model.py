"""model: built from the sizes in its YAML with random weights, or loaded from trained ones."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.machine import host
from recipes.errors import Refusal

# Our key -> the name in transformers' configuration of that family.
NAMES = {
    "bert": {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads",
             "feed_forward": "intermediate_size", "vocab": "vocab_size", "positions": "max_position_embeddings"},
    "gpt2": {"layers": "n_layer", "width": "n_embd", "heads": "n_head", "feed_forward": "n_inner",
             "vocab": "vocab_size", "positions": "n_positions", "tied": "tie_word_embeddings"},
    "llama": {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads",
              "kv_heads": "num_key_value_heads", "feed_forward": "intermediate_size", "vocab": "vocab_size",
              "positions": "max_position_embeddings", "tied": "tie_word_embeddings"},
}
NAMES["mixtral"] = NAMES["llama"] | {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
DROPOUTS = {
    "bert": ["hidden_dropout_prob", "attention_probs_dropout_prob"],
    "gpt2": ["resid_pdrop", "embd_pdrop", "attn_pdrop"],
    "llama": ["attention_dropout"],
    "mixtral": ["attention_dropout"],
}
# Values of a family that are no lever: Llama 3's rotary base, and token 0 as the end of a text
# (the published ids lie outside a small vocabulary). Mixtral's router has a loss that balances its
# experts; transformers leaves it out unless asked (output_router_logits), and so do we: the loss stays
# the mean over tokens, which the shares of accumulation and the perplexity rely on.
FIXED = {
    "bert": {},
    "gpt2": {"bos_token_id": 0, "eos_token_id": 0},
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
              "bos_token_id": 0, "eos_token_id": 0},
    "mixtral": {"bos_token_id": 0, "eos_token_id": 0},
}
ENCODERS = {"bert"}
ROTARY = {"llama", "mixtral"}
LOADS_ITSELF = {"layers", "width", "heads", "kv_heads", "feed_forward", "vocab", "positions", "tied", "dropout",
                "experts", "experts_per_token"}


def task(cfg) -> str | None:
    """'classification' or 'language_modelling': what the data asks for, else what the family is made for.

    None for trained weights whose family only their own configuration tells.
    """
    from recipes.data import TASKS

    if cfg.data.name in TASKS:
        return TASKS[cfg.data.name]
    if cfg.data.task is not None:
        return cfg.data.task
    if cfg.model.pretrained:
        return None
    return "classification" if cfg.model.family in ENCODERS else "language_modelling"


def problems(cfg) -> list[str]:
    """Sizes that make no model, and data that does not suit it."""
    model, found = cfg.model, []
    if model.attention == "flash_attention_2":
        if host.device(cfg) == "cpu":
            found.append("model.attention=flash_attention_2 needs a GPU. Choose model.attention=sdpa.")
        elif host.gpu(cfg) and host.gpu(cfg).capability < (8, 0):
            found.append(f"model.attention=flash_attention_2 needs compute capability 8.0 (Ampere) or newer, which "
                         f"{host.gpu(cfg).name} has not. Choose model.attention=sdpa.")
        elif not host.has("flash_attn") and cfg.recipe.name != "estimate":
            found.append("model.attention=flash_attention_2 needs the package flash-attn: "
                         "pip install flash-attn --no-build-isolation, or choose model.attention=sdpa.")
        elif cfg.precision.name not in ("fp16", "bf16", "bf16_pure"):
            found.append("model.attention=flash_attention_2 works in 16 bits only. "
                         "Choose precision=bf16, or model.attention=sdpa.")
    if model.pretrained:
        return found + _folder_problems(model.pretrained)
    if model.width % model.heads:
        found.append(f"model.width={model.width} is not a multiple of model.heads={model.heads}.")
    elif model.family in ROTARY and model.width // model.heads % 2:
        found.append(f"model.width={model.width} over model.heads={model.heads} gives heads of odd size, "
                     "which rotary embeddings cannot turn. Change one of them.")
    if model.kv_heads and model.heads % model.kv_heads:
        found.append(f"model.heads={model.heads} is not a multiple of model.kv_heads={model.kv_heads}.")
    if model.experts and model.experts_per_token:
        if model.experts_per_token > model.experts:
            found.append(f"model.experts_per_token={model.experts_per_token} is more than "
                         f"model.experts={model.experts}.")
        uneven = [f"model.{key}={getattr(model, key)}" for key in ("width", "feed_forward") if getattr(model, key) % 8]
        if uneven:
            found.append(f"{' and '.join(uneven)}: the grouped product of the experts needs multiples of 8.")
    for key, length in _lengths(cfg).items():
        if length > model.positions:
            found.append(f"{key}={length} is longer than model.positions={model.positions}. "
                         f"Type {key}={model.positions}, or raise model.positions.")
    if model.family in ENCODERS and task(cfg) == "language_modelling":
        found.append(f"data={cfg.data.name} is causal language modelling here, and model={model.name} is an encoder, "
                     "which sees the tokens it should predict. Choose model=gpt2_tiny or another decoder.")
    if task(cfg) == "classification" and model.classes < 2:
        found.append(f"model.classes={model.classes}: a classification needs 2 or more.")
    return found


def given_problems(cfg, given: set[str]) -> list[str]:
    """Keys that a person typed and that trained weights bring themselves."""
    if not cfg.model.pretrained:
        return []
    typed = sorted(f"model.{key}" for key in LOADS_ITSELF if f"model.{key}" in given)
    return [f"{key} has no meaning with model.pretrained: the trained weights have their own. Leave it out."
            for key in typed]


def warnings(cfg) -> list[str]:
    """Sizes that matrix units do not like; the published vocabularies of BERT and GPT-2 are nobody's slip."""
    if cfg.model.pretrained:
        return []
    sizes = {key: getattr(cfg.model, key) for key in ("width", "feed_forward", "vocab")}
    odd = [f"model.{key}={size}" for key, size in sizes.items() if size % 8 and size not in (30522, 50257)]
    return [f"{', '.join(odd)}: not a multiple of 8, which leaves part of a GPU's matrix units idle."] if odd else []


def _folder_problems(pretrained: str) -> list[str]:
    """What is wrong with `model.pretrained` where it is a folder; a hub id is checked when it is loaded."""
    folder = Path(pretrained).expanduser()
    if not folder.exists():
        if pretrained.count("/") > 1 or pretrained.startswith((".", "/", "~")):
            return [f"model.pretrained={pretrained}: there is no such folder."]
        return []
    if not (folder / "config.json").is_file():
        return [f"model.pretrained={pretrained}: the folder has no config.json, so it is no saved model."]
    if not list(folder.glob("*.safetensors")):
        return [f"model.pretrained={pretrained}: the folder has no .safetensors file. Pickled weights can run code "
                "and are not loaded; save the model again with save_pretrained."]
    try:
        json.loads((folder / "config.json").read_text())
    except (ValueError, OSError) as error:
        return [f"model.pretrained={pretrained}: config.json cannot be read ({error})."]
    return []


def _lengths(cfg) -> dict[str, int]:
    """The keys that say how long a sequence the model is given."""
    return {"data.seq_len": cfg.data.seq_len} | ({"eval.window": cfg.eval.window} if cfg.eval.window else {})


def configuration(cfg):
    """transformers' configuration of the model: from the sizes in its YAML, or the trained weights' own.

    Raises Refusal where trained weights cannot be had or the sequences are too long for them.
    """
    from transformers import AutoConfig

    model = cfg.model
    if model.pretrained:
        config = _pretrained(AutoConfig.from_pretrained, model.pretrained)
        positions = getattr(config, "max_position_embeddings", None)
        for key, length in _lengths(cfg).items():
            if positions and length > positions:
                raise Refusal(f"{key}={length} is longer than the {positions} positions of {model.pretrained}. "
                              f"Type {key}={positions} or less.")
        return config
    values = {theirs: getattr(model, ours) for ours, theirs in NAMES[model.family].items()}
    values |= {name: model.dropout for name in DROPOUTS[model.family]} | FIXED[model.family]
    return AutoConfig.for_model(model.family, **values, num_labels=model.classes)


def task_of(cfg, config) -> str:
    """`task(cfg)`, asking the loaded configuration where the menus do not know."""
    known = task(cfg)
    if known is not None:
        return known
    causal = any(a.endswith(("ForCausalLM", "LMHeadModel")) for a in config.architectures or [])
    return "language_modelling" if causal else "classification"


def build(cfg, config, data, weights: bool = True):
    """The model, on the CPU, in the dtype that the precision keeps weights in.

    config: what `configuration` gave; data: what `recipes.data.build` gave. weights: False leaves trained ones unread.
    Raises Refusal when the data does not fit the model, or trained weights cannot be loaded.
    """
    import transformers

    from recipes import experts, precision

    if cfg.model.pretrained and data.task == "language_modelling" and config.model_type in (
            transformers.models.auto.modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES):
        raise Refusal(f"model.pretrained={cfg.model.pretrained} is an encoder ({config.model_type}), which sees the "
                      f"tokens that data={cfg.data.name} asks it to predict. Choose the weights of a decoder.")
    if data.vocab > config.vocab_size:
        raise Refusal(f"the data has token ids up to {data.vocab - 1}, and the model a vocabulary of "
                      f"{config.vocab_size}. "
                      + (f"Type data.tokenizer={cfg.model.pretrained}." if cfg.model.pretrained
                         else f"Type model.vocab={-(-data.vocab // 8) * 8}."))
    if data.task == "classification":
        has_head = any(a.endswith("ForSequenceClassification") for a in config.architectures or [])
        if cfg.model.pretrained and not has_head:  # the head is new
            config.num_labels = max(data.classes, cfg.model.classes)
        elif data.classes > config.num_labels:
            raise Refusal(f"the data has {data.classes} labels, and the model {config.num_labels}. "
                          + ("Choose other trained weights." if has_head else f"Type model.classes={data.classes}."))
        if data.names and not has_head:  # so that a saved model says what its classes mean
            names = [str(name) for name in data.names] + [f"LABEL_{i}" for i in range(data.classes, config.num_labels)]
            config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
        if config.pad_token_id is None:  # a decoder's head looks for the last token before the padding
            config.pad_token_id = data.pad_token_id
    kind = (transformers.AutoModelForSequenceClassification if data.task == "classification"
            else transformers.AutoModelForCausalLM)
    settings = {"attn_implementation": cfg.model.attention, "dtype": precision.weights_dtype(cfg),
                "experts_implementation": experts.register()}
    if cfg.model.pretrained and weights:
        model = _pretrained(kind.from_pretrained, cfg.model.pretrained, config=config, use_safetensors=True, **settings)
    else:
        model = kind.from_config(config, **settings)
    model.config.use_cache = False  # the keys and values of every layer, kept for a generation that never comes
    return model


def _pretrained(load, name: str, **settings):
    """Call a from_pretrained, and put its ways to fail into one sentence."""
    from safetensors import SafetensorError

    from recipes.errors import is_out_of_memory

    folder = Path(name).expanduser()
    try:
        return load(str(folder) if folder.exists() else name, trust_remote_code=False, **settings)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        first = str(error).strip().splitlines()[0]
        if folder.exists():
            raise Refusal(f"model.pretrained={name} cannot be loaded: {first}") from error
        raise Refusal(f"model.pretrained={name} is no folder here, and the hub did not give it: {first} "
                      "Without a network, give the folder of a saved model (config.json and .safetensors)."
                      ) from error
