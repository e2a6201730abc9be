"""Where rows differ in length, further steps are on the longest of the script's dataset, through its own collator."""

from __future__ import annotations

import pytest
import torch
from played_scripts import play

from legroom.foresight.programs import longest_rows, played_run
from legroom.foresight.programs.longest_rows import length
from legroom.foresight.programs.played_device import PlayedDevice

ROWS = """
import torch, torch.nn as nn
LENGTHS = [20 + 3 * (index % 7) for index in range(400)]
LENGTHS[333] = {longest}
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(LENGTHS)
    def __getitem__(self, index):
        ids = torch.arange(LENGTHS[index]) % 50
        return dict(input_ids=ids, labels=ids)
def collate(rows):
    names = ("input_ids", "labels")
    return {{name: nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True) for name in names}}
"""
LOOP = (
    ROWS
    + """
model = nn.Sequential(nn.Embedding(50, 256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 50)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(Rows(), batch_size=4, collate_fn=collate{loader})
while True:
    for batch in loader:
        ids = batch["input_ids"].cuda()
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)
TRAINER = (
    ROWS
    + """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=1024, n_embd=128, n_layer=1, n_head=2))
arguments = TrainingArguments("out", per_device_train_batch_size=4, report_to="none", max_steps={steps})
Trainer(model=model, args=arguments, train_dataset=Rows(), data_collator=collate).train()
"""
)


def test_memory_is_of_the_longest_rows(tmp_path):
    usual = play(tmp_path, LOOP.format(longest=900, loader=""))
    found = play(tmp_path, LOOP.format(longest=900, loader=""), longest=True)
    whole = play(tmp_path, LOOP.format(longest=900, loader=", sampler=[333, 0, 1, 2] * 9"))
    assert found.tensor_bytes == whole.tensor_bytes > 3 * usual.tensor_bytes
    assert found.reserved_bytes == pytest.approx(whole.reserved_bytes, rel=0.05)
    assert (found.step_seconds, found.model_flops) == (usual.step_seconds, usual.model_flops)
    said = "memory is that of a step on the longest of 400 rows, 900 tokens; time that of rows as they come, 29 to 38."
    assert said in found.notes
    assert not [note for note in found.notes if "longer rows" in note]


def test_a_trainer_reads_them_though_it_is_a_batch_ahead(tmp_path):
    found = play(tmp_path, TRAINER.format(longest=900, steps=-1), longest=True)
    usual = play(tmp_path, TRAINER.format(longest=900, steps=-1))
    assert found.parts["activations"] > 5 * usual.parts["activations"]


def test_no_less_is_reserved_than_for_rows_as_they_come(tmp_path, monkeypatch):
    """Where blocks of rows of several lengths have fragmented it, it stays reserved."""
    estimate, made = played_run._estimate, []

    def fragmented(*given):
        made.append(estimate(*given))
        return made[-1] | ({"reserved_bytes": 2**40, "device_used_bytes": 2**40} if len(made) == 1 else {})

    monkeypatch.setattr(played_run, "_estimate", fragmented)
    found = play(tmp_path, LOOP.format(longest=900, loader=""), longest=True)
    assert found.reserved_bytes == found.device_used_bytes == 2**40
    assert (found.tensor_bytes, found.left_bytes) == (made[1]["tensor_bytes"], made[0]["left_bytes"])


def test_no_further_step_without_longer_rows(tmp_path):
    found = play(tmp_path, LOOP.format(longest=10, loader=", sampler=[6, 0, 13, 20] * 9"), longest=True)
    assert found.notes == play(tmp_path, LOOP.format(longest=10, loader=", sampler=[6, 0, 13, 20] * 9")).notes


class Lengths(torch.utils.data.Dataset):
    """Rows of these lengths; one of length 0 cannot be read."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        if not self.lengths[index]:
            raise ValueError("only in the order of an epoch")
        return torch.zeros(self.lengths[index], dtype=torch.long)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return map(Lengths([5, 7]).__getitem__, range(2))


def longer(dataset, looks=True) -> tuple[bool, list[str]]:
    """(whether longer rows are to come, what is said) after two of the dataset's rows have been read."""
    fake = PlayedDevice((8, 0))
    iterator = iter(torch.utils.data.DataLoader(dataset))
    for _ in range(2):
        fake.read(iterator, next(iterator))
    return longest_rows.LongestRows(fake, looks).follow_next(), [*fake.warnings]


@pytest.mark.parametrize(
    "dataset, said",
    [
        (Lengths([5, 7, 6, 9]), "memory is that of a step on the longest of 4 rows, 9 tokens; time"),
        (Lengths([5, 7, 7, 6]), "the batches that were read have rows of 5 to 7 tokens, the longest of 4 rows."),
        (Lengths([5, 5, 5]), None),
        (Lengths([5, 7]), "rows of 5 to 7 tokens; longer rows take more."),  # none is left to read
        (Lengths([5, 7, 6, 0]), "rows of 5 to 7 tokens; longer rows take more."),
        (Stream(), "rows of 5 to 7 tokens; longer rows take more."),
    ],
)
def test_what_is_said_of_rows_of_several_lengths(dataset, said):
    goes_on, notes = longer(dataset)
    assert goes_on is ("memory is that" in str(said))
    assert len(notes) == (said is not None) and str(said or "") in "".join(notes)


def test_a_dataset_is_looked_at_for_a_while_only(monkeypatch):
    dataset = Lengths([5, 7, 6, 6, 9])
    assert longer(dataset, looks=False) == (False, longer(Stream())[1])
    monkeypatch.setattr(longest_rows, "MOST_SECONDS", 0)
    assert longer(dataset) == (False, ["the batches that were read have rows of 5 to 7 tokens, the longest of 1 rows."])
    monkeypatch.undo()
    monkeypatch.setattr(longest_rows, "MOST_ROWS", 4)
    assert longer(dataset)[0] is False
    monkeypatch.setattr(longest_rows, "MOST_ROWS", 5)
    assert longer(dataset)[0] is True


@pytest.mark.parametrize(
    "row, tokens",
    [
        ({"input_ids": [1, 2, 3], "labels": torch.zeros(3), "index": 7}, 6),
        ({"messages": [{"role": "user", "content": "four"}]}, 8),
        ((torch.zeros(3, 8, 8), 1), 0),
        ([5, 6], 2),
        ("text", 4),
    ],
)
def test_how_long_a_row_is(row, tokens):
    assert length(row) == tokens
