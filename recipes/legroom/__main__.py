"""The commands as `python -m legroom NAME ...`; `accelerate launch -m legroom train ...` and torchrun start it too."""

import os
import sys

if __name__ == "__main__":  # a launcher of Hydra's imports this file again in its processes
    if sys.path[0] in ("", os.getcwd()):  # which -m puts there: a random.py beside the script is not ours to import
        del sys.path[0]
    from legroom.cli import commands

    sys.exit(commands.main())
