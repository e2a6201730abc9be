"""What a line that decides by an unknown number needs for training to go on: read from its own code.

An assertion holds; a branch that ends the script, or leaves the step out, is not taken; one that holds the optimizer's
step is. Of any other line nothing is said.
"""

from __future__ import annotations

import ast
import functools
import linecache

ENDS = ("exit", "_exit", "abort", "quit")


def wanted(where):
    """True or False: the answer that the line at "file:number" needs; None: it is not known."""
    file, _, number = where.rpartition(":")
    return _wanted(file, int(number)) if number.isdigit() else None


@functools.cache
def _wanted(file, number):
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    found = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.Assert, ast.While)) and node.test.lineno <= number <= node.test.end_lineno:
            found = node
    if found is None or isinstance(found, ast.While):
        return None
    if isinstance(found, ast.Assert):
        needs = True
    elif _ends(found.body):
        needs = False
    elif _ends(found.orelse) or _steps(found.body):
        needs = True
    elif _steps(found.orelse):
        needs = False
    else:
        return None
    return needs != _is_negated(found.test)


def _is_negated(test):
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _ends(body):
    """Whether a branch ends the script or leaves out the rest of a step."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, (ast.Raise, ast.Continue, ast.Break, ast.Return)):
        return True
    return any(name in ENDS for name in _called(last))


def _steps(body):
    """Whether a branch holds the step of an optimizer."""
    return any("step" in _called(statement) for statement in body)


def _called(statement):
    """The names of all functions and methods that a statement calls."""
    names = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            names.append(getattr(node.func, "attr", getattr(node.func, "id", "")))
    return names
