"""From the command line of fit to its search spaces, or to the problems that prevent a search. Never imports torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from legroom import paths, units
from legroom.config import Config
from legroom.foresight.search import layouts, space
from legroom.foresight.search.request import Options, Place
from legroom.foresight.search.space import BATCH, DIMENSIONS, MODES, SearchSpace
from legroom.levers.parallelism import rules as parallelism
from legroom.machine import host
from legroom.options import menus
from legroom.options.batch import effective_batch
from legroom.options.overrides import FOLDER_KEYS

# Overrides that no printed command repeats: two of them in one folder would refuse each other.
OF_ONE_RUN = (*FOLDER_KEYS, "resume")


@dataclass
class _Request:
    """What a command line says about the levers.

    given: key -> override. pinned: lever -> the override that sets it or one of its keys. keeps_mode: parallelism is
    typed or kept. mode: overrides for the first of MODES where modes are searched. smallest: a batch of 1 where the
    batch is searched, because 1 divides any effective batch.
    """

    overrides: list[str]
    options: Options
    given: dict[str, str]
    pinned: dict[str, str]
    keeps_mode: bool
    mode: list[str]
    smallest: list[str]


def _read(overrides: list[str], options: Options) -> _Request:
    given = {override.lstrip("+~").split("=")[0]: override for override in overrides}
    pinned = {}
    for lever in DIMENSIONS:
        for key, override in given.items():
            if _sets(key, lever):
                pinned[lever] = override
    fixed = (*pinned, *options.keep)
    keeps_mode = "parallelism" in fixed
    gpus = options.gpus or 1
    if keeps_mode and options.gpus and "parallelism.num_processes" not in given:
        overrides = [*overrides, f"parallelism.num_processes={options.gpus}"]
    mode = []
    if gpus > 1 and not keeps_mode:
        first = layouts.MODE if layouts.MODE in options.allow else MODES[0]
        mode = space.mode_overrides(first, gpus)
    smallest = []
    if BATCH not in fixed and "batch.effective" in given:
        smallest = [f"{BATCH}=1"]
    return _Request(overrides, options, given, pinned, keeps_mode, mode, smallest)


def _sets(key: str, lever: str) -> bool:
    """Whether a key that is typed decides a lever."""
    if key == lever or key.startswith(f"{lever}."):
        return True
    return lever == BATCH and key.startswith("accumulation")


def plan(overrides: list[str], options: Options) -> tuple[SearchSpace | None, list[str]]:
    """The search space of a command line without fit's own keys; or None, and the problems, a line each."""
    of_one_run = [text for text in overrides if text.lstrip("+").partition("=")[0] in OF_ONE_RUN]
    overrides = [text for text in overrides if text != "recipe=estimate" and text not in of_one_run]
    if "accumulation=auto" in overrides:
        return None, ["fit chooses the batch itself: leave accumulation=auto out."]
    request = _read(overrides, options)
    cfg, _, problems = space.compose_estimate(*request.overrides, *request.mode, *request.smallest)
    if cfg is not None and request.smallest and cfg.batch.effective:
        replicas = parallelism.replicas(cfg)
        if cfg.batch.effective % replicas:
            problems = [problem for problem in problems if getattr(problem, "key", None) != "batch.effective"]
            problems.append(_uneven(cfg.batch.effective, replicas))
    asks_for_layouts = layouts.MODE in options.allow
    if cfg is not None and not problems and asks_for_layouts:
        problems = layouts.problems(cfg, options.allow, options.gpus or 1, request.keeps_mode)
    if cfg is not None and not problems:
        problems = _device_problems(cfg) or _count_problems(cfg, options, request.given)
    if cfg is None or problems:
        return None, problems
    if cfg.accumulation.kind != "none":
        request.pinned.setdefault(BATCH, f"accumulation={cfg.accumulation.name}")  # set by an experiment's file
    effective = effective_batch(cfg)
    ranks = cfg.parallelism.replicas * cfg.parallelism.stage_ranks  # each has as many micro-batches as it needs
    share = effective // ranks
    search = SearchSpace(request.overrides, cfg, effective)
    search.left_out += [f"{text}: of one run; type it with the command that you choose." for text in of_one_run]
    search.layouts = asks_for_layouts
    for lever in DIMENSIONS:
        if not asks_for_layouts or lever in layouts.SEARCHED or lever in request.pinned:
            _add_lever(search, lever, request, share)
    if asks_for_layouts:
        search.left_out.append(layouts.not_tried())
        layouts.add_strategies(search)
    space.exclude(search)
    return search, []


def _add_lever(search: SearchSpace, lever: str, request: _Request, share: int) -> None:
    """Enter a lever into the search space, as pinned or with the values to try. share: the largest batch."""
    if lever == "parallelism" and not request.mode:
        if request.keeps_mode or space.now(search.base, lever) != "single":
            typed = " ".join(override for override in request.overrides if override.startswith(lever))
            search.pinned[lever] = typed or f"{lever}={space.now(search.base, lever)}"
    elif lever in request.pinned:
        search.pinned[lever] = request.pinned[lever]
    elif lever in request.options.keep:
        value = None
        if DIMENSIONS[lever].has_effect is None:
            value = space.now(search.base, lever)
        search.pinned[lever] = f"{lever}={space.typed_value(value)}"
    elif DIMENSIONS[lever].has_effect is not None:
        search.values[lever] = list(DIMENSIONS[lever].values or ())
    elif lever == BATCH:
        search.values[lever] = layouts.batches(search.effective) if search.layouts else space.batches(share)
        if "batch.effective" not in request.given:
            search.overrides = [*request.overrides, f"batch.effective={search.effective}"]
    else:
        _add_menu(search, lever, request, share)


def _add_menu(search: SearchSpace, lever: str, request: _Request, share: int) -> None:
    """Enter the options of a menu that are allowed, or the one there is."""
    values = _values(search, lever, request)
    value = space.now(search.base, lever)
    if value is None:  # an option of a menu may lack the key, and so has the first value
        values = values[1:]
    allowed = _allowed(search, lever, values, request, share)
    if allowed:
        search.values[lever] = allowed
    elif value is not None:
        search.pinned[lever] = f"{lever}={space.typed_value(value)}"
    if value is not None and DIMENSIONS[lever].changes_numbers and lever not in request.options.allow:
        search.not_allowed.append(lever)


def _values(search: SearchSpace, lever: str, request: _Request) -> Sequence[Any]:
    """The options of a lever that are tried: all, or those that compute the same where it is not allowed to change."""
    dimension = DIMENSIONS[lever]
    if lever == "parallelism" and search.layouts:
        return layouts.all_of(search.base)
    if dimension.changes_numbers and lever not in request.options.allow:
        if dimension.alike is None:
            return ()
        return dimension.alike(search.base)
    asked = [value for value in dimension.asked if value in request.options.allow]
    return [*(dimension.values or menus.options(lever, paths.menus())), *asked]


def _tried_with(lever: str, request: _Request, share: int) -> list[list[str]]:
    """The overrides with which a value of a lever is tried; it is allowed if it is with one of these."""
    if lever == "parallelism":
        return [[*request.overrides, *request.smallest]]
    if not DIMENSIONS[lever].refuses_others:
        return [[*request.overrides, *request.mode, *request.smallest]]
    modes = [[]]
    if request.mode:
        modes = [space.mode_overrides(mode, request.options.gpus or 1) for mode in MODES]
    largest = []
    if request.smallest:
        largest = [f"{BATCH}={share}"]
    return [[*request.overrides, *mode, *largest] for mode in modes]


def _allowed(search: SearchSpace, lever: str, values: Sequence[Any], request: _Request, share: int) -> list[Any]:
    """The options of a lever that the GPU and the other overrides allow; the others are noted in search.left_out."""
    allowed = []
    refused = {}
    dimension = DIMENSIONS[lever]
    for value in values:
        typed = [key for key in search.also(lever, value) if key in request.given]
        if typed:
            refused[value] = f"{typed[0]} is typed."
            continue
        cfg = None
        problems: list[str] = []
        for overrides in _tried_with(lever, request, share):
            cfg, _, problems = space.compose_estimate(*overrides, *search.lever_overrides(lever, value))
            if not problems:
                break
        why = None
        if cfg is not None and dimension.not_tried is not None:
            why = dimension.not_tried(cfg)
        if why is not None:
            refused[value] = f"{why}."
            continue
        if problems:
            refused[value] = " ".join(problems)
            continue
        allowed.append(value)
        if "." not in lever:
            search.sections[lever, value] = getattr(cfg, lever)
    search.left_out += space.by_reason(lever, refused)
    return allowed


def plan_all(
    places: list[Place], others: list[str], options: Options, show_status: Callable[[str], None] = lambda text: None
) -> tuple[list[tuple[Place, SearchSpace]], dict[Place, list[str]]]:
    """(the places with their search spaces, the other places with their problems).

    All have the same effective batch, so that their steps can be compared: the typed one, or that of the most GPUs that
    can be searched, with the default of each. show_status: called with the progress.
    """
    if options.counts and not any(text.startswith("batch.effective=") for text in others):
        most_first = sorted(places, key=lambda place: place.count or 1, reverse=True)
        for _, search, _ in _plans(most_first, others, options, show_status):
            if search is not None:
                others = [*others, f"batch.effective={search.effective}"]
                break
    planned = []
    problems = {}
    for place, search, lines in _plans(places, others, options, show_status):
        if search is not None:
            planned.append((place, search))
        else:
            problems[place] = lines
    return planned, problems


def _plans(
    places: list[Place], others: list[str], options: Options, show_status: Callable[[str], None]
) -> Iterator[tuple[Place, SearchSpace | None, list[str]]]:
    """(place, its search space or None, its problems), one after another.

    Where the first two GPUs have the same problems, these have nothing to do with the GPU, and are those of all in that
    number.
    """
    said: dict[int | None, list[list[str]]] = {}
    for number, place in enumerate(places, 1):
        show_status(f"{number} of {len(places)}, {place.label}: what can be searched")
        first = said.setdefault(place.count, [])
        if len(first) > 1 and first[0] == first[1] != []:
            yield place, None, first[0]
            continue
        search, found = plan(place.overrides(others, options), place.options(options))
        lines = [str(line) for line in found]
        first.append(lines)
        yield place, search, lines


# --- problems -----------------------------------------------------------------------------------------


def _device_problems(cfg: Config) -> list[str]:
    """No GPU to fit, or no predicted speed."""
    if not cfg.target.on_gpu:
        return ["fit searches for what fits a GPU, and device=cpu is given. Leave it out, and name a GPU with gpu=."]
    if cfg.parallelism.steps_on_host:
        return [
            "fit searches for the fastest configuration, and with parallelism.cpu_offload or parallelism.offload the "
            "optimizer's step runs on the host, whose speed is assumed. Leave it out; recipe=estimate says what such a "
            "rank needs, and a time with that assumption."
        ]
    return []


def _count_problems(cfg: Config, options: Options, given: dict[str, str]) -> list[str]:
    """A number of GPUs that is contradicted, or larger than what is visible."""
    mode = cfg.parallelism
    asked = options.gpus
    typed = given.get("parallelism.num_processes")
    if mode.kind == "single" and typed and typed != "parallelism.num_processes=1":
        return [
            f"{typed} has no effect on parallelism={mode.name}. Type fit.gpus={typed.split('=')[1]} instead, or a mode "
            "with it: parallelism=fsdp."
        ]
    if asked and asked != mode.num_processes:
        other = typed or f"parallelism={mode.name}"
        gpus = units.plural(mode.num_processes or 1, "GPU")
        return [
            f"fit.gpus={asked} contradicts {other}, which is {gpus}. Leave fit.gpus out, or choose parallelism=ddp or "
            f"parallelism=fsdp for {asked}."
        ]
    visible = len(host.gpus())
    if asked and cfg.gpu.kind == "auto" and asked > visible:
        are = "is" if visible == 1 else "are"
        return [
            f"fit.gpus={asked}, and {visible} {are} visible here. Type fit.gpus={visible}, or name the GPU: "
            "gpu=rtx4090_24gb."
        ]
    return []


def _uneven(effective: int, replicas: int) -> str:
    above = effective - effective % replicas + replicas
    below = f"{above - replicas} or " if above > replicas else ""
    return (
        f"batch.effective={effective} cannot be divided by {replicas} GPUs. Type batch.effective={below}{above}, "
        "or another number of GPUs."
    )
