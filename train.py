#!/usr/bin/env python
"""The command `train` of a checkout. The same as `legroom train`, without an installation.

python train.py precision=bf16 optim=adam8bit
python train.py --help
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "recipes"))

if __name__ == "__main__":  # a launcher of Hydra's imports this file again in its processes
    from legroom.cli import commands

    sys.exit(commands.script("train"))
