"""Where the checkout and its folders lie."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
CONF = ROOT / "conf"
REFERENCE = ROOT / "docs" / "reference"
