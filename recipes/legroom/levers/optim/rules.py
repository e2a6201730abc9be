"""optim: the optimizer's settings, and which optimizers take less memory."""

import copy
from collections.abc import Collection
from pathlib import Path
from typing import Any

from legroom import paths
from legroom.config import Config
from legroom.levers.compile.rules import gpu_problems
from legroom.machine import host
from legroom.options import hooks, menus
from legroom.options.hooks import STEP, Conflict, Cost, Dimension, Lever

# Options that compute the same in other kernels, with what the optimizer is called.
ADAMW = {"adamw": "adamw_torch", "adamw_fused": "adamw_torch_fused"}
LEAPS = (
    "optim={}: where the gradients of a block differ by orders of magnitude, the second moment of the small ones "
    "rounds to zero, and such a weight may move by thousands of learning rates at once. Watch the loss, or choose "
    "optim=adam8bit."
)
REDUCES = ", which keeps or reduces gradients itself"
INSTEAD = "Choose parallelism=fsdp, or leave optim.in_backward out."
IN_BACKWARD, CLIPPING = "optim.in_backward", "train.max_grad_norm"


def training_arguments(cfg: Config) -> dict[str, Any]:
    """Entries for TrainingArguments."""
    optim = cfg.optim
    if optim.kind == "factory":  # whose arguments are its own
        return {}
    entries = {
        "optim": optim.transformers_name,
        "adam_beta1": optim.beta1,
        "adam_beta2": optim.beta2,
        "adam_epsilon": optim.epsilon,
    }
    entries = {key: value for key, value in entries.items() if value is not None}
    args = {"momentum": optim.momentum} | (optim.args or {})
    typed = [f"{key}={value}" for key, value in args.items() if value is not None]
    if typed:
        entries["optim_args"] = ",".join(typed)
    return entries


def resolve(cfg: Config) -> list[str]:
    """Makes the path of a factory's file absolute: it lies in a folder of one's own menus, or where the command is
    typed."""
    file, colon, name = (cfg.optim.factory or "").rpartition(":")
    if not colon:
        return []
    found = Path.cwd() / paths.expanded(file)
    for folder in paths.own_menus():
        place = folder / paths.expanded(file)
        if place.is_file():
            found = place
            break
    cfg.optim.factory = f"{found}:{name}"
    return []


def problems(cfg: Config, given: Collection[str] = ()) -> list[str]:
    """What needs all gradients at once, where each weight is updated in the backward pass; and compiled steps."""
    found = _factory_problems(cfg) + _unknown_arguments(cfg)
    if cfg.optim.in_backward:
        found += _in_backward_problems(cfg)
    if cfg.optim.compiles_step:
        found += _compiled_step_problems(cfg)
    return found


def _factory_problems(cfg: Config) -> list[str]:
    """A factory's class that is not there, as far as that is seen without importing it."""
    option, factory = f"optim={cfg.optim.name}", cfg.optim.factory
    if cfg.optim.kind != "factory":
        if "factory" in menus.option_values("optim", cfg.optim.name, paths.menus()):
            return [f"{option}: factory is for kind: factory, and its kind is {cfg.optim.kind}."]
        return []  # typed beside another option, which says so itself
    needed = (
        f"{option} needs the class of its optimizer: optim.factory=package.module.Lion, or optim.factory=mine.py:Lion."
    )
    if not factory:
        return [needed]
    file, _, name = factory.rpartition(":")
    if file:
        if not name:
            return [needed]
        if not Path(file).is_file():
            return [f"{option}: factory: {factory}, and there is no such file."]
        return []
    package, dot, _ = factory.partition(".")
    if not dot:
        return [needed]
    if not host.has(package):
        return [f"{option}: factory: {factory}, and the package {package} is not installed."]
    return []


def _unknown_arguments(cfg: Config) -> list[str]:
    """Names of `optim.args` that the option's file does not have, and that transformers would leave out in silence."""
    if cfg.optim.kind == "factory" or not cfg.optim.args:
        return []
    known = menus.option_values("optim", cfg.optim.name, paths.menus()).get("args") or cfg.optim.args
    return [
        f"optim.args.{name}: optim={cfg.optim.name} does not take this argument. It has {', '.join(known)}."
        for name in cfg.optim.args
        if name not in known
    ]


def _compiled_step_problems(cfg: Config) -> list[str]:
    """Why a step that is compiled on a GPU is not estimated for one, or cannot be compiled."""
    if not cfg.target.on_gpu:
        return []
    if cfg.predicts:
        return [
            f"recipe=estimate does not support optim={cfg.optim.name} on a GPU: its step is compiled there, and what "
            "compiled code takes is not known. Choose optim=adam8bit."
        ]
    return gpu_problems(f"optim={cfg.optim.name}", "choose optim=adam8bit")


def warnings(cfg: Config) -> list[str]:
    """What the memory ledger does not see, and states whose rounding lets single weights leap."""
    found = []
    if cfg.optim.facts.rounds_to_zero:
        found.append(LEAPS.format(cfg.optim.name))
    if cfg.optim.compiles_step and cfg.target.on_gpu and cfg.measure.ledger:
        found.append(
            f"optim={cfg.optim.name}: the five parts of memory are of its step as it is written; the training compiles "
            "it, and it takes less besides weights, gradients and states."
        )
    return found


def _in_backward_problems(cfg: Config) -> list[str]:
    """Why weights cannot be updated in the backward pass of this configuration, a line each."""
    this, found = f"{IN_BACKWARD}=true", []
    if cfg.train.max_grad_norm:
        found.append(
            f"{this} frees each gradient at once, and train.max_grad_norm={cfg.train.max_grad_norm} clips by the norm "
            "of all. Type train.max_grad_norm=0, or leave optim.in_backward out."
        )
    if cfg.accumulation.steps > 1:
        found.append(
            f"{this} updates the weights in every backward pass, and accumulation adds up the gradients of several. "
            "Leave the accumulation out, or optim.in_backward."
        )
    return found


def _in_backward_lever(cfg: Config) -> list[Lever]:
    """Gradients that do not outlive their weight's step; without clipping, which needs all of them."""
    changed = copy.deepcopy(cfg)
    changed.optim.in_backward = True
    changed.train.max_grad_norm = 0.0
    if cfg.optim.in_backward is not False or _in_backward_problems(changed):  # None: the option lacks the key
        return []
    if not cfg.train.max_grad_norm:
        return [Lever(f"{IN_BACKWARD}=true", Cost.NO_SPEED)]
    return [Lever(f"{IN_BACKWARD}=true {CLIPPING}=0", Cost.NO_CLIPPING)]


def memory_levers(cfg: Config) -> list[Lever]:
    """Optimizers with smaller states, or with smaller temporaries in the step; steps inside the backward pass."""
    algorithm, adamw = cfg.optim.algorithm, is_adamw(cfg)
    whole_weights = cfg.parallelism.kind in ("single", "dp", "ddp")  # 8-bit optimizers work on no others
    fused_cost, states_cost = None, None
    if adamw and algorithm == ADAMW["adamw"]:
        fused_cost = Cost.NO_SPEED
    if adamw and whole_weights:
        states_cost = Cost.LOW_PRECISION_STATES
    levers = {
        # The fused kernel has no temporary copy of all weights.
        ADAMW["adamw_fused"]: Lever("optim=adamw_fused", fused_cost, (STEP,)),
        "adafactor": Lever("optim=adafactor"),
        "adamw_bnb_8bit": Lever("optim=adam8bit", states_cost),
    }
    return [lever for made, lever in levers.items() if made != algorithm] + _in_backward_lever(cfg)


def is_adamw(cfg: Config) -> bool:
    """Whether the optimizer computes what optim=adamw does, in whatever kernels; an option of one's own may have other
    values."""
    if cfg.optim.algorithm not in ADAMW.values():
        return False
    if cfg.optim.name in ADAMW:
        return True
    if cfg.optim.args:
        return False
    plain = menus.option_values("optim", "adamw", [paths.CONF])
    return all(plain[key] == getattr(cfg.optim, key) for key in ("beta1", "beta2", "epsilon"))


def not_tried(cfg: Config) -> str | None:
    """Why `fit` leaves an optimizer out."""
    if cfg.optim.facts.pages_to_host:
        return "what paging costs differs by machine, from a fifth to nearly all of the rate of the link to the host"
    if cfg.optim.facts.not_searched:
        return "it trains differently at the same learning rate. fit does not choose it; typed, it is kept"
    return None


def alike(cfg: Config) -> tuple[str, ...]:
    """The optimizers that compute what the chosen one does, in other kernels."""
    if not is_adamw(cfg):
        return ()
    if cfg.optim.name in ADAMW:
        return tuple(ADAMW)
    return (cfg.optim.name, *(option for option, made in ADAMW.items() if made != cfg.optim.algorithm))


def alike_in_backward(cfg: Config) -> tuple[bool, ...]:
    """Without clipping, steps inside the backward pass compute what steps after it do."""
    if cfg.train.max_grad_norm or cfg.optim.in_backward is None:
        return ()
    return (False, True)


def without_clipping(cfg: Config, in_backward: bool) -> dict[str, Any]:
    """What steps inside the backward pass need besides."""
    if in_backward and cfg.train.max_grad_norm:
        return {CLIPPING: 0.0}
    return {}


CONFLICTS = (
    Conflict(
        "optim.in_backward=true",
        "precision=fp16",
        ", whose scaling looks for infinities in all gradients before the step",
        "Choose precision=bf16, or leave optim.in_backward out.",
    ),
    Conflict("optim.in_backward=true", "parallelism=dp,ddp,zero", REDUCES, INSTEAD),
    Conflict(
        "optim.in_backward=true", "parallelism.strategy=no_shard", REDUCES, "Type parallelism.strategy=full_shard."
    ),
    Conflict("optim.in_backward=true", "parallelism.cpu_offload=true", ": the gradients lie in the host's memory"),
    Conflict(
        "optim.in_backward=true",
        "parallelism=pipeline",
        ", which adds up micro-batches",
        "Leave optim.in_backward out.",
    ),
    Conflict("optim.in_backward=true", "compile=true", ": compiled code returns all gradients at once"),
)

SEARCH = (
    Dimension("optim", 40, changes_numbers=True, alike=alike, not_tried=not_tried),
    Dimension(IN_BACKWARD, 42, (False, True), True, alike_in_backward, also=without_clipping, refuses_others=True),
)


def chosen(cfg: Config) -> bool:
    return True


hooks.register_module("optim", globals())
