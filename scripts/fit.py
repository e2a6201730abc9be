"""The fastest configurations that fit a GPU, with the commands to paste.

    python scripts/fit.py model=gpt2_xl gpu=rtx4090_24gb batch.effective=64 'fit.allow=[precision,optim]'
    python scripts/fit.py model=gpt2_xl gpu=rtx4090_24gb fit.gpus=4 batch.effective=64 data.seq_len=1024

    python scripts/fit.py model=bert_large gpu=l4_24gb,rtx4090_24gb,a100_80gb 'fit.gpus=[1,2,4]' batch.effective=64

Takes the overrides of train.py. What they leave open of precision, checkpointing, attention, optimizer and batch is
searched, and with fit.gpus=4 how four GPUs train together; the effective batch stays the same.
With several GPUs of the menu, gpu='glob(*)' for all, or several numbers of them, each is searched, and the table has
the best configuration of each.

    fit.keep=[checkpointing]     keep these as they are
    fit.allow=[optim,precision]  also search these, which change the numbers a training computes; adapter and
                                 packing are others
    fit.top=5                    how many rows to print
    fit.gpus=4                   how many GPUs train together; [1,2,4] compares
    fit.prices={l4_24gb:0.7}     of a GPU and hour; then the table of several GPUs has the cost of a million tokens
    fit.sort=cost                the table of several GPUs by cost; speed otherwise
    fit.measure=3                run the first 3 rows on the installed GPU, and print predicted beside measured

Exit code 0 when something fits, 3 when nothing does, 2 for a refusal.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

from legroom.cli import fit


def main() -> int:
    argv = sys.argv[1:]
    if not argv or {"-h", "--help"} & set(argv):
        print(__doc__)
        return 0
    return fit.main(argv)


if __name__ == "__main__":
    sys.exit(main())
