"""fit: what a search for the fastest configuration that fits is asked, and what it may try. Never imports torch."""

from __future__ import annotations

import copy
import math
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from recipes import command, complaints, config, gpu, machine, validate

CONF = Path(__file__).resolve().parents[1] / "conf"
BATCH = "batch.per_device"
ALL = None  # every option of the menu
# What is searched: key -> values to try, in the order in which a command names them.
LEVERS = {"precision": ALL, "checkpointing": ALL, "model.attention": ("sdpa", "eager"), "optim": ALL, BATCH: ALL}
CHANGES_TRAINING = ("precision", "optim")  # levers that change the numbers a training computes
NOT_TRIED = {"paged_adam8bit": "the estimate of time does not know what paging costs"}
NOT_SEARCHED = "compile (the estimate of time does not know compiled code), parallelism (one GPU)"
KEYS = "fit.top=5, fit.keep=[optim], fit.measure=3"


@dataclass(frozen=True)
class Options:
    """The keys that only fit reads: fit.<name>=."""

    top: int = 5  # rows to show
    keep: tuple[str, ...] = ()  # levers that stay as they are
    measure: int = 0  # of those rows, how many to run on the GPU at hand


@dataclass
class Search:
    """What is searched, and how a choice (lever -> value) becomes a configuration and a command.

    words: the person's, and what keeps the effective batch constant. base: their configuration, resolved.
    values: lever -> what is tried. parts: (menu, option) -> that section of the configuration.
    pinned: lever -> the words that say why. left_out: what is not tried and why, a line each.
    """

    words: list[str]
    base: config.Config
    effective: int
    values: dict[str, list] = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    pinned: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def config(self, chosen: dict) -> config.Config:
        """The resolved configuration of a choice, without asking Hydra."""
        cfg = copy.deepcopy(self.base)
        for key, value in chosen.items():
            group, _, leaf = key.partition(".")
            if leaf:
                setattr(getattr(cfg, group), leaf, value)
            else:
                setattr(cfg, group, self.parts[key, value])
        cfg.accumulation.steps = self.effective // cfg.batch.per_device
        return cfg

    def command_words(self, chosen: dict) -> list[str]:
        """What to type for a choice after `python train.py`."""
        return self.words + [f"{key}={chosen[key]}" for key in LEVERS if key in chosen]

    def command(self, chosen: dict) -> str:
        return f"python train.py {shlex.join(self.command_words(chosen))}"

    def count(self) -> int:
        """How many configurations there are."""
        return math.prod(map(len, self.values.values()))


# --- fit's own keys -------------------------------------------------------------------------------------


def read_options(words: list[str]) -> tuple[Options, list[str], list[str]]:
    """(options, the other words, problems) of a command line."""
    found, others, problems = {}, [], []
    for word in words:
        key, _, text = word.partition("=")
        if not key.startswith("fit."):
            others.append(word)
        elif key in ("fit.top", "fit.measure"):
            least = 1 if key == "fit.top" else 0
            if text.isdigit() and int(text) >= least:
                found[key[4:]] = int(text)
            else:
                problems.append(f"{word}: must be a whole number, {least} or more.")
        elif key == "fit.keep":
            found["keep"] = tuple(filter(None, (name.strip() for name in text.strip("[]").split(","))))
            problems += [f"fit.keep: {name} is not searched. Searched are {', '.join(LEVERS)}."
                         + validate.nearest(name, LEVERS) for name in found["keep"] if name not in LEVERS]
        else:
            problems.append(f"{key}: there is no such key. Fit has {KEYS}."
                            + validate.nearest(key, ("fit.top", "fit.keep", "fit.measure")))
    return Options(**found), others, problems


# --- the plan --------------------------------------------------------------------------------------------


def compose(*words: str):
    """`command.compose` of an estimate, with Hydra's own complaints as problems."""
    try:
        return command.compose(CONF, *words, "recipe=estimate")
    except (HydraException, OmegaConfBaseException) as error:
        return None, None, [complaints.in_words(error, CONF)]
    except ValueError as error:
        if not complaints.raised_by_hydra(error):
            raise
        return None, None, [str(error).strip()]


def plan(words: list[str], options: Options) -> tuple[Search | None, list[str]]:
    """What to search for a command line without fit's own keys; or no search, and the problems, a line each."""
    words = [word for word in words if word != "recipe=estimate"]
    if "accumulation=auto" in words:
        return None, ["fit chooses the batch itself: leave accumulation=auto out."]
    given = {word.lstrip("+~").split("=")[0]: word for word in words}
    pinned = {lever: word for lever in LEVERS for key, word in given.items()
              if key == lever or key.startswith(f"{lever}.") or (lever == BATCH and key.startswith("accumulation"))}
    smallest = [f"{BATCH}=1"] if BATCH not in (*pinned, *options.keep) and "batch.effective" in given else []
    cfg, _, problems = compose(*words, *smallest)  # a batch of 1 divides the effective one, whatever it is
    if not problems and machine.device(cfg) == "cpu":
        problems = ["fit looks for what fits a GPU, and device=cpu asks for none. Leave it out, and name one with gpu=."]
    if not problems and cfg.parallelism.name != "single":
        problems = [f"fit searches for a single process, and parallelism={cfg.parallelism.name} is several. Leave it out; "
                    "recipe=estimate tells what a rank of several takes."]
    if not problems and options.measure and cfg.gpu.name != "auto" and not gpu.at_hand(cfg.gpu.name):
        here = machine.gpus()[0].name if machine.gpus() else "none"
        problems = [f"fit.measure={options.measure} runs on the GPU at hand, and here is {here}, not gpu={cfg.gpu.name}. "
                    "Leave one of them out."]
    if problems:
        return None, problems
    if cfg.accumulation.name != "none":
        pinned.setdefault(BATCH, f"accumulation={cfg.accumulation.name}")  # an experiment's
    search = Search(words, cfg, cfg.batch.per_device * cfg.accumulation.steps)
    for lever in LEVERS:
        if lever in pinned:
            search.pinned[lever] = pinned[lever]
        elif lever in options.keep:
            search.pinned[lever] = f"{lever}={now(cfg, lever)}"
        elif lever == BATCH:
            search.values[lever] = [2**power for power in range(search.effective.bit_length())
                                    if search.effective % 2**power == 0]
            if "batch.effective" not in given:
                search.words = [*words, f"batch.effective={search.effective}"]
        else:
            search.values[lever] = _allowed(search, lever, [*words, *smallest])
    return search, []


def now(cfg, lever: str):
    """The value of a lever in a configuration."""
    group, _, leaf = lever.partition(".")
    return getattr(getattr(cfg, group), leaf or "name")


def _allowed(search: Search, lever: str, words: list[str]) -> list:
    """The options of a lever that this GPU and the other words leave."""
    allowed = []
    for value in LEVERS[lever] or validate.options(lever, [CONF]):
        if value in NOT_TRIED:
            search.left_out.append(f"{lever}={value}: {NOT_TRIED[value]}.")
            continue
        cfg, _, problems = compose(*words, f"{lever}={value}")
        if problems:
            search.left_out.append(f"{lever}={value}: {' '.join(problems)}")
            continue
        allowed.append(value)
        if "." not in lever:
            search.parts[lever, value] = getattr(cfg, lever)
    return allowed
