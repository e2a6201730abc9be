"""What does not go together: each registered pair is refused in words, and no hint names the other half of it."""

from __future__ import annotations

import copy
import itertools

import levers as levers_page
import pytest
from conftest import compose

from legroom.options import hooks, validate

CONFLICTS = [conflict for each in hooks.registered().values() for conflict in each.conflicts]


@pytest.fixture(scope="module")
def plain():
    return compose("device=cpu").cfg


def each_value(choice: str) -> list[tuple[str, str]]:
    key, _, values = choice.partition("=")
    return [(key, value) for value in (values or "2").split(",")]


def put(cfg, key: str, value: str) -> None:
    """Sets one key of a configuration that has been resolved, whatever its menu's option lacks."""
    *sections, last = key.split(".")
    node = cfg
    for section in sections:
        node = getattr(node, section)
    if hasattr(getattr(node, last), "name"):
        node, last = getattr(node, last), "kind"
        node.name = value
    setattr(node, last, {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value))


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda each: f"{each.this} {each.other}")
def test_both_are_refused_and_one_excludes_the_other(plain, conflict):
    for this, other in itertools.product(each_value(conflict.this), each_value(conflict.other)):
        for first, second in ((this, other), (other, this)):
            cfg = copy.deepcopy(plain)
            assert hooks.is_possible(cfg, "=".join(second))
            put(cfg, *first)
            assert conflict.line(cfg) is None and not hooks.is_possible(cfg, "=".join(second))
        put(cfg, *this)
        line = conflict.line(cfg)
        assert "=".join(this) in line and "=".join(other) in line and line.endswith(f"{conflict.instead}")


def test_a_hint_leaves_out_what_would_be_refused(plain):
    cfg = copy.deepcopy(plain)
    assert {"adapter=qlora", "checkpointing=selective"} <= {lever.overrides for lever in hooks.memory_levers(cfg)}
    cfg.compile, cfg.checkpointing.kind = True, "selective"
    assert any("compile=true" in line for line in validate.section_problems(cfg, "checkpointing"))
    cfg.checkpointing.kind = "none"
    assert not {"adapter=qlora", "checkpointing=selective"} & {lever.overrides for lever in hooks.memory_levers(cfg)}


def test_the_table_of_all_levers_says_what_does_not_go_with_each():
    page = levers_page.PAGE.read_text()
    assert levers_page.with_pairs(page) == page and "`precision=fp8`, `parallelism=fsdp_tp,pipeline,mesh` |" in page
