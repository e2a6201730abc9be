"""The figures of a GPU by its name, or as somebody has them. Imports no torch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from legroom import config, suggestions
from legroom.config import Gpu
from legroom.config.values import value_problems
from legroom.errors import Refusal
from legroom.machine import gpu_specs, host, instances


def gpu_of(gpu: str | Mapping[str, Any]) -> Gpu:
    """The figures of a GPU by its name or as a mapping. Raises Refusal for a name or a key that is not known."""
    options = gpu_specs.options()
    if isinstance(gpu, Mapping):
        usual = next(iter(options.values()))
        values: dict[str, Any] = {key: usual[key] for key in ("kind", "unified", *gpu_specs.NOT_OF_A_SHEET)}
        values |= {**options.get(str(gpu.get("name")), {}), **gpu}
        _check_keys(values)
        _check_figures(values)
        return config.from_dict(values, Gpu)
    if gpu == "auto":
        for installed in host.gpus()[:1]:
            figures = gpu_specs.find(installed.name, installed.memory_bytes)
            if figures is not None:
                return config.from_dict(figures | {"memory_bytes": installed.memory_bytes}, Gpu)
        raise Refusal(f"gpu='auto': no GPU with known figures is installed here. Choose one: {gpu_specs.names()}.")
    if instances.is_named(gpu):
        instance = instances.find(gpu)
        if instance is None:
            raise Refusal(instances.unknown(gpu))
        return config.from_dict({**instance.card, "name": instance.name, "instance": instance.name}, Gpu)
    if gpu not in options:
        raise Refusal(f"gpu={gpu!r} is not known. Choose one: {gpu_specs.names()}.{suggestions.nearest(gpu, options)}")
    return config.from_dict(options[gpu], Gpu)


def _check_keys(values: dict[str, Any]) -> None:
    """Raises Refusal for a key of a GPU that is missing or unknown."""
    keys = set(config.node_types(Gpu)) - {"facts"}
    missing = sorted(keys - values.keys())
    unknown = sorted(values.keys() - keys)
    if missing:
        problem = f"the keys {', '.join(missing)} are missing"
    elif unknown:
        problem = f"{unknown[0]} is no key of it"
    else:
        return
    raise Refusal(f"gpu: {problem}. Name an option to take the rest from, as in {{'name': 'a100_80gb', ...}}.")


def _check_figures(values: dict[str, Any]) -> None:
    """Raises Refusal for a figure of a GPU that is of the wrong kind or out of bounds. values: of every key."""
    kinds = config.node_types(Gpu)
    for field in dataclasses.fields(Gpu):
        if field.name == "facts":
            continue
        value = values.get(field.name)
        is_text = kinds[field.name] is str
        if value is None:
            is_wrong = "None" not in str(field.type)
        else:
            is_wrong = isinstance(value, str) != is_text
        if is_wrong:
            raise Refusal(f"gpu: {field.name}={value!r} must be {'text' if is_text else 'a number'}.")
    problems = value_problems(config.from_dict(values, Gpu), "gpu: ")
    if problems:
        raise Refusal(problems[0])
