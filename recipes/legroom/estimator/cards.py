"""The figures of a GPU by its name, or as somebody has them. Imports no torch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from legroom import config, suggestions
from legroom.config import Gpu
from legroom.config.values import value_problems
from legroom.errors import Refusal
from legroom.machine import gpu_specs, host


def gpu_of(gpu: str | Mapping[str, Any]) -> Gpu:
    """The figures of a GPU by its name or as a mapping. Raises Refusal for a name or a key that is not known."""
    options = gpu_specs.options()
    if isinstance(gpu, Mapping):
        usual = next(iter(options.values()))
        values: dict[str, Any] = {key: usual[key] for key in ("kind", *gpu_specs.NOT_OF_A_SHEET)}
        values |= {**options.get(str(gpu.get("name")), {}), **gpu}
        keys = set(config.node_types(Gpu)) - {"facts"}
        missing, unknown = sorted(keys - values.keys()), sorted(values.keys() - keys)
        if missing or unknown:
            what = f"the keys {', '.join(missing)} are missing" if missing else f"{unknown[0]} is no key of it"
            raise Refusal(f"gpu: {what}. Name an option to take the rest from, as in {{'name': 'a100_80gb', ...}}.")
        _check_figures(values)
        return config.from_dict(values, Gpu)
    if gpu == "auto":
        here = host.gpus()
        found = gpu_specs.find(here[0].name, here[0].memory_bytes) if here else None
        if found is None:
            raise Refusal(f"gpu='auto': no GPU with known figures is installed here. Choose one: {gpu_specs.names()}.")
        return config.from_dict(found | {"memory_bytes": here[0].memory_bytes}, Gpu)
    if gpu not in options:
        raise Refusal(f"gpu={gpu!r} is not known. Choose one: {gpu_specs.names()}.{suggestions.nearest(gpu, options)}")
    return config.from_dict(options[gpu], Gpu)


def _check_figures(values: dict[str, Any]) -> None:
    """Raises Refusal for a figure of a GPU that is of the wrong kind or out of bounds. values: of every key."""
    kinds = config.node_types(Gpu)
    for each in dataclasses.fields(Gpu):
        key, value, is_text = each.name, values.get(each.name), kinds[each.name] is str
        wrong = "None" not in str(each.type) if value is None else isinstance(value, str) != is_text
        if wrong and key != "facts":
            raise Refusal(f"gpu: {key}={value!r} must be {'text' if is_text else 'a number'}.")
    problems = value_problems(config.from_dict(values, Gpu), "gpu: ")
    if problems:
        raise Refusal(problems[0])
