"""fit: what a search for the fastest configuration that fits is asked, and what it may try. Never imports torch."""

from __future__ import annotations

import copy
import itertools
import shlex
from dataclasses import dataclass, field

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from recipes import config
from recipes.machine import gpu_specs, host
from recipes.options import compose, hooks, hydra_errors, menus, parallelism, suggestions, validate
from recipes.paths import CONF

BATCH = "batch.per_device"
# What is searched: key -> dimension, in the order in which a command names them. From the menus' hooks.
DIMENSIONS = hooks.dimensions()
MODES = DIMENSIONS["parallelism"].values or ()  # an option, and a strategy that is not its default
NOT_SEARCHED = ", ".join(
    f"{name} ({each.not_searched})" for name, each in hooks.registered().items() if each.not_searched
)
KEYS = ("fit.top=5", "fit.keep=[optim]", "fit.measure=3", "fit.gpus=4")
LEAST = {"fit.top": 1, "fit.measure": 0, "fit.gpus": 1}  # of the keys that are numbers


@dataclass(frozen=True)
class Options:
    """The keys that only fit reads: fit.<name>=."""

    top: int = 5  # rows to show
    keep: tuple[str, ...] = ()  # levers that stay as they are
    measure: int = 0  # of those rows, how many to run on the GPU at hand
    gpus: int | None = None  # how many GPUs there are; over several, parallelism is searched


@dataclass
class SearchSpace:
    """What is searched, and how a choice (lever -> value) becomes a configuration and a command.

    words: the person's, and what keeps the effective batch constant. base: their configuration, resolved.
    values: lever -> what is tried. parts: (menu, option) -> that section of the configuration.
    pinned: lever -> the words that say why. left_out: what is not tried and why, a line each. barred: what does not
    go with a mode: (mode, lever, value).
    """

    words: list[str]
    base: config.Config
    effective: int
    values: dict[str, list] = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    pinned: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    barred: set[tuple] = field(default_factory=set)

    def config(self, chosen: dict) -> config.Config:
        """The resolved configuration of a choice, without asking Hydra."""
        cfg = copy.deepcopy(self.base)
        for key, value in chosen.items():
            group, _, leaf = key.partition(".")
            if leaf:
                setattr(getattr(cfg, group), leaf, value)
            else:
                setattr(cfg, group, self.parts[key, value])
        cfg.accumulation.steps = self.effective // (cfg.batch.per_device * cfg.parallelism.replicas)
        return cfg

    def command_words(self, chosen: dict) -> list[str]:
        """What to type for a choice after `python train.py`."""
        return self.words + [word for key in DIMENSIONS if key in chosen for word in self.lever_words(key, chosen[key])]

    def lever_words(self, lever: str, value) -> list[str]:
        return (
            mode_words(value, self.base.parallelism.num_processes) if lever == "parallelism" else [f"{lever}={value}"]
        )

    def command(self, chosen: dict) -> str:
        return f"python train.py {shlex.join(self.command_words(chosen))}"

    def possible(self, chosen: dict) -> bool:
        """Whether nothing in a choice is barred by its mode of parallelism."""
        return not any((chosen.get("parallelism"), lever, value) in self.barred for lever, value in chosen.items())

    def count(self) -> int:
        """How many configurations there are."""
        return sum(self.possible(dict(zip(self.values, told))) for told in itertools.product(*self.values.values()))


def mode_words(mode: str, gpus: int) -> list[str]:
    """What to type for one of MODES."""
    option, *strategy = mode.split()
    return [
        f"parallelism={option}",
        *(f"parallelism.strategy={name}" for name in strategy),
        f"parallelism.num_processes={gpus}",
    ]


# --- fit's own keys -------------------------------------------------------------------------------------


def read_options(words: list[str]) -> tuple[Options, list[str], list[str]]:
    """(options, the other words, problems) of a command line."""
    found, others, problems = {}, [], []
    for word in words:
        key, _, text = word.partition("=")
        if not key.startswith("fit."):
            others.append(word)
        elif key in LEAST:
            if text.isdecimal() and int(text) >= LEAST[key]:
                found[key[4:]] = int(text)
            else:
                problems.append(f"{word}: must be a whole number, {LEAST[key]} or more.")
        elif key == "fit.keep":
            found["keep"] = tuple(filter(None, (name.strip() for name in text.strip("[]").split(","))))
            problems += [
                f"fit.keep: {name} is not searched. Searched are {', '.join(DIMENSIONS)}."
                + suggestions.nearest(name, DIMENSIONS)
                for name in found["keep"]
                if name not in DIMENSIONS
            ]
        else:
            problems.append(
                f"{key}: there is no such key. Fit has {', '.join(KEYS)}."
                + suggestions.nearest(key, [known.split("=")[0] for known in KEYS])
            )
    return Options(**found), others, problems


# --- the plan --------------------------------------------------------------------------------------------


def compose_estimate(*words: str):
    """`command.compose` of an estimate, with Hydra's own complaints as problems."""
    try:
        return compose.compose(CONF, *words, "recipe=estimate")
    except (HydraException, OmegaConfBaseException) as error:
        return None, None, [hydra_errors.explain(error, CONF)]
    except ValueError as error:
        if not hydra_errors.raised_by_hydra(error):
            raise
        return None, None, [str(error).strip()]


def plan(words: list[str], options: Options) -> tuple[SearchSpace | None, list[str]]:
    """What to search for a command line without fit's own keys; or no search, and the problems, a line each."""
    words = [word for word in words if word != "recipe=estimate"]
    if "accumulation=auto" in words:
        return None, ["fit chooses the batch itself: leave accumulation=auto out."]
    given = {word.lstrip("+~").split("=")[0]: word for word in words}
    pinned = {
        lever: word
        for lever in DIMENSIONS
        for key, word in given.items()
        if key == lever or key.startswith(f"{lever}.") or (lever == BATCH and key.startswith("accumulation"))
    }
    smallest = [f"{BATCH}=1"] if BATCH not in (*pinned, *options.keep) and "batch.effective" in given else []
    typed = "parallelism" in (*pinned, *options.keep)
    searched = not typed and (options.gpus or 1) > 1
    if typed and options.gpus and "parallelism.num_processes" not in given:
        words = [*words, f"parallelism.num_processes={options.gpus}"]
    mode = mode_words(MODES[0], options.gpus) if searched else []
    cfg, _, problems = compose_estimate(
        *words, *mode, *smallest
    )  # a batch of 1 divides the effective one, whatever it is
    if cfg is not None and smallest and cfg.batch.effective and cfg.batch.effective % parallelism.replicas(cfg):
        problems = [problem for problem in problems if getattr(problem, "key", None) != "batch.effective"]
        problems.append(_uneven(cfg.batch.effective, parallelism.replicas(cfg)))
    problems = problems or _device_problems(cfg, options) or _count_problems(cfg, options, given)
    if problems:
        return None, problems
    if cfg.accumulation.name != "none":
        pinned.setdefault(BATCH, f"accumulation={cfg.accumulation.name}")  # an experiment's
    share = cfg.batch.per_device * cfg.accumulation.steps  # of each replica, in a step
    search = SearchSpace(words, cfg, share * cfg.parallelism.replicas)
    for lever in DIMENSIONS:
        if lever == "parallelism" and not searched:
            if typed or now(cfg, lever) != "single":
                said = " ".join(word for word in words if word.startswith(lever))
                search.pinned[lever] = said or f"{lever}={now(cfg, lever)}"
        elif lever in pinned:
            search.pinned[lever] = pinned[lever]
        elif lever in options.keep:
            search.pinned[lever] = f"{lever}={now(cfg, lever)}"
        elif lever == BATCH:
            search.values[lever] = [2**power for power in range(share.bit_length()) if share % 2**power == 0]
            if "batch.effective" not in given:
                search.words = [*words, f"batch.effective={search.effective}"]
        else:
            search.values[lever] = _allowed(
                search, lever, [*words, *(mode if lever != "parallelism" else []), *smallest]
            )
    _bar(search)
    return search, []


def _device_problems(cfg, options: Options) -> list[str]:
    """What has no GPU to fit, no speed to compare, or no GPU to measure on."""
    if host.device(cfg) == "cpu":
        return ["fit looks for what fits a GPU, and device=cpu asks for none. Leave it out, and name one with gpu=."]
    if cfg.parallelism.cpu_offload:
        return [
            "fit looks for the fastest, and nobody knows how fast the host is, whose the optimizer's step is with "
            "parallelism.cpu_offload=true. Leave it out; recipe=estimate tells what such a rank takes."
        ]
    if options.measure and cfg.gpu.name != "auto" and not gpu_specs.is_installed(cfg.gpu.name):
        here = host.gpus()[0].name if host.gpus() else "none"
        return [
            f"fit.measure={options.measure} runs on the GPU at hand, and here is {here}, not gpu={cfg.gpu.name}. "
            "Leave one of them out."
        ]
    return []


def _count_problems(cfg, options: Options, given: dict[str, str]) -> list[str]:
    """GPUs that are not there, not counted, or counted twice."""
    own, asked, here = cfg.parallelism, options.gpus, len(host.gpus())
    typed = given.get("parallelism.num_processes")
    if own.name in parallelism.ONE_PROCESS and typed and typed != "parallelism.num_processes=1":
        return [
            f"{typed} has no effect on parallelism={own.name}. Type fit.gpus={typed.split('=')[1]} instead, or a mode "
            "with it: parallelism=fsdp."
        ]
    if asked and asked != own.num_processes:
        said = typed or f"parallelism={own.name}"
        return [
            f"fit.gpus={asked} contradicts {said}, which is {own.num_processes} GPU{'s' * (own.num_processes != 1)}. "
            f"Leave fit.gpus out, or choose parallelism=ddp or parallelism=fsdp for {asked}."
        ]
    if not own.num_processes:
        return [f"parallelism={own.name}, over how many GPUs? Say it with fit.gpus=4 or parallelism.num_processes=4."]
    if asked and cfg.gpu.name == "auto" and asked > here:
        return [
            f"fit.gpus={asked}, and {here} {'is' if here == 1 else 'are'} visible here. Type fit.gpus={here}, or say "
            "which GPU they are: gpu=rtx4090_24gb."
        ]
    if options.measure and own.num_processes > here:
        return [
            f"fit.measure={options.measure} runs on the GPUs at hand, and {here} {'is' if here == 1 else 'are'} visible "
            f"here, not {own.num_processes}. Type fit.gpus={here}, or leave fit.measure out."
        ]
    return []


def _uneven(effective: int, replicas: int) -> str:
    above = effective - effective % replicas + replicas
    below = f"{above - replicas} or " if above > replicas else ""
    return (
        f"batch.effective={effective} cannot be shared evenly by {replicas} GPUs. Type batch.effective={below}{above}, "
        "or another number of GPUs."
    )


def _bar(search: SearchSpace) -> None:
    """Find what a mode of parallelism rules out of the other levers."""
    said = []
    for mode, lever in itertools.product(search.values.get("parallelism", ()), search.values):
        values = [] if lever in ("parallelism", BATCH) else search.values[lever]
        found = {value: validate.validate(search.config({"parallelism": mode, lever: value})) for value in values}
        refused = {value: " ".join(problems) for value, problems in found.items() if problems}
        search.barred |= {(mode, lever, value) for value in refused}
        said += [f"parallelism={mode.split()[0]} with {line}" for line in _in_lines(lever, refused)]
    search.left_out += dict.fromkeys(said)


def _in_lines(lever: str, refused: dict[str, str]) -> list[str]:
    """Values of a lever and why each is refused; those with one reason in one line."""
    alike: dict[str, list] = {}
    for value, why in refused.items():
        alike.setdefault(why.replace(f"{lever}={value.split()[0]}", ""), []).append(value)
    return [f"{lever}={', '.join(values)}: {refused[values[0]]}" for values in alike.values()]


def not_searched(search: SearchSpace) -> str:
    """What fit does not try, and how it would."""
    here = len(host.gpus()) if search.base.gpu.name == "auto" else 0
    if "parallelism" in search.values:
        return f"{NOT_SEARCHED}, other modes of parallelism than these"
    if search.base.parallelism.num_processes > 1:
        return NOT_SEARCHED
    many = (
        f"of the {here} that are visible; fit.gpus={here} searches over all"
        if here > 1
        else "fit.gpus=4 searches over four"
    )
    return f"{NOT_SEARCHED}, parallelism (one GPU{' ' if here > 1 else '; '}{many})"


def now(cfg, lever: str):
    """The value of a lever in a configuration."""
    group, _, leaf = lever.partition(".")
    return getattr(getattr(cfg, group), leaf or "name")


def _allowed(search: SearchSpace, lever: str, words: list[str]) -> list:
    """The options of a lever that this GPU and the other words leave."""
    allowed, refused = [], {}
    dimension = DIMENSIONS[lever]
    for value in dimension.values or menus.options(lever, [CONF]):
        cfg, _, problems = compose_estimate(*words, *search.lever_words(lever, value))
        why = dimension.not_tried(cfg) if cfg is not None and dimension.not_tried is not None else None
        if why is not None or problems:
            refused[value] = " ".join(problems) if why is None else f"{why}."
            continue
        allowed.append(value)
        if "." not in lever:
            search.parts[lever, value] = getattr(cfg, lever)
    search.left_out += _in_lines(lever, refused)
    return allowed
