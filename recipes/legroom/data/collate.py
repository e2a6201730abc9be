"""Collates rows into batches. Shapes: B rows, T tokens."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

IGNORE_INDEX = -100  # PyTorch's cross entropy ignores this label


def stack(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Rows of the same length as a batch: input_ids (B, T), labels (B,) or (B, T)."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


@dataclass
class Padding:
    """Rows of different lengths as a batch. T is rounded up to a multiple of `multiple`, but not above `longest`.

    side: of the padding, 'right' or 'left'. row_labels: labels are of a row as a whole, not of its tokens.
    """

    multiple: int
    longest: int
    pad_token_id: int
    with_mask: bool  # causal attention never sees padding on the right; a loss that balances experts counts it
    side: str = "right"
    row_labels: bool = False

    def length(self, longest: int) -> int:
        """T of a batch whose longest row has so many tokens."""
        return max(longest, min(-(-longest // self.multiple) * self.multiple, self.longest))

    def __call__(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        length = self.length(max(len(row["input_ids"]) for row in rows))
        batch = {}
        for key in rows[0]:
            values = [row[key] for row in rows]
            of_tokens = values[0].dim() > 0 and not (key == "labels" and self.row_labels)
            if of_tokens:
                values = [self._padded(value, key, length) for value in values]
            batch[key] = torch.stack(values)
        if self.with_mask:
            lengths = torch.tensor([len(row["input_ids"]) for row in rows])
            mask = (torch.arange(length) < lengths[:, None]).long()
            batch["attention_mask"] = mask.flip(1) if self.side == "left" else mask
        return batch

    def _padded(self, value: torch.Tensor, key: str, length: int) -> torch.Tensor:
        """The values of a row's tokens, (T,), with padding to a length. key: their argument of the model."""
        fill = {
            "input_ids": self.pad_token_id,
            "labels": IGNORE_INDEX,
            "token_type_ids": 0,
            "position_ids": 0,  # each token of padding is a sample of its own
        }
        missing = length - len(value)
        if self.side == "left":
            return pad(value, (missing, 0), value=fill[key])
        return pad(value, (0, missing), value=fill[key])
