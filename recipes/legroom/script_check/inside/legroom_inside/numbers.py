"""Numbers that nobody computed: they can be printed and calculated with, and whatever they decide is noted.

A float stands as 1.0. A whole number stands as its upper bound where one is known (`(mask > 0).sum()` is at most the
number of elements) and otherwise as BEYOND, which no memory holds: a size is never too small without a word.
"""

from __future__ import annotations

import dis
import math
import sys

from legroom_inside import branches, places

BEYOND = 2**40 + 15  # a whole number without a bound: as a size it is refused by torch or ends in out of memory
MOST_DECISIONS = 5000  # at one line: a loop that a number would end
BINARY = ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod")
COMPARING = ("COMPARE_OP", "CONTAINS_OP")  # of Python's bytecode


class Decisions:
    """What is decided by numbers that nobody computed. say: takes a note. yes: lines that are answered yes; all others
    are answered no. strict: nothing may be decided."""

    def __init__(self, say, yes=(), strict=False):
        self.say = say
        self.yes = set(yes)
        self.strict = strict
        self.counts = {}

    def answer(self):
        """The answer to a comparison: as the line that compares wants it, where that can be read, and otherwise no."""
        where, code = places.deciding()
        self.counts[where] = self.counts.get(where, 0) + 1
        if self.strict:
            raise Unfollowed(f"{where}: the script decides by a number that only a run computes (--strict).")
        if self.counts[where] > MOST_DECISIONS:
            raise Unfollowed(
                f"{where}: the script has decided {MOST_DECISIONS} times by a number that only a run computes: a loop "
                "that this number would end cannot be followed."
            )
        is_yes = where in self.yes or bool(branches.wanted(code))
        answer = "yes" if is_yes else "no"
        self.say(f"{where} decides by a number that nobody computed; the answer is taken to be {answer}.")
        return is_yes

    def whole(self, bound, used_as="a whole number"):
        """The whole number that stands for one that nobody computed, with a note. bound: its upper bound, or None."""
        where = places.line()
        if bound is None:
            self.say(f"{where} makes {used_as} of a number that nobody computed: it is taken as beyond all sizes.")
            return BEYOND
        self.say(f"{where} makes {used_as} of a number that nobody computed: its upper bound, {bound}, is taken.")
        return bound


class Unfollowed(BaseException):
    """The script cannot be followed further. It is no Exception, so that no `except` of the script takes it."""


DECISIONS = Decisions(lambda text: None)  # the process's own; `begin` sets it


def _bound(number):
    """The upper bound of a number; None: not known."""
    if isinstance(number, (UnknownFloat, UnknownInt)):
        return number.bound
    return number if isinstance(number, (int, float)) else None


def _calculated_bound(name, left, right):
    """The upper bound of a result, for numbers that are at least 0."""
    left_bound = _bound(left)
    right_bound = _bound(right)
    if left_bound is None or right_bound is None:
        return None
    right_is_known = not isinstance(right, (UnknownFloat, UnknownInt))
    if name == "add":
        return left_bound + right_bound
    if name == "mul" and left_bound >= 0 and right_bound >= 0:
        return left_bound * right_bound
    if name == "sub":
        return left_bound - right if right_is_known else left_bound
    if name in ("truediv", "floordiv") and right_is_known and right > 0:
        return left_bound / right
    if name == "mod":
        return right_bound
    return None


def _if_known(function, bound):
    return None if bound is None else function(bound)


def _is_infinite(*others):
    return any(isinstance(other, float) and math.isinf(other) for other in others)


def _calculating(name, swapped):
    def calculate(self, other, *_):
        if not isinstance(other, (int, float)):
            return NotImplemented
        if swapped:
            bound = _calculated_bound(name, other, self)
        else:
            bound = _calculated_bound(name, self, other)
        if isinstance(self, int) and isinstance(other, int) and name != "truediv":
            return unknown_int(bound)
        return unknown_float(bound)

    return calculate


def _comparing(name):
    def compare(self, *others):
        if _is_infinite(*others):
            return getattr(float, name)(1.0, *others)  # it is finite
        return DECISIONS.answer()

    return compare


def _equal(self, other):
    caller = sys._getframe(1)
    operation = dis.opname[caller.f_code.co_code[caller.f_lasti]]
    if operation not in COMPARING or _is_infinite(other):
        return self is other  # a dictionary or a set looks for a key
    if other is self:
        return True  # `loss == loss`: it is a number
    return DECISIONS.answer()


def _not_equal(self, other):
    if other is self:
        return False
    if _is_infinite(other):
        return True
    return DECISIONS.answer()


class Unknown:
    """What both kinds share. bound: the upper bound, or None."""

    bound = None

    def __neg__(self):
        return unknown_float(None)

    def __abs__(self):
        return self

    def __round__(self, digits=None):
        if digits is not None:
            return self
        return unknown_int(_if_known(round, self.bound))

    def __ceil__(self):
        return unknown_int(_if_known(math.ceil, self.bound))

    def __floor__(self):
        return unknown_int(_if_known(math.floor, self.bound))

    __trunc__ = __floor__

    def __int__(self):
        return DECISIONS.whole(_if_known(int, self.bound))

    def item(self):
        """The number itself: one that numpy has made has this method (`losses.mean().item()`)."""
        return self

    tolist = item

    def __reduce__(self):
        if isinstance(self, float):
            return float, (1.0,)
        return int, (int.__int__(self),)

    __eq__ = _equal
    __ne__ = _not_equal
    __lt__ = _comparing("__lt__")
    __le__ = _comparing("__le__")
    __gt__ = _comparing("__gt__")
    __ge__ = _comparing("__ge__")

    def __bool__(self):
        return DECISIONS.answer()

    def __hash__(self):
        return id(self)


for _name in BINARY:
    setattr(Unknown, f"__{_name}__", _calculating(_name, False))
    setattr(Unknown, f"__r{_name}__", _calculating(_name, True))


class UnknownFloat(Unknown, float):
    """A float that nobody computed."""

    def is_integer(self):
        return False


class UnknownInt(Unknown, int):
    """A whole number that nobody computed. Its value, as torch and C read it, is its upper bound or BEYOND."""

    def __index__(self):
        return DECISIONS.whole(_if_known(int, self.bound), "a size or a position")


def unknown_float(bound=None):
    number = UnknownFloat(1.0)
    number.bound = bound
    return number


def unknown_int(bound=None):
    if bound is None:
        return UnknownInt(BEYOND)
    number = UnknownInt(int(bound))
    number.bound = int(bound)
    return number
