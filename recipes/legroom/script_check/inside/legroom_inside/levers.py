"""What a script trains with, found out while it runs, and levers that are tried on it (../../try_levers.py).

changes: `arguments` (of TrainingArguments), `accelerator` (keywords of Accelerator), `model` (checkpointing,
attention), `optimizer` (kind: fused, 8bit or adafactor). What is seen is kept in `facts`: `arguments`, `accelerator`,
`model`, and `typed`: of each argument of the command line its flag, its value, and whether the flag stands alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from legroom_inside import imports

PLAIN = (str, int, float, bool, type(None))
REPLACED = (torch.optim.Adam, torch.optim.AdamW)  # that a script makes itself


class Levers:
    """changes: by what they change. facts: what is seen."""

    def __init__(self, changes):
        self.changes = changes
        self.facts = {}

    def install(self):
        """Look at the script, and change it."""
        self._watch_command_line()
        imports.after("transformers.training_args", self._watch_arguments)
        imports.after("accelerate.accelerator", self._watch_accelerator)
        imports.after("transformers.modeling_utils", self._watch_models)
        kind = self.changes.get("optimizer", {}).get("kind")
        if kind is not None:
            _replace_adam(kind)

    def note_optimizers(self, optimizers):
        """Note of each optimizer whether it is AdamW or Adam of torch, and whether it is fused."""
        self.facts["optimizers"] = []
        for optimizer in optimizers:
            self.facts["optimizers"].append(
                {
                    "name": type(optimizer).__name__,
                    "plain": type(optimizer) in REPLACED,
                    "fused": bool(optimizer.param_groups[0].get("fused")),
                }
            )

    def _watch_command_line(self):
        parse = argparse.ArgumentParser.parse_known_args
        facts = self.facts

        def parsed(parser, args=None, *more, **named):
            result = parse(parser, args, *more, **named)
            if args is None or set(args) <= set(sys.argv):  # of the command line, and of nothing else
                typed = facts.setdefault("typed", {})
                for name, flag in _flags_of(parser).items():
                    value = _plain(getattr(result[0], name, None))
                    if isinstance(value, PLAIN):
                        typed[name] = dict(flag, value=value)
            return result

        argparse.ArgumentParser.parse_known_args = parsed

    def _watch_arguments(self, module):
        finish = module.TrainingArguments.__post_init__
        facts = self.facts
        changes = self.changes.get("arguments", {})

        def finished(arguments):
            for name, value in changes.items():
                newer = name.replace("gradient_checkpointing", "activation_checkpointing")
                if not hasattr(arguments, name) and not hasattr(arguments, newer):  # setting it would change nothing
                    raise TypeError(f"{type(arguments).__name__} of this version has no {name}")
                setattr(arguments, name, value)
                if hasattr(arguments, newer):
                    setattr(arguments, newer, value)
            finish(arguments)
            facts["arguments"] = {"class": type(arguments).__name__}
            for field in dataclasses.fields(arguments):
                value = _plain(getattr(arguments, field.name, None))
                if isinstance(value, PLAIN):
                    facts["arguments"][field.name] = value

        module.TrainingArguments.__post_init__ = finished

    def _watch_accelerator(self, module):
        build = module.Accelerator.__init__
        facts = self.facts
        changes = self.changes.get("accelerator", {})

        def built(accelerator, *args, **named):
            build(accelerator, *args, **dict(named, **changes))
            facts["accelerator"] = {"mixed_precision": accelerator.mixed_precision}

        module.Accelerator.__init__ = built

    def _watch_models(self, module):
        model_class = module.PreTrainedModel
        facts = self.facts
        changes = self.changes.get("model", {})
        seen = weakref.WeakSet()

        def entered(model, _):
            if not model.training or not isinstance(model, model_class) or model in seen:
                return
            seen.update(part for part in model.modules() if isinstance(part, model_class))
            if changes.get("checkpointing"):
                model.gradient_checkpointing_enable()
            if "attention" in changes:
                model.set_attn_implementation(changes["attention"])
            checkpointed = model.is_gradient_checkpointing or not model.supports_gradient_checkpointing
            attention = getattr(model.config, "_attn_implementation", None)
            facts.setdefault("model", {"attention": attention, "checkpointing": checkpointed})

        register_module_forward_pre_hook(entered)


def _flags_of(parser):
    """By the name of an argument: its flag, and whether the flag stands alone, as one of a switch does."""
    flags = {}
    for action in parser._actions:
        long_flags = [flag for flag in action.option_strings if flag.startswith("--")]
        all_flags = long_flags or list(action.option_strings)
        if all_flags:
            flags[action.dest] = {"flag": all_flags[0], "alone": action.nargs == 0}
    return flags


def _plain(value):
    return getattr(value, "value", value)  # of an enumeration


def _replace_adam(kind):
    """Let Adam and AdamW of torch be another implementation, whatever name they were imported by."""
    init = torch.optim.Adam.__init__

    def fused(optimizer, *args, **settings):
        init(optimizer, *args, **dict(settings, fused=True, foreach=None))

    def other(optimizer, params, *args, **named):
        if type(optimizer) not in REPLACED:
            init(optimizer, params, *args, **named)
            return
        named.update(zip(("lr", "betas", "eps", "weight_decay"), args))
        settings = {"lr": float(named.get("lr", 1e-3)), "weight_decay": named.get("weight_decay", 0)}
        if kind == "adafactor":
            from transformers import Adafactor

            instead = Adafactor(params, scale_parameter=False, relative_step=False, **settings)
        elif isinstance(optimizer, torch.optim.AdamW):
            from bitsandbytes.optim import AdamW8bit

            instead = AdamW8bit(params, **settings)
        else:
            from bitsandbytes.optim import Adam8bit

            instead = Adam8bit(params, **settings)
        optimizer.__class__ = type(instead)  # the object is the script's, whatever name it has imported the class by
        vars(optimizer).update(vars(instead))

    torch.optim.Adam.__init__ = fused if kind == "fused" else other
