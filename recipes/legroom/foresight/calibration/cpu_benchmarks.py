"""What scripts/calibrate.py measures of a CPU, in about a minute: operations by size, products by shape, host calls.

Each call is classified as an estimate classifies it (`operations.classify`), so that its seconds are found again by the
name, the dtype and the size that a step's tally has. Results are newly allocated, as they are in a training, and before
each call the caches are emptied but for what the operation before would have made (`cpu_probes`). Everything is
measured in several rounds, a minute apart from first to last, so that a machine whose speed drifts slows all alike.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch

from legroom.foresight.calibration import cpu_probes
from legroom.foresight.calibration.cpu_probes import LAYOUTS, Call, Pool, Probe
from legroom.foresight.speed import cpu, operations
from legroom.foresight.speed.calibrated import CpuRates, Points
from legroom.foresight.speed.operation_names import ATTENTION
from legroom.foresight.speed.operations import Operation, Tally
from legroom.machine import host
from legroom.third_party.torch_private import DispatchMode

SIZES = (2**6, 2**14, 2**17, 2**19, 2**21, 2**23, cpu_probes.POOL)  # elements of a tensor: the first is the call itself
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROUNDS = 8
CACHES = 48 * 2**20  # bytes that are touched to empty the caches
SHORT_SECONDS = 0.002  # a call that takes less is timed twice a round
LONG_SECONDS = 0.02  # a call that takes so long is timed in every second round
SKIPPED_SECONDS = 1.0  # a product that would take longer is not measured


class Stopwatch:
    """The seconds of probes by name, from all rounds."""

    def __init__(self) -> None:
        self.times: dict[tuple, list[float]] = defaultdict(list)
        self._filler = torch.zeros(CACHES // 4)
        self.round = 0

    def time(self, name: tuple, probe: Probe, cold: bool = True) -> None:
        """Time a probe once or twice in this round. It must have run before. cold: with empty caches."""
        before = self.times[name]
        if self.round % 2 and before[0] > LONG_SECONDS:
            return
        for _ in range(1 + (bool(before) and before[0] < SHORT_SECONDS)):
            if cold:
                self._filler.add_(1.0)
            else:
                probe.call()
            if probe.made is not None:
                probe.made.mul_(1.0)
            start = time.perf_counter()
            result = probe.call()
            before.append(time.perf_counter() - start)
            del result

    def seconds(self) -> Iterator[tuple[tuple, float]]:
        """(name, median seconds)."""
        for name, times in self.times.items():
            yield name, statistics.median(times)


def seconds_of(call: Call) -> float:
    """The median seconds of a call, after one that is not counted."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


class _Seen(DispatchMode):
    """The operations of a call."""

    def __init__(self):
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        operation = operations.classify(func, args, result, kwargs)
        if operation is not None:
            self.operations.append(operation)
        return result


def operation_of(call: Call) -> Operation:
    """The one operation of a call: the one that moves most bytes."""
    with _Seen() as seen:
        call()
    return max(seen.operations, key=lambda operation: operation.bytes)


def fault_seconds() -> float:
    """The seconds to touch a byte of new memory, beyond those of writing it."""
    elements = 2**24  # 64 MiB: malloc maps and unmaps it
    there = torch.empty(elements)
    fresh, again = seconds_of(lambda: torch.empty(elements).zero_()), seconds_of(there.zero_)
    return max(0.0, fresh - again) / (4 * elements)


def call_seconds(device: str = "cpu") -> dict[str, float]:
    """The host's seconds for a call by phase: a tiny model's step, whose operations take next to nothing."""
    import transformers

    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=8, num_attention_heads=2, intermediate_size=64, vocab_size=64
    )
    model = transformers.BertForSequenceClassification(config)
    torch.nn.Module.to(model, torch.device(device))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch = {"input_ids": torch.zeros(1, 8, dtype=torch.long, device=device)}
    batch["labels"] = torch.zeros(1, dtype=torch.long, device=device)
    losses: list[torch.Tensor] = []
    phases: dict[str, Call] = {
        "forward": lambda: losses.append(model(**batch).loss),
        "backward": lambda: losses.pop().backward(),
        "step": lambda: (optimizer.step(), optimizer.zero_grad()),
    }
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(12):
        for phase, call in phases.items():
            start = time.perf_counter()
            call()
            times[phase].append(time.perf_counter() - start)
    counts = _calls(phases)
    return {phase: statistics.median(times[phase][2:]) / counts[phase] for phase in phases}


def _calls(phases: dict[str, Call]) -> dict[str, int]:
    """How many calls each phase makes, as a tally counts them."""
    tally = Tally()

    class Counting(DispatchMode):
        phase = ""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            tally.add(func, args, kwargs or {}, result, self.phase, object())
            return result

    for phase, call in phases.items():
        with Counting() as counting:
            counting.phase = phase
            call()
    return dict(tally.calls)


def measure(show: Callable[[str], None]) -> CpuRates:
    """Measure this CPU with the number of threads that torch uses. show: called with what is being measured."""
    rates = CpuRates(host.cpu_name(), torch.get_num_threads(), str(torch.__version__), time.strftime("%Y-%m-%d"))
    pools = {name: Pool(dtype) for name, dtype in DTYPES.items()}
    watch, known = Stopwatch(), dict[tuple, Operation]()
    calls, faults = [], []
    for watch.round in range(ROUNDS):
        show(f"round {watch.round + 1} of {ROUNDS}")
        calls.append(call_seconds())
        faults.append(fault_seconds())
        with torch.no_grad():
            for name, pool in pools.items():
                for layout in LAYOUTS:
                    _time_products(watch, (f"{name} {layout}",), pool, layout)
                for index, (probe, cold) in enumerate(_operations(pool)):
                    _time_operation(watch, known, (name, index), probe, cold)
    rates.fault_seconds = statistics.median(faults)
    _enter(rates, watch)
    rates.call_seconds = {phase: statistics.median(found[phase] for found in calls) for phase in calls[0]}
    return rates


def _operations(pool: Pool) -> Iterator[tuple[Probe, bool]]:
    """(probe, with empty caches) of all but the products, in the same order each time.

    The smallest tensors stay in the cache: what remains is the call itself, as `call_seconds` contains it.
    """
    for elements in SIZES:
        for kind in (cpu_probes.element_wise, cpu_probes.by_rows):
            yield from ((probe, elements > SIZES[0]) for probe in kind(elements, pool))
    yield from ((probe, True) for probe in cpu_probes.attention(pool))


def _time_operation(watch: Stopwatch, known: dict[tuple, Operation], place: tuple, probe: Probe, cold: bool) -> None:
    """place: of the probe among all. known: the operations of those that were timed before."""
    operation = known.get(place)
    if operation is None:
        operation = known[place] = operation_of(probe.call)
    is_attention = operation.kind == ATTENTION
    size = operation.flops if is_attention else operation.bytes
    watch.time(("attention" if is_attention else "operations", cpu.key(operation), float(size)), probe, cold)


def _time_products(watch: Stopwatch, key: tuple, pool: Pool, layout: str) -> None:
    slowest = float("inf")  # FLOP/s
    for shape, probe in cpu_probes.products(pool, layout):
        name, flops = ("products", *key, 1, *shape), 2 * shape[0] * shape[1] * shape[2]
        if name not in watch.times:
            if watch.round or flops / slowest > SKIPPED_SECONDS:
                continue  # a dtype without instructions of its own: smaller products say as much
            start = time.perf_counter()
            probe.call()
            if flops > 2**22:
                slowest = min(slowest, flops / (time.perf_counter() - start))
        watch.time(name, probe)
    for shape, probe in cpu_probes.batched(pool, layout):
        name = ("batched", *key, *shape)
        if name not in watch.times:
            probe.call()
        watch.time(name, probe)


def _enter(rates: CpuRates, watch: Stopwatch) -> None:
    """The medians of all rounds by table."""
    tables: dict[str, dict[str, Points]] = {"operations": defaultdict(list), "attention": defaultdict(list)}
    for (table, key, *size), seconds in watch.seconds():
        if table in tables:
            tables[table][key].append((size[0], seconds))
        else:
            batch, m, n, k = size
            getattr(rates, table).setdefault(key, []).append((m, n, k, 2 * batch * m * n * k / seconds))
    rates.operations, rates.attention = (
        {key: sorted(points) for key, points in table.items()} for table in tables.values()
    )
