"""What is put into the process of a script, piece by piece, without a device: numbers, branches, rows, the host."""

import ast
import builtins
import importlib
import math
import sys
import types
from pathlib import Path

import numpy
import pytest
import torch

INSIDE = Path(__file__).parents[2] / "recipes" / "legroom" / "script_check" / "inside"
sys.path.insert(0, str(INSIDE))

from legroom_inside import arrays, branches, compilation, numbers, plain, ranks, rows, storages
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
    optional = {
        "transformers",
        "bitsandbytes",
        "huggingface_hub",
        "numpy",
    }  # inside functions, where the script has them
    for file in INSIDE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            at_the_top = node in tree.body
            for name in names:
                package = name.partition(".")[0]
                needs_it = file.name == "unknown_array.py" and package == "numpy"  # imported where numpy is there
                assert package in allowed or needs_it or (package in optional and not at_the_top), f"{file}: {name}"


# --- what a storage is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allocated, in_graph, freed, expected",
    [
        (storages.FORWARD, True, "in the backward pass", storages.ACTIVATION),
        (storages.FORWARD, True, "behind it", storages.ACTIVATION),  # a leaf, as embeddings beside an adapter
        (storages.FORWARD, True, "never", storages.ACTIVATION),
        (storages.FORWARD, True, "before it", storages.OTHER),
        (storages.FORWARD, False, "in the backward pass", storages.ACTIVATION),  # of a reentrant checkpoint
        (storages.FORWARD, False, "before it", storages.OTHER),
        (storages.FORWARD, False, "never", storages.OTHER),
        (storages.BACKWARD, True, "behind it", storages.ACTIVATION),  # recomputed
        (storages.BACKWARD, False, "behind it", storages.OTHER),  # a gradient of something in between
    ],
)
def test_activations_are_what_the_backward_pass_finds(allocated, in_graph, freed, expected):
    entry, other = (storages.Entry(8, storages.OTHER, phase, None, "", 0) for phase in (allocated, storages.BACKWARD))
    entry.in_graph = in_graph
    frees = {"before it": storages.FORWARD, "in the backward pass": storages.BACKWARD, "behind it": storages.FORWARD}
    events = [(entry, 1, allocated)]
    if freed == "before it":
        events.append((entry, -1, storages.FORWARD))
    events.append((other, 1, storages.BACKWARD))
    if freed in ("in the backward pass", "behind it"):
        events.append((entry, -1, frees[freed]))
    storages.settle_activations(events)
    assert entry.kind == expected


def test_whole_numbers_are_no_activations():
    entry = storages.Entry(8, storages.OTHER, storages.FORWARD, None, "", 0)
    entry.in_graph = entry.is_index = True
    storages.settle_activations([(entry, 1, storages.FORWARD)])
    assert entry.kind == storages.OTHER


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


def test_a_number_that_numpy_has_made_is_asked_for_its_item(notes):
    number = numbers.unknown_float(100)
    assert number.item() is number.tolist() is number


def test_a_loop_that_a_number_would_end_is_refused(notes):
    loss = numbers.unknown_float()
    with pytest.raises(numbers.Unfollowed, match="a loop that this number would end"):
        while not loss < 1:
            pass


# --- what Python and numpy make of them ---------------------------------------------------------------


@pytest.fixture
def script_module(tmp_path, monkeypatch):
    """script_module(code): a module of the script, in which `loss` is unknown."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = plain.Plain(lambda value: isinstance(value, torch.Tensor) and value.numel() == 1)
    made.install()
    monkeypatch.setattr(builtins, "loss", torch.ones(()), raising=False)

    def loaded(code):
        (tmp_path / "part_of_a_script.py").write_text(code)
        module = importlib.import_module("part_of_a_script")
        del sys.modules["part_of_a_script"]
        return module

    yield loaded
    made.withdraw()


@pytest.mark.parametrize("code", ["float(loss)", "math.exp(loss)", "math.sqrt(float(loss))", "0.9 * 2.0 + float(loss)"])
def test_what_a_script_calculates_of_an_unknown_number_decides_with_a_note(notes, script_module, code):
    module = script_module(f"import math\nvalue = {code}\nif value > 2:\n    print('more')\n")
    assert isinstance(module.value, numbers.UnknownFloat)
    assert "part_of_a_script.py:3 decides by a number that nobody computed" in notes[0]


def test_float_is_still_a_type(script_module):
    module = script_module(
        "rate: float = float('1e-3')\nkinds = [isinstance(rate, float), float in (int, float), {float: 1}[float]]\n"
    )
    assert module.rate == 1e-3
    assert type(module.rate) is float
    assert module.kinds == [True, True, 1]
    assert module.__annotations__["rate"] == float  # noqa: E721 - as libraries compare it


def test_functions_of_math_are_compiled_by_torchscript(script_module):
    module = script_module(
        "import math\nimport torch\n@torch.jit.script\ndef scaled(x, d: float):\n    return x * math.sqrt(d)\n"
    )
    assert module.scaled(torch.ones(()), 4.0) == 2


UNKNOWN = numbers.unknown_float()


@pytest.mark.parametrize(
    "calculate",
    [
        lambda array: array.mean() > 0.5,
        lambda array: (array > 0.5).all(),
        lambda array: numpy.exp(array).sum() < numpy.float64(3),
        lambda array: array[0] > 3,
        lambda array: array.tolist()[0] > 3,
        lambda array: max(array) > 3,
        lambda array: numpy.mean([UNKNOWN, UNKNOWN]) > 3,
        lambda array: numpy.float64(2) * UNKNOWN > 3,
        lambda array: numpy.array([1.0, UNKNOWN])[1] > 3,
    ],
)
def test_what_numpy_calculates_of_unknown_numbers_decides_with_a_note(notes, monkeypatch, calculate):
    for name in arrays.OF_LISTS:
        monkeypatch.setattr(numpy, name, getattr(numpy, name))
    arrays.install(numpy)
    assert not calculate(arrays.unknown(numpy.ones(4)))
    assert "decides by a number that nobody computed" in notes[-1]


def test_elements_chosen_by_an_unknown_mask_are_all(notes):
    array = arrays.unknown(numpy.ones((4, 3)))
    assert array[array > 0.5].shape == (12,)
    assert len(numpy.where(array > 0.5)[0]) == 12
    assert len(notes) == 2


def test_a_histogram_of_unknown_numbers_is_drawn_without_a_note(notes):
    """TensorBoard's `add_histogram` looks for the first bin that is not empty."""
    counts, edges = numpy.histogram(arrays.unknown(numpy.ones(20)), bins=4)
    first = int(numpy.searchsorted(numpy.cumsum(counts > 0), 1))
    assert counts.sum() == 20 and 0 <= first < len(edges)
    assert not notes


def test_numbers_beside_unknown_ones_stay_as_they_are():
    array = arrays.unknown(numpy.ones(4))
    assert type(numpy.ones(4).mean()) is numpy.float64
    assert numpy.asarray([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert array.shape == (4,)


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


def test_a_line_of_a_library_is_answered_by_its_own_code(notes, tmp_path):
    library = tmp_path / "site-packages" / "trainer.py"
    library.parent.mkdir()
    library.write_text("def train(optimizer, norm):\n    if norm < 9:\n        optimizer.step()\n")
    steps, names = [], {}
    exec(compile(library.read_text(), str(library), "exec"), names)
    names["train"](types.SimpleNamespace(step=lambda: steps.append(1)), numbers.unknown_float())
    assert steps == [1]
    (note,) = notes
    assert note.startswith(f"{__file__}:")
    assert "(trainer.py:2) decides" in note


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


def test_a_script_that_goes_on_with_smaller_batches_is_known_by_them(followed):
    dataset = Waveforms([10] * 40)
    made, _, _ = followed(torch.utils.data.DataLoader(dataset, batch_size=8))
    assert made.smaller_batch() is None
    sampler = torch.utils.data.BatchSampler(range(40), 4, drop_last=False)
    next(iter(torch.utils.data.DataLoader(dataset, batch_sampler=sampler)))  # as accelerate makes its loaders
    assert made.smaller_batch() == (4, 8)


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


def test_what_is_written_into_a_mask_by_numbers_that_nobody_computed_is_unknown():
    hollow, aten = Hollow(), torch.ops.aten
    scores = torch.rand(64)
    hollow.add(scores)
    _, is_large = run_on_host(hollow, aten.gt.Scalar, scores, 0.5)
    for func, arguments in [
        (aten.copy_.default, (is_large,)),
        (aten.logical_and_.default, (is_large,)),
        (aten.index_put_.default, ([torch.arange(64)], is_large)),
        (aten.masked_fill_.Scalar, (is_large, True)),
    ]:
        mask = torch.zeros(64, dtype=torch.bool)
        assert run_on_host(hollow, func, mask, *arguments) == (True, mask)
        assert hollow.holds(mask), func


def test_what_is_written_in_several_tensors_at_once_is_unknown():
    hollow, aten = Hollow(), torch.ops.aten
    weights, changes = [torch.zeros(64)], [torch.zeros(64)]
    hollow.add(changes[0])
    assert run_on_host(hollow, aten._foreach_add_.List, weights, changes) == (True, None)
    assert hollow.holds(weights[0])


def test_shapes_are_changed_also_where_no_number_is_computed():
    hollow, aten = Hollow(), torch.ops.aten
    rows = [torch.empty(LARGE // 2), torch.empty(LARGE // 2)]
    batch = torch.empty(LARGE)
    assert run_on_host(hollow, aten.resize_.default, batch, [2, LARGE // 2]) == (False, None)
    assert run_on_host(hollow, aten.unsqueeze_.default, batch, 0) == (False, None)
    hollow.add(rows[0])
    out = torch.empty(0)
    is_done, result = hollow.run(aten.stack.out, (rows, 0), {"out": out}, [*rows, out])
    assert is_done
    assert result is out
    assert out.shape == (2, LARGE // 2)
    assert hollow.holds(out)


def test_known_numbers_that_are_written_over_all_of_a_mask_are_computed():
    hollow, aten = Hollow(), torch.ops.aten
    mask = torch.zeros(64, dtype=torch.bool)
    hollow.add(mask)
    assert run_on_host(hollow, aten.fill_.Scalar, mask[:32], True) == (False, None)
    assert hollow.holds(mask)  # half of it is as unknown as before
    assert run_on_host(hollow, aten.fill_.Scalar, mask, True) == (False, None)
    assert not hollow.holds(mask)


def test_a_copy_to_the_device_is_left_to_torch():
    hollow, aten = Hollow(), torch.ops.aten
    moved = run_on_host(hollow, aten._to_copy.default, torch.empty(LARGE), device=torch.device("cuda"))
    assert moved == (False, None)


# --- ranks --------------------------------------------------------------------------------------------


def test_other_ranks_are_ready_and_none_has_failed():
    store = ranks.LoneStore()
    assert store.check(["default_pg/ready"])
    assert not store.check(["exception_dump"])  # NCCL's watchdog would write its state to a file, and end the process
    assert not store.check(["default_pg/0//remote_error"])


# --- compiled code ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "sizes"), [("POINTWISE", 1), ("REDUCTION", 1), ("USER_AUTOTUNE", 3)])
def test_a_kernel_is_compiled_with_one_size_of_blocks_unless_the_script_names_them(monkeypatch, kind, sizes):
    class CachingAutotuner:  # as Inductor's own
        def __init__(self, configs, heuristic_type):
            self.configs = configs

    module = types.ModuleType("torch._inductor.runtime.triton_heuristics")
    module.CachingAutotuner = CachingAutotuner
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    compilation.take_first_blocks()
    made = CachingAutotuner(configs=[1, 2, 3], heuristic_type=types.SimpleNamespace(name=kind))
    assert made.configs == [1, 2, 3][:sizes]
