"""save: the trained model as files that `from_pretrained` opens."""

from __future__ import annotations

from pathlib import Path

FOLDER = "model"


def save_final(loop, rows, folder: Path) -> Path:
    """Write the weights (safetensors), the configuration and the tokenizer to <folder>/model."""
    model = loop.accelerator.unwrap_model(loop.model, keep_fp32_wrapper=True, keep_torch_compile=False)
    target = Path(folder, FOLDER)
    model.config.use_cache = True  # training switched it off; who generates with the model wants it
    model.save_pretrained(target)
    model.config.use_cache = False
    if rows.tokenizer is not None:
        rows.tokenizer.save_pretrained(target)
    return target
