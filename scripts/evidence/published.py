"""Predictions beside what others measured and published; nothing is fitted to them.

    python scripts/evidence/published.py [guide] [rtx] [a100] [speed] [intervals] [--into FILE]

guide: the nine V100 rows of the Hugging Face guide, as `+experiment/guide=` has them. rtx: xMem's runs, with the
errors of xMem's own estimates beside ours. a100: full fine-tunings in bf16. speed: steps and single kernels, of
which a part is held out of every fit; its files lie beside the checkout. Rows that cannot be built are listed with the
reason. Prints Markdown; docs/reference/README.md describes the files, docs/results/estimates.md the outcome.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import checkout  # noqa: F401 - `legroom` beside this file

from legroom.machine import host

NAMES = ("guide", "rtx", "a100", "speed", "intervals")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help=f"{', '.join(NAMES)}; all of them where none is named"
    )
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the page there, too")
    options = parser.parse_args()
    unknown = [name for name in options.tables if name not in NAMES]
    if unknown:
        print(f"refused: there is no table {', '.join(unknown)}. Choose of {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    import published_table
    import transformers  # seconds, which --help and a refusal need not wait for

    transformers.logging.set_verbosity_error()
    parts = []
    for name in options.tables or NAMES:
        parts.append(published_table.TABLES[name]())
        print(parts[-1] + "\n", flush=True)
    if options.into:
        libraries = ", ".join(f"{name} {host.version(name)}" for name in ("torch", "transformers", "bitsandbytes"))
        options.into.write_text(
            "# Predictions against published measurements\n\nMade by "
            f"`python {' '.join(['scripts/evidence/published.py', *options.tables])}` "
            f"on {time.strftime('%Y-%m-%d')}, on a CPU, with {libraries}. Every figure that is not a "
            "prediction was measured by others: docs/reference/README.md.\n\n" + "\n\n".join(parts) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
