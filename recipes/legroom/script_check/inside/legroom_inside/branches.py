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
    if not number.isdigit():
        return None
    return _wanted(file, int(number))


@functools.cache
def _wanted(file, number):
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    statement = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.Assert, ast.While)) and node.test.lineno <= number <= node.test.end_lineno:
            statement = node
    if statement is None or isinstance(statement, ast.While):
        return None
    if isinstance(statement, ast.Assert):
        needs = True
    elif _ends(statement.body):
        needs = False
    elif _ends(statement.orelse) or _steps(statement.body):
        needs = True
    elif _steps(statement.orelse):
        needs = False
    else:
        return None
    return needs != _is_negated(statement.test)


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
