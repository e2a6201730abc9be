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

    def optimizers(self, found):
        """Note of each optimizer whether it is AdamW or Adam of torch, and whether it is fused."""
        self.facts["optimizers"] = [
            {
                "name": type(each).__name__,
                "plain": type(each) in REPLACED,
                "fused": bool(each.param_groups[0].get("fused")),
            }
            for each in found
        ]

    def _watch_command_line(self):
        parse, facts = argparse.ArgumentParser.parse_known_args, self.facts

        def parsed(parser, args=None, *more, **named):
            found = parse(parser, args, *more, **named)
            if args is None or set(args) <= set(sys.argv):
                values = {name: _plain(value) for name, value in vars(found[0]).items()}
                typed = facts.setdefault("typed", {})
                for name, flag in _flags_of(parser).items():
                    if isinstance(values.get(name), PLAIN):
                        typed[name] = dict(flag, value=values.get(name))
            return found

        argparse.ArgumentParser.parse_known_args = parsed

    def _watch_arguments(self, module):
        arguments, facts, changes = module.TrainingArguments, self.facts, self.changes.get("arguments", {})
        after = arguments.__post_init__

        def made(given):
            for name, value in changes.items():
                newer = name.replace("gradient_checkpointing", "activation_checkpointing")
                if not hasattr(given, name) and not hasattr(given, newer):  # it would change nothing, without a word
                    raise TypeError(f"{type(given).__name__} of this version has no {name}")
                setattr(given, name, value)
                if hasattr(given, newer):
                    setattr(given, newer, value)
            after(given)
            values = {each.name: _plain(getattr(given, each.name, None)) for each in dataclasses.fields(given)}
            known = {name: value for name, value in values.items() if isinstance(value, PLAIN)}
            facts["arguments"] = dict(known, **{"class": type(given).__name__})

        arguments.__post_init__ = made

    def _watch_accelerator(self, module):
        build, facts, changes = module.Accelerator.__init__, self.facts, self.changes.get("accelerator", {})

        def built(accelerator, *args, **named):
            build(accelerator, *args, **dict(named, **changes))
            facts["accelerator"] = {"mixed_precision": accelerator.mixed_precision}

        module.Accelerator.__init__ = built

    def _watch_models(self, module):
        kind, seen, changes, facts = (
            module.PreTrainedModel,
            weakref.WeakSet(),
            self.changes.get("model", {}),
            self.facts,
        )

        def entered(model, _):
            if not model.training or not isinstance(model, kind) or model in seen:
                return
            seen.update(each for each in model.modules() if isinstance(each, kind))
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
    found = {}
    for action in parser._actions:
        flags = [each for each in action.option_strings if each.startswith("--")] or list(action.option_strings)
        if flags:
            found[action.dest] = {"flag": flags[0], "alone": action.nargs == 0}
    return found


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
        given = dict(zip(("lr", "betas", "eps", "weight_decay"), args), **named)
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

    torch.optim.Adam.__init__ = fused if kind == "fused" else other
