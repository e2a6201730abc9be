"""Make the table, CSV and pictures of a sweep, or of several, from their records.

    python scripts/report.py outputs/2026-11-21/sweep-12-00-00
    python scripts/report.py before/ after/ --into comparison --baseline "precision=fp32 optim=adamw"

Without --into the files are written to the folder given, or for several folders to outputs/report.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

from legroom.cli import report

if __name__ == "__main__":
    sys.exit(report.main(sys.argv[1:], (__doc__ or "").partition("\n")[0]))
