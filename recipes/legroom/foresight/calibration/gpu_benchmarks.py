"""What scripts/calibrate.py measures of a GPU, in about a minute. Without a GPU only `matmul_of` can be run.

Large products by dtype, bandwidth by class of operation, attention, the least time of a kernel, calls of the host, and
the context. The figures of the card come from conf/gpu/.
"""

import dataclasses
import functools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from legroom import config
from legroom.compat.torch_private import DispatchMode
from legroom.errors import Refusal
from legroom.estimator.speed import efficiencies, roofline
from legroom.estimator.speed.calibrated import GpuRates
from legroom.estimator.speed.operation_names import COPY, ELEMENTWISE, MATMUL, OPTIMIZER, REDUCTION
from legroom.estimator.speed.operations import Operation, Tally
from legroom.machine import gpu_specs, host, nvml

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LARGE = 8192  # sides of a product that reaches the peak
ELEMENTS = 2**28  # of an element-wise operation that no cache holds
ROWS, WIDTH = 2**17, 1024
HEADS = (4, 16, 4096, 64)  # batch, heads, length and head size of attention
REPEATS, WARM_UP_SECONDS = 20, 1.0  # until the clocks are those of long work


def seconds_of(call: Callable[[], Any]) -> float:
    """The median seconds of a call on the device, by events, at the clocks of long work."""
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_UP_SECONDS:
        call()
        torch.cuda.synchronize()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


def measure(show: Callable[[str], None]) -> GpuRates:
    """Measure the first GPU. show: called with what is being measured. Raises Refusal for a card without figures."""
    here = host.gpus()[0]
    figures = gpu_specs.find(here.name, here.memory_bytes)
    if figures is None:
        raise Refusal(f"there are no figures of {here.name} in conf/gpu/ that could be calibrated.")
    gpu = config.from_dict(figures, config.Gpu)
    before = nvml.used_bytes(here.uuid)
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    after = nvml.used_bytes(here.uuid)
    rates = GpuRates(here.name, str(torch.__version__), time.strftime("%Y-%m-%d"))
    if before is not None and after is not None:
        rates.context_bytes = after - before - torch.cuda.memory_reserved()
    with torch.no_grad():
        show("products")
        matmul = _products(gpu)
        show("bandwidth")
        bandwidth = _bandwidth(gpu)
        show("attention")
        attention = _attention(gpu)
    show("kernels and calls of the host")
    tiny = torch.ones(1, device="cuda")
    rates.efficiencies = {
        "matmul": matmul,
        "bandwidth": bandwidth,
        "attention": attention,
        "kernel_seconds": _many(lambda: tiny.add_(1.0)),
        "host_seconds": call_seconds(),
    }
    return rates


def call_seconds(device: str = "cuda") -> dict[str, float]:
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
    phases: dict[str, Callable[[], object]] = {
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


def _calls(phases: dict[str, Callable[[], object]]) -> dict[str, int]:
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


def _products(gpu: config.Gpu) -> dict[str, float]:
    """dtype -> the fraction of the peak (`matmul_of`)."""
    found = {}
    for name, dtype in DTYPES.items():
        peak = getattr(gpu, f"{name}_tflops")
        if peak is None:
            continue
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        left, right = (torch.rand(LARGE, LARGE, device="cuda", dtype=dtype) for _ in range(2))
        found[name] = matmul_of(seconds_of(functools.partial(torch.mm, left, right)), name, gpu)
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def matmul_of(seconds: float, name: str, gpu: config.Gpu) -> float:
    """The fraction of the peak with which the roofline gives a product of LARGE sides so many seconds, by bisection.

    So what its tiles, its traffic and its launch take is not counted twice. name: of DTYPES.
    """
    side, size = (1, LARGE, LARGE, LARGE), DTYPES[name].itemsize
    dtype = "fp32" if name == "tf32" else name
    product = Operation("mm", MATMUL, dtype, 2 * LARGE**3, 3 * size * LARGE**2, 1, side)
    table = efficiencies.of_chip(gpu.chip, gpu.device_name)
    low, high = 0.01, 4.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        tried = dataclasses.replace(table, matmul={name: middle}, sustained={name: 1.0})
        slow = roofline.device_seconds(product, gpu, name, tried) > seconds
        low, high = (middle, high) if slow else (low, middle)
    return low


def _bandwidth(gpu: config.Gpu) -> dict[str, float]:
    """Class of operation -> the fraction of the memory's bandwidth."""
    a, b = (torch.rand(ELEMENTS, device="cuda") for _ in range(2))
    rows = torch.rand(ROWS, WIDTH, device="cuda")
    scale = torch.ones(WIDTH, device="cuda")
    calls: dict[str, tuple[Operation, Callable[[], Any]]] = {
        "elementwise": (_moving(ELEMENTWISE, 3, ELEMENTS), lambda: torch.add(a, b, out=a)),
        "optimizer": (_moving(OPTIMIZER, 3, ELEMENTS), lambda: torch.ops.aten._foreach_add_.List([a], [b])),
        "copy": (_moving(COPY, 2, ELEMENTS), lambda: a.copy_(b)),
        "reduction": (_moving(REDUCTION, 2, rows.numel()), lambda: torch.softmax(rows, -1)),
        "normalisation": (
            _moving(REDUCTION, 2, rows.numel()),
            lambda: torch.nn.functional.layer_norm(rows, (WIDTH,), scale, scale),
        ),
    }
    return {name: bandwidth_of(seconds_of(call), operation, gpu) for name, (operation, call) in calls.items()}


def _moving(kind: str, tensors: int, elements: int) -> Operation:
    return Operation(kind, kind, bytes=tensors * 4 * elements, elements=elements)


def bandwidth_of(seconds: float, operation: Operation, gpu: config.Gpu) -> float:
    """The fraction of the memory's bandwidth with which the roofline gives an operation so many seconds.

    So what its elements take beside the traffic is not counted twice.
    """
    working = roofline.element_seconds(operation, gpu, efficiencies.of_chip(gpu.chip, gpu.device_name))
    sharp = roofline.ELEMENT_SHARPNESS
    moving = max(seconds**sharp - working**sharp, (seconds / 2) ** sharp) ** (1 / sharp)
    return operation.bytes / moving / (gpu.bandwidth_gb_per_second * 1e9)


def _attention(gpu: config.Gpu) -> dict[str, float]:
    """The fraction of the peak in 16 bits of flash attention, forward and backward."""
    batch, heads, length, size = HEADS
    dtype = torch.bfloat16 if gpu.bf16_tflops else torch.float16
    q, k, v = (torch.rand(*HEADS, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))

    def both() -> None:
        with torch.enable_grad():
            torch.nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()

    flops = (4 + 10) * batch * heads * length * length * size
    peak = (gpu.bf16_tflops or gpu.fp16_tflops or 0.0) * 1e12
    return {"flash": flops / seconds_of(both) / peak} if peak else {}


def _many(call: Callable[[], Any], count: int = 2000) -> float:
    """The seconds of one of many small kernels in a graph: the device's own, without the host's."""
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return seconds_of(graph.replay) / count
