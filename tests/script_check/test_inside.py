"""What is put into the process of a script, piece by piece, without a device: numbers, branches, rows, the host."""

import ast
import math
import sys
from pathlib import Path

import pytest
import torch

INSIDE = Path(__file__).parents[2] / "recipes" / "legroom" / "script_check" / "inside"
sys.path.insert(0, str(INSIDE))

from legroom_inside import branches, numbers, rows
from legroom_inside.hollow import LARGE, Hollow
from legroom_inside.values import tensors_of


@pytest.fixture
def notes(monkeypatch):
    """The notes of decisions by unknown numbers."""
    found = []
    monkeypatch.setattr(numbers, "DECISIONS", numbers.Decisions(found.append))
    return found


def test_the_code_for_other_environments_is_python_3_9():
    for file in INSIDE.rglob("*.py"):
        ast.parse(file.read_text(), str(file), feature_version=(3, 9))


def test_it_imports_nothing_but_torch_and_the_standard_library():
    allowed = {"torch", "legroom_inside", *sys.stdlib_module_names}
    optional = {"transformers", "bitsandbytes", "huggingface_hub"}  # inside functions, where the script has them
    for file in INSIDE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            at_the_top = node in tree.body
            for name in names:
                package = name.partition(".")[0]
                assert package in allowed or (package in optional and not at_the_top), f"{file}: {name}"


# --- numbers that nobody computed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calculate", "bound"),
    [
        (lambda number: number + 5, 105),
        (lambda number: 3 * number, 300),
        (lambda number: number - 20, 80),
        (lambda number: number / 4, 25),
        (lambda number: round(number / 3), 33),
        (lambda number: math.ceil(number / 3), 34),
        (lambda number: number % 7, 7),
    ],
)
def test_an_upper_bound_follows_through_arithmetic(notes, calculate, bound):
    found = calculate(numbers.unknown_int(100))
    assert (found if type(found) in (int, float) else found.bound) == pytest.approx(bound)


def test_a_whole_number_is_its_bound_and_said(notes):
    assert int(numbers.unknown_float(12.0)) == 12
    assert "its upper bound, 12, is taken" in notes[0]


def test_a_whole_number_without_a_bound_is_beyond_all_sizes(notes):
    assert int(numbers.unknown_float()) == numbers.BEYOND
    assert "beyond all sizes" in notes[0]


def test_comparisons_are_answered_no_and_said(notes):
    loss = numbers.unknown_float()
    assert not loss < 1
    assert not loss == 2  # noqa: SIM201 - the operator is what is asked
    assert len(notes) == 2


def test_an_infinity_is_compared_truly(notes):
    loss = numbers.unknown_float()
    assert loss < math.inf
    assert not loss > math.inf
    assert notes == []


def test_a_number_is_itself(notes):
    loss = numbers.unknown_float()
    assert loss == loss
    assert notes == []


def test_a_loop_that_a_number_would_end_is_refused(notes):
    loss = numbers.unknown_float()
    with pytest.raises(numbers.Unfollowed, match="a loop that this number would end"):
        while not loss < 1:
            pass


# --- what a line needs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("assert loss < 9\n", True),
        ("if not finite:\n    raise ValueError\n", True),
        ("if loss > 9:\n    sys.exit(1)\n", False),
        ("if norm < 9:\n    optimizer.step()\n", True),
        ("if norm > 9:\n    optimizer.zero_grad()\nelse:\n    optimizer.step()\n", False),
        ("for _ in rows:\n    if loss > 9:\n        continue\n", False),
        ("if loss < best:\n    best = loss\n", None),
        ("while loss > 9:\n    pass\n", None),
    ],
)
def test_a_line_is_answered_as_training_needs_it(tmp_path, code, wanted):
    script = tmp_path / "script.py"
    script.write_text(code)
    line = next(number for number, text in enumerate(code.splitlines(), 1) if "loss" in text or "n" in text[:12])
    line = 2 if code.startswith("for") else line
    assert branches.wanted(f"{script}:{line}") is wanted


# --- the longest rows ---------------------------------------------------------------------------------


class Waveforms(torch.utils.data.Dataset):
    """Rows of floats, of which one is long: neither whole numbers nor of two dimensions."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.zeros(self.lengths[index])


class Budgeted:
    """A batch sampler with a budget of elements: long rows come alone."""

    def __init__(self, lengths, budget):
        self.batches, batch = [], []
        for index, length in enumerate(lengths):
            if batch and (len(batch) + 1) * max(length, *(lengths[one] for one in batch)) > budget:
                self.batches.append(batch)
                batch = []
            batch.append(index)
        self.batches.append(batch)

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def padded(batch):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


@pytest.fixture
def followed(monkeypatch):
    """followed(loader, count): Rows that have read so many batches."""
    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", torch.utils.data.DataLoader.__iter__)

    def read(loader, count=2):
        notes = []
        made = rows.Rows(notes.append)
        made.install()
        reading = iter(loader)
        for _ in range(count):
            next(reading)
        return made, reading, notes

    return read


def test_the_longest_waveforms_are_read_next(followed):
    lengths = [10] * 20
    lengths[15] = 500
    loader = torch.utils.data.DataLoader(Waveforms(lengths), batch_size=4, collate_fn=padded)
    made, reading, notes = followed(loader)
    assert made.follow_longest()
    assert next(reading).shape == (4, 500)
    assert "2,000 elements" in notes[0]


def test_a_batch_is_one_that_the_script_makes(followed):
    lengths = [10] * 40 + [100]
    loader = torch.utils.data.DataLoader(Waveforms(lengths), batch_sampler=Budgeted(lengths, 100), collate_fn=padded)
    made, reading, _ = followed(loader)
    assert not made.follow_longest()  # the long row comes alone: no batch is larger than the others
    assert next(reading).shape == (10, 10)


def test_rows_of_one_length_need_no_further_step(followed):
    loader = torch.utils.data.DataLoader(Waveforms([10] * 20), batch_size=4)
    made, _, notes = followed(loader)
    assert not made.follow_longest()
    assert notes == []


# --- tensors of the host ------------------------------------------------------------------------------


def run_on_host(hollow, func, *args, **kwargs):
    return hollow.run(func, args, kwargs, tensors_of(args))


def test_large_tensors_of_the_host_are_not_computed():
    hollow, aten = Hollow(), torch.ops.aten
    weight = torch.empty(LARGE)
    is_done, result = run_on_host(hollow, aten.normal_.default, weight)
    assert is_done
    assert result is weight
    assert hollow.holds(weight)
    is_done, cast = run_on_host(hollow, aten._to_copy.default, weight, dtype=torch.bfloat16)
    assert is_done
    assert cast.dtype == torch.bfloat16
    assert hollow.holds(cast)


def test_whole_numbers_and_small_tensors_of_the_host_are_computed():
    hollow, aten = Hollow(), torch.ops.aten
    assert run_on_host(hollow, aten.add.Tensor, torch.arange(2 * LARGE), 1) == (False, None)
    assert run_on_host(hollow, aten.normal_.default, torch.empty(16)) == (False, None)


def test_a_copy_to_the_device_is_left_to_torch():
    hollow, aten = Hollow(), torch.ops.aten
    moved = run_on_host(hollow, aten._to_copy.default, torch.empty(LARGE), device=torch.device("cuda"))
    assert moved == (False, None)
