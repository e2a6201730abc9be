"""model: built from the sizes in its YAML with random weights, or loaded from trained ones."""

from __future__ import annotations

from pathlib import Path

from recipes.errors import Refusal
from recipes.options import model as model_options
from recipes.options import model_families


def configuration(cfg):
    """transformers' configuration of the model: from the sizes in its YAML, or the trained weights' own.

    Raises Refusal where trained weights cannot be had or the sequences are too long for them.
    """
    from transformers import AutoConfig

    model = cfg.model
    if model.pretrained:
        config = _pretrained(AutoConfig.from_pretrained, model.pretrained)
        positions = getattr(config, "max_position_embeddings", None)
        for key, length in model_options.lengths(cfg).items():
            if positions and length > positions:
                raise Refusal(
                    f"{key}={length} is longer than the {positions} positions of {model.pretrained}. "
                    f"Type {key}={positions} or less."
                )
        return config
    values = {theirs: getattr(model, ours) for ours, theirs in model_families.NAMES[model.family].items()}
    values |= dict.fromkeys(model_families.DROPOUTS[model.family], model.dropout) | model_families.FIXED[model.family]
    return AutoConfig.for_model(model.family, **values, num_labels=model.classes)


def build_model(cfg, config, data, weights: bool = True):
    """The model, on the CPU, in the dtype that the precision keeps weights in.

    config: what `configuration` gave; data: what `recipes.data.dataset.build_data` gave. weights: False leaves trained ones unread.
    Raises Refusal when the data does not fit the model, or trained weights cannot be loaded.
    """
    import transformers

    from recipes.models import moe
    from recipes.options import precision

    if (
        cfg.model.pretrained
        and data.task == "language_modelling"
        and config.model_type in (transformers.models.auto.modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    ):
        raise Refusal(
            f"model.pretrained={cfg.model.pretrained} is an encoder ({config.model_type}), which sees the "
            f"tokens that data={cfg.data.name} asks it to predict. Choose the weights of a decoder."
        )
    if data.vocab > config.vocab_size:
        raise Refusal(
            f"the data has token ids up to {data.vocab - 1}, and the model a vocabulary of "
            f"{config.vocab_size}. "
            + (
                f"Type data.tokenizer={cfg.model.pretrained}."
                if cfg.model.pretrained
                else f"Type model.vocab={-(-data.vocab // 8) * 8}."
            )
        )
    if data.task == "classification":
        has_head = any(a.endswith("ForSequenceClassification") for a in config.architectures or [])
        if cfg.model.pretrained and not has_head:  # the head is new
            config.num_labels = max(data.classes, cfg.model.classes)
        elif data.classes > config.num_labels:
            raise Refusal(
                f"the data has {data.classes} labels, and the model {config.num_labels}. "
                + ("Choose other trained weights." if has_head else f"Type model.classes={data.classes}.")
            )
        if data.names and not has_head:  # so that a saved model says what its classes mean
            names = [str(name) for name in data.names] + [f"LABEL_{i}" for i in range(data.classes, config.num_labels)]
            config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
        if config.pad_token_id is None:  # a decoder's head looks for the last token before the padding
            config.pad_token_id = data.pad_token_id
    kind = (
        transformers.AutoModelForSequenceClassification
        if data.task == "classification"
        else transformers.AutoModelForCausalLM
    )
    settings = {
        "attn_implementation": cfg.model.attention,
        "dtype": precision.weights_dtype(cfg),
        "experts_implementation": moe.register(),
    }
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
        raise Refusal(
            f"model.pretrained={name} is no folder here, and the hub did not give it: {first} "
            "Without a network, give the folder of a saved model (config.json and .safetensors)."
        ) from error
