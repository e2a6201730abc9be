"""Temporary replacements are undone, also after an error."""

from __future__ import annotations

import pytest

from legroom.compat.patching import patched


class Base:
    inherited = 1


class Owner(Base):
    own = 2


@pytest.mark.parametrize("fails", [False, True])
def test_attributes_are_restored(fails):
    try:
        with patched(Owner, own=3, inherited=4):
            assert (Owner.own, Owner.inherited) == (3, 4)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert (Owner.own, Owner.inherited) == (2, 1) and "inherited" not in vars(Owner)


def test_a_name_that_does_not_exist_is_an_error():
    with pytest.raises(AttributeError, match="renamed"), patched(Owner, own=3, renamed=4):
        pass
    assert Owner.own == 2
