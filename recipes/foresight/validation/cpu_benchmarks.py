"""What scripts/calibrate.py measures of a CPU, in about a minute: operations by size, products by shape, host calls.

Each call is classified as an estimate classifies it (`operations.classify`), so that its seconds are found again by the
name, the dtype and the size that a step's tally has. Results are newly allocated, as they are in a training.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch

from recipes.foresight.speed import cpu, operations
from recipes.foresight.speed.calibrated import CpuRates
from recipes.foresight.speed.operation_names import ATTENTION, MATMUL
from recipes.foresight.speed.operations import Operation, Tally
from recipes.machine import host
from recipes.third_party.torch_private import DispatchMode

Call = Callable[[], object]
aten = torch.ops.aten
SIZES = (2**14, 2**18, 2**21, 2**23, 2**25)  # elements of a tensor: 64 KiB to 128 MiB in fp32
WIDTH = 768  # of rows of a normalisation and of a sum over rows
KEYS = (64, 128, 512)  # lengths of softmax's rows
VOCABULARY = 16384  # length of log_softmax's rows
SIDES = (64, 512, 2048)  # M, N and K of products
LAYOUTS = ("nn", "nt", "tn")  # of their factors
# (batch, M, N, K) of products in attention: scores, and scores with values, by length and head size.
BATCHED = [(192, length, other, depth) for length in (64, 256) for other, depth in ((length, 64), (64, length))]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LEAST_SECONDS, MOST_REPEATS = 0.015, 5
SKIPPED_SECONDS = 1.0  # a product that would take longer is not measured
LONG_SECONDS = 0.1  # a call that takes so long is measured once


def seconds_of(call: Call) -> float:
    """The median seconds of a call, after one that is not counted."""
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    if once > LONG_SECONDS:
        return once
    times = []
    while len(times) < 2 or (sum(times) < LEAST_SECONDS and len(times) < MOST_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


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


def element_wise(elements: int, dtype: torch.dtype) -> Iterator[Call]:
    """Element-wise operations, copies and sums on tensors of so many elements."""
    a, b, c = (torch.rand(elements, dtype=dtype) for _ in range(3))
    rows = a[: elements // WIDTH * WIDTH].view(-1, WIDTH)
    yield lambda: a + b
    yield lambda: a * b
    yield lambda: a / b
    yield lambda: a * 0.5
    yield lambda: torch.pow(a, 3.0)
    yield lambda: torch.tanh(a)
    yield lambda: aten.tanh_backward(a, b)
    yield lambda: aten.gelu(a)
    yield lambda: aten.gelu_backward(a, b)
    yield lambda: aten.silu(a)
    yield lambda: aten.silu_backward(a, b)
    yield lambda: -a
    yield lambda: a.sqrt()
    yield lambda: torch.empty_like(a).bernoulli_(0.9)
    yield lambda: a.add_(b, alpha=0.0)
    yield lambda: a.mul_(1.0)
    yield lambda: a.div_(1.0)
    yield lambda: a.addcmul_(b, c, value=0.0)
    yield lambda: a.addcdiv_(b, c, value=0.0)
    yield lambda: a.lerp_(b, 0.01)
    yield lambda: aten._foreach_mul_.Scalar([a], 1.0)
    yield lambda: aten._foreach_norm.Scalar([a])
    yield lambda: torch.linalg.vector_norm(a)
    yield lambda: a.clone()
    yield lambda: a.zero_()
    yield lambda: torch.cat([a, b])
    yield lambda: a.to(torch.bfloat16 if dtype == torch.float32 else torch.float32)
    if len(rows) > 1:
        yield lambda: rows.sum(0)
        yield lambda: rows.mean(-1, keepdim=True)
        yield lambda: aten.slice_backward(rows, [len(rows), 2 * WIDTH], 1, 0, WIDTH, 1)


def by_rows(elements: int, dtype: torch.dtype) -> Iterator[Call]:
    """Normalisations, softmax and losses, whose rows have a length."""
    rows = torch.rand(max(2, elements // WIDTH), WIDTH, dtype=dtype)
    scale, shift = torch.ones(WIDTH, dtype=dtype), torch.zeros(WIDTH, dtype=dtype)
    normal, mean, deviation = aten.native_layer_norm(rows, [WIDTH], scale, shift, 1e-5)
    yield lambda: aten.native_layer_norm(rows, [WIDTH], scale, shift, 1e-5)
    yield lambda: aten.native_layer_norm_backward(rows, normal, [WIDTH], mean, deviation, scale, shift, [True] * 3)
    scores = torch.rand(max(2, elements // 128), 128, dtype=dtype)
    yield lambda: torch.softmax(scores, -1)
    yield lambda: aten._safe_softmax(scores, -1)
    yield lambda: aten._softmax_backward_data(scores, scores, -1, dtype)
    logits = torch.rand(max(2, elements // VOCABULARY), VOCABULARY, dtype=dtype)
    labels = torch.zeros(len(logits), dtype=torch.long)
    one = torch.ones((), dtype=dtype)
    total = torch.tensor(float(len(labels)), dtype=dtype)
    yield lambda: torch.log_softmax(logits, -1)
    yield lambda: aten._log_softmax_backward_data(logits, logits, -1, dtype)
    yield lambda: aten.nll_loss_backward(one, logits, labels, None, 1, -100, total)
    tokens = torch.randint(0, VOCABULARY, (len(rows),))
    table = torch.rand(VOCABULARY, WIDTH, dtype=dtype)
    yield lambda: torch.nn.functional.embedding(tokens, table)
    yield lambda: aten.embedding_dense_backward(rows, tokens, VOCABULARY, -1, False)


def attention(length: int, dtype: torch.dtype) -> Iterator[Call]:
    """Attention by its own kernel, forward and backward; half of it is masked."""
    q, k, v = (torch.rand(8, 12, length, 64, dtype=dtype) for _ in range(3))
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    out, logsumexp = forward(q, k, v, 0.0, True)
    yield lambda: forward(q, k, v, 0.0, True)
    yield lambda: aten._scaled_dot_product_flash_attention_for_cpu_backward(out, q, k, v, out, logsumexp, 0.0, True)


def products(dtype: torch.dtype, layout: str) -> list[tuple[int, int, int, float]]:
    """(M, N, K, FLOP/s) of products by side. layout: of the factors, as `Operation.layout`.

    A linear layer has nt in the forward pass, nn for the gradient of its input, and tn for that of its weight.
    """
    found: list[tuple[int, int, int, float]] = []
    for m in SIDES:
        for n in SIDES:
            for k in SIDES:
                if found and 2 * m * n * k / min(point[3] for point in found[1:] or found) > SKIPPED_SECONDS:
                    continue  # a dtype without instructions of its own: smaller products say as much
                left, right = _factor((m, k), layout[0], dtype), _factor((k, n), layout[1], dtype)
                found.append((m, n, k, 2 * m * n * k / seconds_of(functools.partial(torch.mm, left, right))))
    return found


def batched(dtype: torch.dtype, layout: str) -> list[tuple[int, int, int, float]]:
    """(M, N, K, FLOP/s) of batches of products in attention."""
    found = []
    for batch, m, n, k in BATCHED:
        batch = max(8, batch * 128 // m)
        left, right = _factor((batch, m, k), layout[0], dtype), _factor((batch, k, n), layout[1], dtype)
        found.append((m, n, k, 2 * batch * m * n * k / seconds_of(functools.partial(torch.bmm, left, right))))
    return found


def _factor(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    """A factor of a product, in memory as it is or transposed."""
    if layout == "n":
        return torch.rand(*shape, dtype=dtype)
    return torch.rand(*shape[:-2], shape[-1], shape[-2], dtype=dtype).transpose(-1, -2)


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
    show("calls of the host")
    rates.call_seconds = call_seconds()
    rates.fault_seconds = fault_seconds()
    tables: dict[str, dict[str, list[tuple[float, float]]]] = {"operations": {}, "attention": {}}
    with torch.no_grad():
        for name, dtype in DTYPES.items():
            show(f"products, {name}")
            for layout in LAYOUTS:
                rates.products[f"{name} {layout}"] = products(dtype, layout)
                rates.batched[f"{name} {layout}"] = batched(dtype, layout)
            show(f"operations, {name}")
            for elements in SIZES:
                for kind in (element_wise, by_rows):
                    _enter(kind(elements, dtype), tables["operations"], rates)
            for length in KEYS:
                _enter(attention(length, dtype), tables["attention"], rates)
    rates.operations, rates.attention = tables["operations"], tables["attention"]
    return rates


def _enter(calls: Iterator[Call], table: dict[str, list[tuple[float, float]]], rates: CpuRates) -> None:
    """Measure calls, and enter the seconds of each under its operation's key, less those of the call itself."""
    for call in calls:
        operation = operation_of(call)
        size = operation.flops if operation.kind == ATTENTION else operation.bytes
        if operation.kind != MATMUL:
            table.setdefault(cpu.key(operation), []).append((float(size), seconds_of(call)))
            table[cpu.key(operation)].sort()
