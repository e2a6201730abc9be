"""Private names of peft that this project uses, each with its reason. Imports peft."""

from typing import Any

from peft.utils import transformers_weight_conversion as conversion


def names_of_experts(model: Any) -> set[str]:
    """The last parts of names of layers that peft takes for the router and the experts of a mixture, as gate_proj.

    In transformers 5 they are one tensor, and in the names of targets (and of saved adapters) still what they were. A
    linear layer of such a name, as a shared expert's, then has no adapter.
    """
    families: dict[str, str] = getattr(conversion, "_MODEL_TO_CONVERSION_PATTERN")  # noqa: B009  (made elsewhere)
    family = families.get(model.config.model_type, "")
    return set(conversion._MOE_TARGET_MODULE_MAPPING.get(family, {}))
