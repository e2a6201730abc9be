"""The commands as `python -m legroom NAME ...`; `accelerate launch -m legroom train ...` and torchrun start it too."""

import sys

from legroom.cli import commands

if __name__ == "__main__":  # a launcher of Hydra's imports this file again in its processes
    sys.exit(commands.main())
