"""The search space of fit: the values of each lever, and what a choice of them is as a configuration and a command.

Never imports torch: a command line is refused before anything heavy is loaded.
"""

import copy
import itertools
import shlex
from dataclasses import dataclass, field
from typing import Any

from legroom import invocation, levers, paths
from legroom.compat import hydra_private
from legroom.config import Config
from legroom.levers.parallelism.rules import CONTEXT, SYNC_EACH_BATCH, replicas
from legroom.machine import host
from legroom.options import compose, hooks, hydra_errors, overrides, own_weights, train, validate
from legroom.options import gpu as gpu_options

BATCH = "batch.per_device"
# What is searched: key -> dimension, in the order in which a command names them. From the menus' hooks.
levers.load_rules()
DIMENSIONS = hooks.dimensions()
MODES: tuple[str, ...] = DIMENSIONS["parallelism"].values or ()  # an option, and a strategy that is not its default
MORE_MODES = DIMENSIONS["parallelism"].asked
# Values that are not tried together: eager attention is slower and takes more memory, and would double the search.
EAGER = ("model.attention", "eager")
APART = (
    (EAGER, ("loss", "chunked")),
    (EAGER, (SYNC_EACH_BATCH, False)),
    *(
        (other, (CONTEXT, ranks))
        for ranks in (DIMENSIONS[CONTEXT].values or ())[1:]
        for other in (EAGER, ("precision", "fp8"))
    ),
)
NOT_SEARCHED = ", ".join(
    f"{name} ({each.not_searched})" for name, each in hooks.registered().items() if each.not_searched
)


@dataclass
class SearchSpace:
    """What is searched, and what a choice (lever -> value) is as a configuration and as a command.

    overrides: those of the command line, and those that keep the effective batch constant. base: their configuration,
    resolved. effective: the effective batch. values: lever -> values that are tried. sections: (menu, option) -> that
    section of the configuration. pinned: lever -> the override or the option of fit that keeps it as it is.
    left_out: what is not tried and why, a line each. not_allowed: levers that change the numbers of a training and that
    nobody has typed, kept or allowed. excluded: values of two or more levers that are not tried together. layouts:
    whether parallelism has layouts of a mesh for values, which arithmetic ranks (`layout_ranking`).
    """

    overrides: list[str]
    base: Config
    effective: int
    values: dict[str, list] = field(default_factory=dict)
    sections: dict[tuple[str, str], Any] = field(default_factory=dict)
    pinned: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    excluded: set[tuple[tuple[str, Any], ...]] = field(default_factory=set)
    not_allowed: list[str] = field(default_factory=list)
    layouts: bool = False

    def config(self, chosen: dict[str, Any]) -> Config:
        """The resolved configuration of a choice, without Hydra."""
        cfg = copy.deepcopy(self.base)
        for key, value in chosen.items():
            if "." not in key:
                setattr(cfg, key, copy.copy(self.sections[key, value]))
        for key, value in chosen.items():
            for name, set_to in {key: value, **self.also(key, value)}.items() if value is not None else ():
                group, _, leaf = name.partition(".")
                if leaf:
                    setattr(getattr(cfg, group), leaf, set_to)
        if "adapter" in chosen and self.base.train.learning_rate == train.default_learning_rate(self.base):
            cfg.train.learning_rate = train.default_learning_rate(cfg)
        cfg.parallelism.replicas = replicas(cfg)
        cfg.accumulation.steps = self.effective // (cfg.batch.per_device * cfg.parallelism.replicas)
        return cfg

    def overrides_of(self, chosen: dict[str, Any]) -> list[str]:
        """The overrides of train.py for a choice."""
        levers = [key for key in DIMENSIONS if key in chosen]
        return self.overrides + [text for key in levers for text in self.lever_overrides(key, chosen[key])]

    def lever_overrides(self, lever: str, value: Any) -> list[str]:
        """The overrides of train.py for one value of a lever; None leaves it as it is."""
        if value is None:
            return []
        if lever == "parallelism":
            return mode_overrides(value, self.base.parallelism.world_size)
        return [f"{key}={typed_value(each)}" for key, each in {lever: value, **self.also(lever, value)}.items()]

    def also(self, lever: str, value: Any) -> dict[str, Any]:
        """Further keys that go with a value of a lever."""
        more = DIMENSIONS[lever].also
        return {} if more is None else more(self.base, value)

    def changes_of(self, chosen: dict[str, Any]) -> int:
        """How many levers a choice sets to other values than they would have; the batch is not one of them."""
        return sum(
            value is not None and value != self.unless_set(chosen, lever)
            for lever, value in chosen.items()
            if lever != BATCH
        )

    def unless_set(self, chosen: dict[str, Any], lever: str) -> Any:
        """The value of a lever unless it is set: of a key, the one that comes with the chosen option of its menu."""
        group, _, leaf = lever.partition(".")
        option = self.sections.get((group, str(chosen.get(group)))) if leaf else None
        return getattr(option, leaf) if option is not None else now(self.base, lever)

    def command(self, chosen: dict[str, Any]) -> str:
        """What to type to train a choice, from pretrained weights on one's own rows where sizes stood in for them."""
        typed = own_weights.filled_in(gpu_options.of_training(self.overrides_of(chosen)), self.base)
        return f"{invocation.command()} {shlex.join([*paths.menus_as_typed(), *typed])}"

    def possible(self, chosen: dict[str, Any]) -> bool:
        """Whether the values of a choice are tried together: some never are, some not in its mode of parallelism."""
        apart = itertools.chain(APART, self.excluded)
        return not any(all(chosen.get(lever) == value for lever, value in values) for values in apart)

    def count(self) -> int:
        """How many configurations there are."""
        return sum(self.possible(dict(zip(self.values, chosen))) for chosen in itertools.product(*self.values.values()))


def batches(share: int) -> list[int]:
    """The values of batch.per_device that are tried: powers of two that divide a replica's share of a step."""
    return [2**power for power in range(share.bit_length()) if share % 2**power == 0]


def mode_overrides(mode: str, gpus: int) -> list[str]:
    """The overrides of train.py for one of MODES, or for a layout of a mesh, with its sizes as key=value."""
    option, *more = mode.split()
    typed = [f"parallelism={option}"]
    for word in more:
        key = word if "=" in word else f"strategy={word}"
        typed.append(f"parallelism.{key}")
    return [*typed, f"parallelism.num_processes={gpus}"]


def typed_value(value: Any) -> str:
    """A value as a person types it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def now(cfg: Config, lever: str) -> Any:
    """The value of a lever in a configuration."""
    group, _, leaf = lever.partition(".")
    return getattr(getattr(cfg, group), leaf or "name")


def not_searched(search: SearchSpace) -> str:
    """What fit does not search, and how to make it search over several GPUs."""
    visible = len(host.gpus()) if search.base.gpu.name == "auto" else 0
    if search.layouts:
        return NOT_SEARCHED
    if "parallelism" in search.values:
        return f"{NOT_SEARCHED}, other modes of parallelism than these (fit.allow=[{','.join(MORE_MODES)}] adds some)"
    if search.base.parallelism.world_size > 1:
        return NOT_SEARCHED
    if visible > 1:
        gpus = f"one GPU of the {visible} that are visible; fit.gpus={visible} searches over all"
    else:
        gpus = "one GPU; fit.gpus=4 searches over four"
    return f"{NOT_SEARCHED}, parallelism ({gpus})"


def compose_estimate(*typed: str) -> compose.Prepared:
    """`compose.compose` of an estimate: (cfg, record, problems), with what cannot be composed as problems."""
    in_quotes = overrides.quoted(typed)
    problems = overrides.problems(in_quotes, paths.menus(), sweeping=False)
    if problems:
        return None, None, problems
    try:
        return compose.compose(paths.CONF, *in_quotes, "recipe=estimate")
    except Exception as error:
        if not hydra_private.raised_by_hydra(error):
            raise
        return None, None, [hydra_errors.explain(error, paths.menus())]


# --- values that are not tried together ---------------------------------------------------------------


def exclude(search: SearchSpace) -> None:
    """Enter what is not tried together into search.excluded, with a line in search.left_out where it was refused."""
    _exclude_without_effect(search)
    _exclude_refused(search)


def _exclude_without_effect(search: SearchSpace) -> None:
    """Find where a lever makes no difference: there its first value alone is tried."""
    deciding = [lever for lever in ("parallelism", BATCH) if lever in search.values]
    for lever in [each for each in search.values if DIMENSIONS[each].has_effect is not None]:
        has_effect = DIMENSIONS[lever].has_effect
        assert has_effect is not None
        choices = [
            tuple(zip(deciding, values)) for values in itertools.product(*(search.values[each] for each in deciding))
        ]
        without = [choice for choice in choices if not has_effect(search.config(dict(choice)))]
        if len(without) == len(choices):
            del search.values[lever]
        else:
            others = search.values[lever][1:]
            search.excluded |= {(*choice, (lever, value)) for choice in without for value in others}


def _ground(search: SearchSpace, lever: str, value: Any) -> dict[str, Any]:
    """A choice with a value of a lever, to which values of other levers are added to see what is refused with it.

    A lever that refuses others has the whole batch in one pass, and the first mode of parallelism that it allows.
    """
    if not DIMENSIONS[lever].refuses_others:
        return {lever: value}
    batch = {BATCH: search.effective // search.base.parallelism.replicas} if BATCH in search.values else {}
    choices = [batch | {lever: value}]
    choices += [choices[0] | {"parallelism": mode} for mode in search.values.get("parallelism", ())]
    return next((choice for choice in choices if not validate.validate(search.config(choice))), choices[0])


def _exclude_refused(search: SearchSpace) -> None:
    """Find which values of the other levers are refused with each mode of parallelism, and with levers that say so."""
    lines = []
    firsts = [each for each in search.values if each == "parallelism" or DIMENSIONS[each].refuses_others]
    for first, lever in itertools.product(firsts, search.values):
        if lever in firsts[: firsts.index(first) + 1] or (first == "parallelism" and lever == BATCH):
            continue
        for one in search.values[first]:
            chosen = _ground(search, first, one)
            found = {value: validate.validate(search.config(chosen | {lever: value})) for value in search.values[lever]}
            refused = {value: " ".join(problems) for value, problems in found.items() if problems}
            search.excluded |= {((first, one), (lever, value)) for value in refused}
            shown = f"{first}={str(one).split()[0].lower()}"
            lines += [f"{shown} with {line}" for line in by_reason(lever, refused)]
    search.left_out += dict.fromkeys(lines)
    for pair in APART:
        if all(value in search.values.get(lever, ()) for lever, value in pair):
            shown = " with ".join(f"{lever}={typed_value(value)}" for lever, value in pair)
            search.left_out.append(f"{shown}: what is slower is not tried with everything.")


def by_reason(lever: str, refused: dict[Any, str]) -> list[str]:
    """A line for each reason, with the values of the lever that are refused for it. refused: value -> reason."""
    alike: dict[str, list] = {}
    for value, why in refused.items():
        alike.setdefault(why.replace(f"{lever}={str(value).split()[0]}", ""), []).append(value)
    return [f"{lever}={', '.join(map(typed_value, values))}: {refused[values[0]]}" for values in alike.values()]
