"""Which values of the levers are not tried together, and why. Never imports torch."""

from __future__ import annotations

import itertools
from typing import Any

from legroom.foresight.search.space import APART, BATCH, DIMENSIONS, PACKING, SearchSpace, batches, typed_value
from legroom.options import validate


def exclude(search: SearchSpace) -> None:
    """Enter what is not tried together into search.excluded, with a line in search.left_out where it was refused."""
    for packing, rows in (search.rows or {}).items():
        divisors = batches(rows.effective // (search.base.parallelism.replicas or 1))
        others = [batch for batch in search.values[BATCH] if batch not in divisors]
        search.excluded |= {((PACKING, packing), (BATCH, batch)) for batch in others}
    _exclude_without_effect(search)
    _exclude_refused(search)


def _exclude_without_effect(search: SearchSpace) -> None:
    """Find where a lever makes no difference: there its first value alone is tried."""
    deciding = [lever for lever in ("parallelism", PACKING, BATCH) if lever in search.values]
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


def _ground(search: SearchSpace, lever: str, value: Any, packed: dict[str, Any]) -> dict[str, Any]:
    """A choice with a value of a lever, to which values of other levers are added to see what is refused with it.

    A lever that refuses others has the whole batch in one pass, and the first mode of parallelism that it allows.
    packed: the value of data.packing, where it is searched.
    """
    if not DIMENSIONS[lever].refuses_others:
        return packed | {lever: value}
    share = search.effective_of(packed) // search.base.parallelism.replicas
    batch = {BATCH: share} if BATCH in search.values else {}
    choices = [packed | batch | {lever: value}]
    choices += [choices[0] | {"parallelism": mode} for mode in search.values.get("parallelism", ())]
    return next((choice for choice in choices if not validate.validate(search.config(choice))), choices[0])


def _exclude_refused(search: SearchSpace) -> None:
    """Find which values of the other levers are refused with each mode of parallelism, and with levers that say so."""
    lines = []
    firsts = [each for each in search.values if each == "parallelism" or DIMENSIONS[each].refuses_others]
    for first, lever in itertools.product(firsts, search.values):
        if lever in firsts[: firsts.index(first) + 1] or (first == "parallelism" and lever == BATCH):
            continue
        # With packed rows the whole batch is another one.
        packings = [{}] if lever == PACKING else [{PACKING: value} for value in search.values.get(PACKING, ())] or [{}]
        for one, packed in itertools.product(search.values[first], packings):
            chosen = _ground(search, first, one, packed)
            found = {value: validate.validate(search.config(chosen | {lever: value})) for value in search.values[lever]}
            refused = {value: " ".join(problems) for value, problems in found.items() if problems}
            search.excluded |= {((first, one), *packed.items(), (lever, value)) for value in refused}
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
