"""What `legroom check` tries, says and keeps of a script, on scripts and estimates that are made up."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing

from legroom.errors import Refusal
from legroom.foresight.programs import (
    command,
    longest_rows,
    played_cuda,
    played_device,
    played_levers,
    played_processes,
    played_types,
    program_record,
    saved,
    try_levers,
)
from legroom.foresight.step_estimate import StepEstimate, gpu_of
from legroom.records.record import Estimate, Record
from legroom.units import MIB, PARTS

CARD = 1000  # MiB


def estimate(mib: float, seconds: float = 1.0, **values: Any) -> StepEstimate:
    fields: dict[str, Any] = {one.name: 0 for one in dataclasses.fields(StepEstimate)} | {"notes": (), "largest": ()}
    fields |= {"parts": dict.fromkeys((part for _, part in PARTS), 0), "timeline": (), "peak_phase": "step"}
    left = CARD - mib
    fields |= {"verdict": "fits" if left >= 0 else "does not fit", "left_bytes": int(left * MIB)}
    fields |= {"capacity_bytes": CARD * MIB, "device_used_bytes": int(mib * MIB), "step_seconds": seconds}
    return StepEstimate(**fields | values)


# --- levers of a script -------------------------------------------------------------------------------------------


def test_several_levers_are_typed_together():
    one = try_levers.Lever("a", "x=1", "Call")
    levers = [one, try_levers.Lever("b", "--y 2"), try_levers.Lever("c", "z=3", "Call"), try_levers.Lever("d", "--w")]
    made = try_levers.Trial(levers, estimate(900), budget=900 * MIB)
    assert made.typed == "--y 2 --w; Call(..., x=1, z=3)" and made.fits and made.seconds == 1.0
    assert not try_levers.Trial(levers, estimate(900), budget=900 * MIB - 1).fits
    assert not try_levers.Trial(levers, estimate(1001)).fits and not try_levers.Trial(levers, None).fits
    assert try_levers.Trial([], None).seconds == float("inf") and try_levers.Trial([], None).typed == ""


# --- what is said and kept --------------------------------------------------------------------------------------------


def test_folders_of_a_path_are_left_out(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    texts = {
        f"{tmp_path}/own/train.py:3": "own/train.py:3",
        "/usr/lib/a.py": "a.py",
        "see https://some.org/a/b and ./a/b, a/b/c": "see https://some.org/a/b and ./a/b, a/b/c",
        "'/data set/x'": "'/data set/x'",
        "(/a/b/c.py)": "(c.py)",
        "/alone": "/alone",
    }
    assert {text: program_record.bare(text) for text in texts} == texts
    assert program_record.folders(Path("out"), ["a"]) == {"a": Path("out")}
    assert program_record.folders(Path("out"), ["a", "b"]) == {"a": Path("out/a"), "b": Path("out/b")}


@pytest.mark.parametrize(
    "left, reserved, before, after",
    [
        (5, 40, 10, (True, 10, "fits", None, 1)),
        (10, 40, 10, (True, 10, "fits", None, 0)),
        (11, 40, 10, (True, 10, "fits", None, 0)),
        (-5, 40, 10, (False, -5, "does not fit", "eval", 1)),
    ],
)
def test_an_evaluation_that_takes_more_is_entered(left, reserved, before, after):
    made = Record("estimate", [], {}, "", {}, estimate=Estimate(True, before, 99, "fits", 0))
    verdict = "fits" if left >= 0 else "does not fit"
    one = dataclasses.replace(estimate(1), left_bytes=left, reserved_bytes=reserved, verdict=verdict)
    program_record.enter_evaluation(made, one)
    now = made.estimate
    assert now is not None and now.evaluation_reserved_bytes == reserved
    phase = made.error and made.error.phase
    assert (now.fits, now.margin_bytes, now.verdict, phase, len(made.warnings)) == after


# --- while it runs ---------------------------------------------------------------------------------------------------


def test_how_long_a_row_is():
    rows: dict[str, Any] = {
        "text": "abc",
        "list": [1, 2, 3, 4],
        "floats": [1.0, 2.0],
        "nested": [[1, 2], [3]],
        "texts": ("ab", "c"),
        "mapping": {"a": "ab", "b": [1, 2, 3], "c": 7},
        "tensor": torch.zeros(5),
        "matrix": torch.zeros(5, 2),
        "empty": [],
        "number": 3,
        "pair": (torch.zeros(3), 1),
    }
    found = {name: longest_rows.length(row) for name, row in rows.items()}
    assert found == dict(
        text=3, list=4, floats=2, nested=3, texts=3, mapping=5, tensor=5, matrix=0, empty=0, number=0, pair=3
    )


def test_a_batch_is_as_long_as_its_largest_matrix_of_integers():
    fake = played_device.PlayedDevice(None)
    ids, wide = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 9)
    for batch in ({"ids": ids, "scores": wide, "labels": torch.zeros(2, dtype=torch.long)}, [ids[:, :5]], wide, "text"):
        fake.read("reader", batch)
    assert fake.lengths == {7, 5} and fake.reads == "reader"


# --- the played machine ---------------------------------------------------------------------------------------------


def test_the_meter_says_what_the_allocator_would():
    events: list[tuple[int, int]] = [(1, 10 * MIB), (2, 30 * MIB)]
    card = dataclasses.replace(gpu_of("t4_16gb"), memory_bytes=1000 * MIB)
    meter = played_cuda.Meter(lambda: events, 900 * MIB, card, 100 * MIB)
    names = ("allocated", "peak_allocated", "reserved", "peak_reserved")
    read = [meter.figure(name) for name in names]
    first = [figure() / MIB for figure in read]
    assert first[:2] == [40, 40] and first[2] == first[3] >= 40
    assert meter.free_and_total() == (900 * MIB - read[2](), 1000 * MIB)
    found = meter.stats()
    assert found["allocated_bytes.all.current"] == found["active_bytes.all.peak"] == 40 * MIB
    assert found["reserved_bytes.all.current"] == read[2]() and found["num_ooms"] == 0
    events.append((2, -1))
    assert read[0]() == 10 * MIB
    assert meter.figure("peak_allocated")() == 40 * MIB
    meter.reset()
    assert read[1]() == read[0]() and read[3]() == read[2]()
    full = played_cuda.Meter(lambda: [(1, 950 * MIB)], 900 * MIB, card, 100 * MIB)
    assert full.free_and_total()[0] == 0


@pytest.mark.parametrize("asked, ranks, said", [(2, 4, None), (1, 1, None), (4, 1, "4 processes, and 1 is followed")])
def test_spawned_processes_are_as_many_as_are_followed(asked, ranks, said):
    calls: list[Any] = []
    with played_processes.spawning_here(ranks):
        spawn: Any = multiprocessing.spawn  # pyright: ignore[reportPrivateImportUsage]
        if said is None:
            assert spawn(lambda *given: calls.append(given), ("a",), nprocs=asked) is None
            context = spawn(lambda *given: calls.append(given), nprocs=asked, join=False)
            assert context.join() is True and context.processes == [] and calls == [(0, "a"), (0,)]
        else:
            with pytest.raises(Refusal, match=said):
                spawn(print, nprocs=asked)
    for size, count, why in (
        (-1, 3, ""),
        (3, 3, ""),
        (2, 3, "3 are followed. Type --gpus 2"),
        (2, 0, "one is measured"),
    ):
        if why:
            with pytest.raises(Refusal, match=why):
                played_processes.check_world_size(size, count)
        else:
            played_processes.check_world_size(size, count)


def test_classes_of_tensors_of_the_gpu_make_them(monkeypatch):
    """On the host here, with the same shapes, values and types."""
    cpu = torch.device("cpu")
    made = {
        "none": played_types.made(torch.float32, device=cpu),
        "size": played_types.made(torch.float16, 3, device=cpu),
        "sizes": played_types.made(torch.int64, 2, 3, device=cpu),
        "torch size": played_types.made(torch.int64, torch.Size([4, 1]), device=cpu),
        "values": played_types.made(torch.float64, [1, 2], device=cpu),
        "tensor": played_types.made(torch.int32, torch.ones(2), device=cpu),
    }
    shapes = {name: (tuple(one.shape), str(one.dtype)[6:]) for name, one in made.items()}
    assert shapes == {
        "none": ((0,), "float32"),
        "size": ((3,), "float16"),
        "sizes": ((2, 3), "int64"),
        "torch size": ((4, 1), "int64"),
        "values": ((2,), "float64"),
        "tensor": ((2,), "int32"),
    }
    assert made["values"].tolist() == [1, 2] and made["tensor"].tolist() == [1, 1]
    one = torch.zeros(1)
    assert played_types.typed(cpu, one) is NotImplemented
    assert played_types.typed(cpu, one, "torch.cuda.HalfTensor").dtype == torch.float16
    assert played_types.typed(cpu, one, played_types.CLASSES["LongTensor"]).dtype == torch.int64
    assert played_types.typed(cpu, one, "torch.DoubleTensor").dtype == torch.float64
    assert played_types.typed(cpu, one, torch.IntTensor).dtype == torch.int32
    assert played_types.typed(cpu, one, torch.int32) is played_types.typed(cpu, one, "torch.cuda.x") is NotImplemented
    assert not isinstance(one, played_types.CLASSES["FloatTensor"])


def test_where_a_file_is_loaded_to():
    cpu, gpu = (lambda storage, _: storage.cpu()), (lambda storage, _: storage.cuda(0))
    asked: list[Any] = [
        None,
        "cpu",
        torch.device("cpu"),
        {"cuda:0": "cpu"},
        {"cuda:1": "cpu"},
        cpu,
        gpu,
        lambda *_: None,
    ]
    found = [str(saved.place(each, "cuda:0")) for each in asked]
    assert found == ["cuda:0", "cpu", "cpu", "cpu", "cuda:0", "cpu", "cuda:0", "cuda:0"]


@pytest.mark.parametrize("args, settings", [
    ((), {}), ((pickle,), {}), ((pickle, 3), {}), ((), {"pickle_module": pickle, "pickle_protocol": 3}),
])  # fmt: skip
def test_a_script_saves_with_the_arguments_that_it_gave(tmp_path, args, settings):
    asked: list[Any] = []

    def real(value: Any, file: Any, module: Any = None, protocol: int = 2, *, pickle_module: Any = None, **more: Any):
        asked.append(more.get("pickle_protocol", protocol))
        (module or pickle_module).Pickler(file, protocol=2).dump(value)

    saved.save(real, asked.append, {"a": 1}, tmp_path / "file", *args, **settings)
    assert asked == [3 if 3 in (*args, *settings.values()) else 2]
    assert pickle.loads((tmp_path / "file").read_bytes()) == {"a": 1}


def test_the_optimizers_of_a_script_are_described():
    weights = [torch.nn.Parameter(torch.zeros(1))]

    class Own(torch.optim.AdamW):
        pass

    made = [
        torch.optim.AdamW(weights),
        torch.optim.Adam(weights, fused=True),
        Own(weights),
        torch.optim.SGD(weights, lr=1),
    ]
    assert played_levers.optimizers_seen(made) == [
        {"name": "AdamW", "plain": True, "fused": False},
        {"name": "Adam", "plain": True, "fused": True},
        {"name": "Own", "plain": False, "fused": False},
        {"name": "SGD", "plain": False, "fused": False},
    ]


@pytest.mark.parametrize("nodes, each, ranks", [("2", "3", 6), ("1:4", "2", 2), ("auto", "2", 2), ("2", "gpu", None)])
def test_ranks_are_those_of_all_nodes(tmp_path, monkeypatch, nodes, each, ranks):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    found = command.parse(["torchrun", "--nnodes", nodes, "--nproc_per_node", each, "train.py"])
    assert found.ranks == ranks and found.environment.get("LOCAL_WORLD_SIZE") == (each if ranks else None)
    assert command.rank_environment(3)["LOCAL_WORLD_SIZE"] == "3" == command.rank_environment(3, None)["WORLD_SIZE"]
