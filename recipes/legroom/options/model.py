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
    if cfg.model.pretrained:
        typed = sorted(f"model.{key}" for key in SET_BY_WEIGHTS if f"model.{key}" in given)
        typed += sorted(key for key in given if key.startswith("model.config"))
        return [
            *_folder_problems(cfg.model.pretrained, needs_weights=not cfg.predicts),
            *(f"{key} is set by the weights of model.pretrained. Leave it out." for key in typed),
        ]
    return _size_problems(cfg) + _expert_problems(cfg) + _data_problems(cfg)


def _size_problems(cfg: Config) -> list[str]:
    model, found = cfg.model, []
    if any("head_dim" in key for key in model.config or ()):
        pass  # the width of a head is a size of its own
    elif model.width % model.heads:
        found.append(f"model.width={model.width} is not a multiple of model.heads={model.heads}.")
    elif model.family in model_families.ROTARY and model.width // model.heads % 2:
        found.append(
            f"model.width={model.width} over model.heads={model.heads} gives heads of odd size, "
            "which rotary embeddings cannot turn. Change one of them."
        )
    if model.kv_heads and model.heads % model.kv_heads:
        found.append(f"model.heads={model.heads} is not a multiple of model.kv_heads={model.kv_heads}.")
    return found


def _expert_problems(cfg: Config) -> list[str]:
    model, found = cfg.model, []
    if not (model.experts and model.experts_per_token):
        return []
    if model.experts_per_token > model.experts:
        found.append(f"model.experts_per_token={model.experts_per_token} is more than model.experts={model.experts}.")
    uneven = [f"model.{key}={getattr(model, key)}" for key in ("width", "feed_forward") if getattr(model, key) % 8]
    if uneven:
        found.append(f"{' and '.join(uneven)}: the grouped product of the experts needs multiples of 8.")
    return found


def _data_problems(cfg: Config) -> list[str]:
    model = cfg.model
    found = [
        f"{key}={length} is longer than model.positions={model.positions}. "
        f"Type {key}={model.positions}, or raise model.positions."
        for key, length in lengths(cfg).items()
        if length > model.positions
    ]
    if model.family in model_families.ENCODERS and task.task(cfg) == "language_modelling":
        found.append(
            f"data={cfg.data.name} is causal language modelling, and model={model.name} is an encoder, "
            "which sees the tokens that it should predict. Choose model=gpt2_tiny or another decoder, or type "
            "data.task=masked_lm."
        )
    if task.task(cfg) == "classification" and model.classes < 2:
        found.append(f"model.classes={model.classes}: a classification needs at least 2.")
    return found


def warnings(cfg: Config) -> list[str]:
    """Sizes that leave part of a matrix unit idle, but for BERT's and GPT-2's vocabularies."""
    if cfg.model.pretrained:
        return []
    sizes = {key: getattr(cfg.model, key) for key in ("width", "feed_forward", "vocab")}
    odd = [f"model.{key}={size}" for key, size in sizes.items() if size % 8 and size not in PUBLISHED_VOCABULARIES]
    return [f"{', '.join(odd)}: not a multiple of 8, which leaves part of a GPU's matrix units idle."] if odd else []


def _folder_problems(pretrained: str, needs_weights: bool) -> list[str]:
    """What is wrong with `model.pretrained` where it is a folder; a hub id is checked when it is loaded.

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
                "Its config.json alone is enough for recipe=estimate and the command fit; a training needs the weights "
                "too."
            )
        return [f"model.pretrained={pretrained}: the folder has no .safetensors file. {why}"]
    try:
        found = counts_problems(json.loads((folder / "config.json").read_text()))
        return [f"model.pretrained={pretrained}: {each}" for each in found]
    except (ValueError, OSError, RecursionError) as error:
        return [f"model.pretrained={pretrained}: config.json cannot be read ({error})."]


def counts_problems(values: Any) -> list[str]:
    """Numbers of layers, experts and labels in a config.json of which no model can be built, or none in any memory.

    values: the file's. transformers builds as many as it says, and takes -1 layers for none.
    """
    found = []
    for key, value in values.items() if isinstance(values, dict) else ():
        counted = COUNTS.search(key)
        if isinstance(value, dict):  # of a part, as text_config
            found += counts_problems(value)
        elif counted is not None and isinstance(value, (int, float)) and not isinstance(value, bool):
            least = 1 if key in LAYERS else 0 if counted[0].endswith("s") else -math.inf  # vision_feature_layer=-2
            most = MOST_LAYERS if "layer" in counted[0] else MOST_PARTS
            if not least <= value <= most:
                found.append(
                    f"config.json has {key}={value}, which must be from {max(0, least)} to {most:,}. Correct it there."
                )
    return found


def _adapter_alone(pretrained: str, file: Path) -> str:
    """What is said of a folder with an adapter and no model."""
    base = printable(str(saved_model.settings(file).get("base_model_name_or_path") or "its base model"))
    return (
        f"model.pretrained={pretrained} holds an adapter alone (adapter_config.json), which was trained beside {base}. "
        f"Type model.pretrained={base} to train a new one; to go on from this one, merge the two first "
        f"({invocation.command('export')} {pretrained} --merge) and name that folder."
    )


def lengths(cfg: Config) -> dict[str, int]:
    """Key -> tokens, of the keys that say how long the sequences of the model are."""
    return {"data.seq_len": cfg.data.seq_len} | ({"eval.window": cfg.eval.window} if cfg.eval.window else {})


hooks.register_module("model", globals())
