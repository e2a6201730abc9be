"""Will it fit? A page in the browser: choose a model, GPUs and levers, and see what an estimate says.

python scripts/app.py --open                          on this machine, http://127.0.0.1:7860/
python scripts/app.py --models path/to/my-model       with folders of models to choose from
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

from legroom.cli.app import command

if __name__ == "__main__":
    sys.exit(command.main(sys.argv[1:]))
