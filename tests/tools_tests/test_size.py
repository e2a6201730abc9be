"""tests/tools/size.py: which lines count, and that none counts twice."""

from __future__ import annotations

import size

SOURCE = '''"""A file."""

# a comment
import os  # and one at the end of a line


class Name:
    """Over
    two lines."""

    kept = """two lines
    of text"""

    def call(self):
        """Nothing else."""
        return os.path.join(
            "a",

            # a comment
            "b",
        )
'''


def test_a_statement_counts_with_all_its_lines_and_a_docstring_with_none():
    assert size.python_lines(SOURCE) == 1 + 1 + 2 + 1 + 4


def test_comments_of_scripts_do_not_count():
    assert size.script_lines("/* of two\n   lines */\n\n// one\nlet a = 1; // two\n  /* three */\n") == 1


def test_the_package_is_counted_without_the_menus_that_it_leads_to():
    python, scripts = size.totals()
    assert {"cli", "report", "units.py"} <= set(python) and set(scripts) == {"cli", "report"}
    assert not any("conf" in path.relative_to(size.PACKAGE).parts for path in size.files(size.PACKAGE, ".yaml"))


def test_a_lever_is_found_as_a_word():
    found = size.naming("liger")
    assert len(found) == len(set(found))
    assert {
        "conf/kernels/liger.yaml",
        "recipes/legroom/levers/kernels/apply.py",
        "tests/levers/test_kernels.py",
    } <= set(found)


def test_the_package_is_within_its_budget():
    """Raised only together with what is gained by it, said in the commit."""
    python, _ = size.totals()
    assert sum(python.values()) <= size.BUDGET, "python tests/tools/size.py lists the packages"
