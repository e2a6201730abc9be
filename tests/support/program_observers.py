"""Observers for tests of programs: what `process.Asked.observer` names."""

import contextlib


@contextlib.contextmanager
def counts(options, watch):
    """Finds how many steps there were, and what it was given."""
    yield lambda: {"steps": watch.done, "skipped": watch.skipped, "options": options}
