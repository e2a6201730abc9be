"""adapter=peft: the settings of any of peft's tuners that lie beside layers, by peft's own names."""

import dataclasses
from typing import Any

from legroom import suggestions
from legroom.config import Config
from legroom.errors import Refusal

NEED_MORE = {  # than layers of their own
    "ADALORA": "it shares out its ranks in a call after each step. Type adapter=lora",
    "XLORA": "it mixes adapters that were trained before. Type adapter=lora",
}


def settings(cfg: Config, whole: list[str], task_type: Any) -> Any:
    """peft's configuration. whole: names of modules that are trained whole. Raises Refusal for one that cannot be."""
    import peft

    typed = dict(cfg.adapter.peft)
    asked = str(typed.pop("peft_type")).upper()
    kinds = {str(getattr(kind, "value", kind)): each for kind, each in peft.PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    if asked not in kinds:
        raise Refusal(f"adapter.peft: peft has no peft_type {asked}.{suggestions.nearest(asked, list(kinds))}")
    if asked in NEED_MORE:
        raise Refusal(f"adapter.peft: peft_type {asked} needs more than layers: {NEED_MORE[asked]}.")
    kind = kinds[asked]
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(typed) - known)
    if unknown:
        near = suggestions.nearest(unknown[0], sorted(known))
        raise Refusal(f"adapter.peft: {kind.__name__} has no setting {unknown[0]}.{near}")
    if "target_modules" in known:
        typed.setdefault("target_modules", "all-linear")
    if whole and "modules_to_save" not in known:
        raise Refusal(f"adapter.peft: {asked} trains no modules whole, as {whole[0]}. Type adapter=lora.")
    if whole:
        typed["modules_to_save"] = whole
    try:
        made = kind(task_type=task_type, **typed)
    except (TypeError, ValueError, ImportError) as error:
        raise Refusal(f"adapter.peft: {asked}: {str(error).splitlines()[0]}") from error
    if made.is_prompt_learning:
        raise Refusal(f"adapter.peft: {asked} trains tokens before the text, and no layers. Type adapter=lora.")
    return made
