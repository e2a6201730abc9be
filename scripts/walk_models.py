#!/usr/bin/env python
"""Train a tiny model of every architecture that transformers has; write docs/models.md.

    python scripts/walk_models.py                     all, under 30 minutes on two cores
    python scripts/walk_models.py llama bert          these again; the page, if --folder has the others

Each architecture of transformers' auto mappings for causal language modelling and sequence classification is made
tiny from its configuration class, trained two steps in the raw loop, estimated, saved, and loaded again; or refused in
words.
Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "recipes"))

from legroom.cli import model_walk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/models.md", metavar="FILE")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/model_walk", help="for models and results")
    parser.add_argument("--at-once", type=int, default=2, help="architectures at a time")
    options = parser.parse_args()
    return model_walk.run(options.names, options.folder.absolute(), options.into, options.at_once)


if __name__ == "__main__":
    sys.exit(main())
