"""Rows to batches."""

from __future__ import annotations

from dataclasses import dataclass

IGNORE_INDEX = -100  # the label that PyTorch's cross entropy leaves out


# --- batches -----------------------------------------------------------------------------------


def stack(rows: list[dict]) -> dict:
    """Rows of one length as a batch: input_ids (B, T), labels (B,) or (B, T)."""
    import torch

    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


@dataclass
class Padding:
    """Rows of different lengths as a batch, T rounded up to a multiple but not past the longest allowed."""

    multiple: int
    longest: int
    pad_token_id: int
    with_mask: bool  # a causal model never looks to the right, so padding there needs no mask

    def __call__(self, rows: list[dict]) -> dict:
        import torch
        from torch.nn.functional import pad

        length = max(len(row["input_ids"]) for row in rows)
        length = max(length, min(-(-length // self.multiple) * self.multiple, self.longest))
        fill = {"input_ids": self.pad_token_id, "token_type_ids": 0, "labels": IGNORE_INDEX}
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
