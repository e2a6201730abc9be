"""Collates rows into batches. Shapes: B rows, T tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

IGNORE_INDEX = -100  # PyTorch's cross entropy ignores this label


def stack(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Rows of the same length as a batch: input_ids (B, T), labels (B,) or (B, T)."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


@dataclass
class Padding:
    """Rows of different lengths as a batch. T is rounded up to a multiple of `multiple`, but not above `longest`."""

    multiple: int
    longest: int
    pad_token_id: int
    with_mask: bool  # causal attention never sees padding on the right, so it needs no mask

    def __call__(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        length = max(len(row["input_ids"]) for row in rows)
        length = max(length, min(-(-length // self.multiple) * self.multiple, self.longest))
        # Each position of padding is 0: a sample of its own.
        fill = {"input_ids": self.pad_token_id, "token_type_ids": 0, "position_ids": 0, "labels": IGNORE_INDEX}
        batch = {
            key: torch.stack(
                [
                    row[key] if row[key].dim() == 0 else pad(row[key], (0, length - len(row[key])), value=fill[key])
                    for row in rows
                ]
            )
            for key in rows[0]
        }
        if self.with_mask:
            lengths = torch.tensor([len(row["input_ids"]) for row in rows])
            batch["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
        return batch
