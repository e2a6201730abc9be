"""model: sizes, pretrained weights, and when they are refused."""

import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from legroom import invocation, paths
from legroom.config import Config
from legroom.config.menus import MOST_LAYERS, MOST_PARTS
from legroom.options import hooks, model_families, task
from legroom.records import saved_model
from legroom.records.printable import printable

SET_BY_WEIGHTS = {*model_families.SIZES, "dropout"}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
COUNTS = re.compile(r"(?:^|_)(?:layers?|experts|labels)$")  # keys of config.json that say how many are built
AUTO = "auto"  # model.attention: the best that the model has, found where it is built
PUBLISHED_VOCABULARIES = (30522, 50257)  # BERT's and GPT-2's


def resolve(cfg: Config) -> list[str]:
    """With pretrained weights the name is theirs, and the sizes of the menu's option, which are not used, go."""
    if cfg.model.pretrained:
        for key, value in of_pretrained(cfg.model.pretrained).items():
            setattr(cfg.model, key, value)
        cfg.model.config = None
    return []


def of_pretrained(pretrained: str) -> dict[str, Any]:
    """The keys of the menu's option that pretrained weights replace, with their values."""
    return {"name": pretrained, **dict.fromkeys((*SET_BY_WEIGHTS, "family", "learning_rate"))}


def recorded(model: Mapping[str, Any]) -> dict[str, Any]:
    """`config["model"]` of a record as it is written now: older ones had the menu's sizes with pretrained weights."""
    return {**model, **of_pretrained(model["pretrained"])} if model.get("pretrained") else dict(model)


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """Sizes that make no model, attention that the GPU lacks, and data that does not suit the model."""
    kind = task.task(cfg)
    if "model.classes" in given and kind not in (None, "classification", "multi_label"):
        return [f"model.classes={cfg.model.classes} would be ignored: {kind} has no classes. Leave it out."]
    if not cfg.model.pretrained:
        sizes = _size_problems(cfg) + _layer_problems(cfg) + _expert_problems(cfg)
        return sizes + _data_problems(cfg) + _without_folder(cfg)
    lines = _folder_problems(cfg.model.pretrained, needs_weights=not cfg.predicts and not cfg.model.at_random)
    if cfg.model.at_random and cfg.adapter.is_used and not cfg.predicts:
        lines.append(
            f"adapter={cfg.adapter.name} is trained beside weights that stay as they are, and model.weights=random has "
            "none worth keeping. Leave one of them out."
        )
    set_by_weights = sorted(f"model.{key}" for key in SET_BY_WEIGHTS)
    typed = [key for key in set_by_weights if key in given]
    typed += sorted(key for key in given if key.startswith("model.config"))
    for key in typed:
        lines.append(f"{key} is set by the weights of model.pretrained. Leave it out.")
    return lines


def _without_folder(cfg: Config) -> list[str]:
    if cfg.model.weights is None:
        return []
    return ["model.weights=random: without model.pretrained the weights are random in any case. Leave it out."]


def _size_problems(cfg: Config) -> list[str]:
    """Sizes of heads that do not go together."""
    model = cfg.model
    lines = []
    sets_width_of_head = any("head_dim" in key for key in model.config or ())
    if not sets_width_of_head:
        if model.width % model.heads != 0:
            lines.append(f"model.width={model.width} is not a multiple of model.heads={model.heads}.")
        elif model.family in model_families.ROTARY and model.width // model.heads % 2 != 0:
            lines.append(
                f"model.width={model.width} over model.heads={model.heads} gives heads of odd size, "
                "which rotary embeddings cannot turn. Change one of them."
            )
    if model.kv_heads and model.heads % model.kv_heads != 0:
        lines.append(f"model.heads={model.heads} is not a multiple of model.kv_heads={model.kv_heads}.")
    return lines


def _layer_problems(cfg: Config) -> list[str]:
    """Values of config that are given layer by layer, and not for as many layers as there are."""
    lines = []
    for key, values in (cfg.model.config or {}).items():
        if key == "layer_types" and len(values) != cfg.model.layers:
            lines.append(
                f"model.layers={cfg.model.layers}: model.config.{key} of model={cfg.model.name} has one value for each "
                f"of {len(values)} layers. Type model.config.{key}=[...] for {cfg.model.layers} layers too."
            )
    return lines


def _expert_problems(cfg: Config) -> list[str]:
    """Numbers and sizes of experts that cannot be computed."""
    model = cfg.model
    if not model.experts or not model.experts_per_token:
        return []
    lines = []
    if model.experts_per_token > model.experts:
        lines.append(f"model.experts_per_token={model.experts_per_token} is more than model.experts={model.experts}.")
    sizes = {"model.width": model.width, "model.feed_forward": model.feed_forward}
    uneven = [f"{key}={size}" for key, size in sizes.items() if size % 8 != 0]
    if uneven:
        lines.append(f"{' and '.join(uneven)}: the grouped product of the experts needs multiples of 8.")
    return lines


def _data_problems(cfg: Config) -> list[str]:
    """Rows that are longer than the model's positions, and a task that the model is not made for."""
    model = cfg.model
    lines = []
    for key, length in lengths(cfg).items():
        if length > model.positions:
            lines.append(
                f"{key}={length} is longer than model.positions={model.positions}. "
                f"Type {key}={model.positions}, or raise model.positions."
            )
    if model.family in model_families.ENCODERS and task.task(cfg) == "language_modelling":
        lines.append(
            f"data={cfg.data.name} is causal language modelling, and model={model.name} is an encoder, "
            "which sees the tokens that it should predict. Choose model=gpt2_tiny or another decoder, or type "
            "data.task=masked_lm."
        )
    if task.task(cfg) == "classification" and model.classes < 2:
        lines.append(f"model.classes={model.classes}: a classification needs at least 2.")
    return lines


def warnings(cfg: Config) -> list[str]:
    """Sizes that leave part of a matrix unit idle, but for BERT's and GPT-2's vocabularies."""
    if cfg.model.pretrained:
        return []
    sizes = {key: getattr(cfg.model, key) for key in ("width", "feed_forward", "vocab")}
    uneven = []
    for key, size in sizes.items():
        if size % 8 != 0 and size not in PUBLISHED_VOCABULARIES:
            uneven.append(f"model.{key}={size}")
    if not uneven:
        return []
    return [f"{', '.join(uneven)}: not a multiple of 8, which leaves part of a GPU's matrix units idle."]


def _folder_problems(pretrained: str, needs_weights: bool) -> list[str]:
    """Problems of `model.pretrained` where it is a folder; a hub id is checked when it is loaded.

    An estimate reads no weights: config.json is enough for it.
    """
    folder = paths.expanded(pretrained)
    if not folder.exists():
        if pretrained.count("/") > 1 or pretrained.startswith((".", "/", "~")):
            return [f"model.pretrained={pretrained}: there is no such folder."]
        return []
    if folder.is_file():
        return [
            f"model.pretrained={pretrained} is a file. Name the folder of the model, in which its configuration is "
            f"called config.json: model.pretrained={Path(pretrained).parent}."
        ]
    if (folder / saved_model.ADAPTER_FILE).is_file() and not any(folder.glob("model*.safetensors")):
        return [_adapter_alone(pretrained, folder / saved_model.ADAPTER_FILE)]
    if not (folder / "config.json").is_file():
        return [f"model.pretrained={pretrained}: the folder has no config.json, so it is no saved model."]
    if needs_weights and not list(folder.glob("*.safetensors")):
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
            why = "Pickled weights can run code and are not loaded; save the model again with save_pretrained."
        else:
            why = (
                "Its config.json alone is enough for recipe=estimate and the command fit; to train from scratch, type "
                f"model.config={pretrained}."
            )
        return [f"model.pretrained={pretrained}: the folder has no .safetensors file. {why}"]
    try:
        problems = counts_problems(json.loads((folder / "config.json").read_text()))
    except (ValueError, OSError, RecursionError) as error:
        return [f"model.pretrained={pretrained}: config.json cannot be read ({error})."]
    return [f"model.pretrained={pretrained}: {problem}" for problem in problems]


def counts_problems(values: Any) -> list[str]:
    """Numbers of layers, experts and labels in a config.json of which no model can be built, or none in any memory.

    values: the file's. transformers builds as many as it says, and takes -1 layers for none.
    """
    if not isinstance(values, dict):
        return []
    lines = []
    for key, value in values.items():
        if isinstance(value, dict):  # of a part of the model, as text_config
            lines += counts_problems(value)
            continue
        counted = COUNTS.search(key)
        if counted is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if key in LAYERS:
            least = 1
        elif counted[0].endswith("s"):
            least = 0
        else:
            least = -math.inf  # an index from the end: vision_feature_layer=-2
        most = MOST_LAYERS if "layer" in counted[0] else MOST_PARTS
        if not least <= value <= most:  # NaN, too
            lines.append(
                f"config.json has {key}={value}, which must be from {max(0, least)} to {most:,}. Correct it there."
            )
    return lines


def _adapter_alone(pretrained: str, file: Path) -> str:
    """The message about a folder with an adapter and no model. file: of the adapter's settings."""
    name = saved_model.settings(file).get("base_model_name_or_path") or "its base model"
    base = printable(str(name))
    return (
        f"model.pretrained={pretrained} holds an adapter alone (adapter_config.json), which was trained beside {base}. "
        f"Type model.pretrained={base} to train a new one; to go on from this one, merge the two first "
        f"({invocation.command('export')} {pretrained} --merge) and name that folder."
    )


def takes_token_types(cfg: Config) -> bool:
    """Whether rows keep the token types that a tokenizer gives: of the menu's families only BERT takes them, and the
    tokenizer of pretrained weights gives what its model takes."""
    return bool(cfg.model.pretrained) or cfg.model.family in model_families.TOKEN_TYPES


def lengths(cfg: Config) -> dict[str, int]:
    """Key -> tokens, of the keys that say how long the sequences of the model are."""
    tokens = {"data.seq_len": cfg.data.seq_len}
    if cfg.eval.window:
        tokens["eval.window"] = cfg.eval.window
    return tokens


hooks.register_module("model", globals())
