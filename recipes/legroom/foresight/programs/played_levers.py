"""What a script trains with, found out while it runs, and levers that are tried on it: the child's part of
`legroom check --try`. The other part is try_levers.py, which says what may be changed.
"""

import argparse
import contextlib
import dataclasses
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from legroom.third_party.argparse_private import flags_of
from legroom.third_party.patching import patched

PLAIN = (str, int, float, bool, type(None))
REPLACED = (torch.optim.Adam, torch.optim.AdamW)  # that a script makes itself


@contextlib.contextmanager
def changed(changes: Mapping[str, Mapping[str, Any]], facts: dict[str, Any]) -> Iterator[None]:
    """Inside, a script runs with other values than it gives, and `facts` is filled with what is seen of it.

    changes: `arguments` (of TrainingArguments), `accelerator` (keywords of Accelerator), `model` (checkpointing,
    attention), `optimizer` (kind: fused, 8bit or adafactor).
    facts: `arguments`, `accelerator`, `model`, and `typed`: of each argument of the command line its flag, its
    value, and whether the flag stands alone.
    """
    from accelerate import Accelerator
    from transformers import TrainingArguments

    after, build = TrainingArguments.__post_init__, Accelerator.__init__
    parse = argparse.ArgumentParser.parse_known_args  # HfArgumentParser, and TRL's copy of it, come here too

    def arguments_made(given: Any) -> None:
        for name, value in changes.get("arguments", {}).items():
            setattr(given, name, value)
            newer = name.replace("gradient_checkpointing", "activation_checkpointing")
            if hasattr(given, newer):
                setattr(given, newer, value)
        after(given)
        facts["arguments"] = _plain_fields(given) | {"class": type(given).__name__}

    def parsed(parser: Any, args: Any = None, *more: Any, **named: Any) -> Any:
        found = parse(parser, args, *more, **named)
        if args is None or set(args) <= set(sys.argv):
            values = {name: _plain(value) for name, value in vars(found[0]).items()}
            flags = {name: flag for name, flag in flags_of(parser).items() if isinstance(values.get(name), PLAIN)}
            typed = {name: flag | {"value": values.get(name)} for name, flag in flags.items()}
            facts["typed"] = facts.get("typed", {}) | typed
        return found

    def built(accelerator: Any, *args: Any, **named: Any) -> None:
        build(accelerator, *args, **(named | dict(changes.get("accelerator", {}))))
        facts["accelerator"] = {"mixed_precision": accelerator.mixed_precision}

    with contextlib.ExitStack() as hooks:
        hooks.enter_context(patched(TrainingArguments, __post_init__=arguments_made))
        hooks.enter_context(patched(argparse.ArgumentParser, parse_known_args=parsed))
        hooks.enter_context(patched(Accelerator, __init__=built))
        hooks.enter_context(_optimizer(changes.get("optimizer", {}).get("kind")))
        hooks.callback(register_module_forward_pre_hook(_models(changes.get("model", {}), facts)).remove)
        yield


def _plain_fields(given: Any) -> dict[str, Any]:
    """The fields of a dataclass whose values JSON knows."""
    values = {each.name: _plain(getattr(given, each.name)) for each in dataclasses.fields(given)}
    return {name: value for name, value in values.items() if isinstance(value, PLAIN)}


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)  # of an enumeration


def optimizers_seen(optimizers: list[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Of each optimizer whether it is AdamW or Adam of torch, and whether it is fused."""
    return [
        {"name": type(each).__name__, "plain": type(each) in REPLACED, "fused": bool(each.param_groups[0].get("fused"))}
        for each in optimizers
    ]


def _optimizer(kind: str | None) -> contextlib.AbstractContextManager:
    """Inside, Adam and AdamW of torch are another implementation, whatever name they were imported by."""
    if kind is None:
        return contextlib.nullcontext()
    init = torch.optim.Adam.__init__

    def fused(optimizer: Any, *args: Any, **settings: Any) -> None:
        init(optimizer, *args, **settings | {"fused": True, "foreach": None})

    def other(optimizer: Any, params: Any, *args: Any, **named: Any) -> None:
        if type(optimizer) not in REPLACED:
            init(optimizer, params, *args, **named)
            return
        given = dict(zip(("lr", "betas", "eps", "weight_decay"), args, strict=False)) | named
        settings = {"lr": float(given.get("lr", 1e-3)), "weight_decay": given.get("weight_decay", 0)}
        if kind == "adafactor":
            from transformers import Adafactor

            made = Adafactor(params, scale_parameter=False, relative_step=False, **settings)
        else:
            from bitsandbytes import optim

            decoupled = isinstance(optimizer, torch.optim.AdamW)
            made = getattr(optim, "AdamW8bit" if decoupled else "Adam8bit")(params, **settings)
        optimizer.__class__ = type(made)  # the object is the script's, whatever name it has imported the class by
        vars(optimizer).update(vars(made))

    return patched(torch.optim.Adam, __init__=fused if kind == "fused" else other)


def _models(changes: Mapping[str, Any], facts: dict[str, Any]) -> Callable[[torch.nn.Module, Any], None]:
    """A hook that looks at each model of transformers before its first training step, and changes it."""
    from transformers import PreTrainedModel

    from legroom.third_party.transformers_models_private import attention_of

    seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def entered(module: torch.nn.Module, _: Any) -> None:
        if not module.training or not isinstance(module, PreTrainedModel) or module in seen:
            return
        seen.update(each for each in module.modules() if isinstance(each, PreTrainedModel))
        if changes.get("checkpointing"):
            module.gradient_checkpointing_enable()
        if "attention" in changes:
            module.set_attn_implementation(changes["attention"])
        checkpointed = module.is_gradient_checkpointing or not module.supports_gradient_checkpointing
        facts.setdefault("model", {"attention": attention_of(module), "checkpointing": checkpointed})

    return entered
