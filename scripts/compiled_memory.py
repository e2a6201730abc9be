"""The memory of really compiled steps on this CPU beside what an estimate with compile=true predicts for them.

    python scripts/compiled_memory.py     # the rows of docs/foresight.md: some ten minutes on two cores; needs g++
    python scripts/compiled_memory.py "model=llama_tiny precision=bf16"

Prints a table in Markdown; MiB of live tensors at the peak of a step. docs/foresight.md has it, and what it shows.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "recipes"))

DROPOUT = "model.dropout=0.1"
ROWS = [
    *(f"model={model}{more}" for model in ("bert_tiny", "llama_tiny") for more in ("", f" {DROPOUT}")),
    *(f"model={model} precision=bf16{more}" for model in ("bert_tiny", "llama_tiny") for more in ("", f" {DROPOUT}")),
    f"model=gpt2_tiny precision=bf16 {DROPOUT}",
    *(f"model={model} checkpointing=full" for model in ("bert_tiny", "llama_tiny")),
    f"model=bert_tiny precision=bf16 {DROPOUT} checkpointing=full",
    f"model=llama_tiny precision=bf16 {DROPOUT} checkpointing=full",
]


def main(rows: list[str]) -> int:
    if any(row.startswith("-") for row in rows):
        print(__doc__)
        return 0 if {*rows} & {"-h", "--help"} else 2
    import transformers  # seconds, which --help need not wait for

    from legroom.foresight.validation import compiled_memory

    transformers.logging.set_verbosity_error()
    found = []
    for row in rows or ROWS:
        try:
            found.append(compiled_memory.compare(row))
        except ValueError as error:
            print(f"refused: {error}", file=sys.stderr)
            return 2
        print(f"{len(found)} of {len(rows or ROWS)}: {row}", file=sys.stderr, flush=True)
    print(compiled_memory.page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
