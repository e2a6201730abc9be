"""A graph of torch.compile on the fake device: allocations and frees are those of its kernels."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node, map_arg

from legroom.foresight.fake_gpu.device import FakeDevice
from legroom.foresight.fake_gpu.fused_kernels import Kernel, Kernels, is_fused, is_item, is_view, root, tensor_of
from legroom.foresight.speed.operation_names import DTYPES, ELEMENTWISE, REDUCTION
from legroom.foresight.speed.operations import Operation
from legroom.third_party import torch_inductor_private
from legroom.third_party.patching import patched

KERNEL = "compiled_kernel"
STATE_BYTES = 16  # of CUDA's random numbers: a seed and an offset, in the host's memory


@contextlib.contextmanager
def replacing_kernels(fake: FakeDevice) -> Iterator[None]:
    """Around `with fake`: what torch.compile compiles runs on the fake device as a CompiledGraph, all else as written.

    A warning of the device has the reason where parts of a model are left uncompiled, as they are on a GPU. Raises
    NotCompiled if nothing was compiled.
    """
    graphs = []

    def compiled(graph: Graph, donated: Collection[int]) -> CompiledGraph:
        graphs.append(graph)
        return CompiledGraph(graph, fake, donated)

    compilable = patched(
        FakeDevice,
        # torch.compile traces outside of this mode, and runs what it has compiled inside: by default it leaves out
        # whatever runs under a mode. Only here, since real kernels must never meet tensors without memory.
        ignore_compile_internals=classmethod(lambda _: True),
        # Between two graphs Dynamo would trace the device's own code.
        __torch_dispatch__=torch.compiler.disable(FakeDevice.__torch_dispatch__),
    )
    with torch_inductor_private.graphs_compiled_by(compiled) as breaks, compilable:
        yield
        if not graphs:
            raise NotCompiled("no graph was compiled")
        if breaks():
            fake.warnings["compile=true: parts of the model are left uncompiled: " + breaks()[0].splitlines()[0]] = None


class NotCompiled(Exception):
    """torch.compile has not compiled anything."""


@dataclass
class Step:
    """One kernel, of Inductor's or of a library. work: what runs. reads, results: nodes, each once."""

    work: Node | Kernel
    reads: list[Node]
    results: list[Node]


class CompiledGraph:
    """Call with the list of a graph's inputs, which is emptied. Returns its outputs; nothing is computed.

    donated: indices of inputs that nobody else holds.

    Operations of libraries (products, attention) run on the fake device. A fused kernel allocates its results; where an
    input of the same size is freed with it, it is written in place (`inplace_buffers` of torch/_inductor/config.py).
    """

    def __init__(self, graph: Graph, fake: FakeDevice, donated: Collection[int]):
        self._fake, self._owner = fake, graph.owning_module
        self._inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self._kept = {node for index, node in enumerate(self._inputs) if index not in donated}
        (self._outputs,) = (node for node in graph.nodes if node.op == "output")
        self._steps = _steps(graph)
        self._frees = self._last_uses()

    def _last_uses(self) -> list[list[Node]]:
        """For each step the nodes that no later one needs."""
        seen: set[Node] = {root(node) for node in self._outputs.all_input_nodes}
        frees: list[list[Node]] = []
        for step in reversed(self._steps):
            frees.append([node for node in dict.fromkeys([*step.reads, *step.results]) if node not in seen])
            seen.update(step.reads)
        return frees[::-1]

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        memory: dict[Node, Any] = dict(zip(self._inputs, inputs))
        inputs.clear()
        for step, freed in zip(self._steps, self._frees):
            if isinstance(step.work, Kernel):
                self._run_kernel(step.work, memory, freed)
            else:
                self._run_call(step.work, step.results, memory)
            for node in freed:
                memory.pop(node, None)
        return map_arg(self._outputs.args[0], lambda node: self._value(node, memory))

    def _run_kernel(self, kernel: Kernel, memory: dict[Node, Any], freed: list[Node]) -> None:
        free = {node: tensor_of(node).nbytes for node in freed if node in memory and node not in self._kept}
        for result in kernel.results:
            made = tensor_of(result)
            replaced = next((node for node, size in free.items() if size == made.nbytes), None)
            if replaced is not None:
                del free[replaced], memory[replaced]
            made_by = result.all_input_nodes[0].target if is_item(result) else result.target
            memory[result] = self._fake.allocate(made.shape, made.stride(), made.dtype, made_by)
        self._fake.launched(operation_of(kernel))

    def _run_call(self, node: Node, results: list[Node], memory: dict[Node, Any]) -> None:
        made = self._call(node, memory)
        for result in results:
            memory[result] = _picked(result, node, made)

    def _call(self, node: Node, memory: dict[Node, Any]) -> Any:
        if node.op == "get_attr":
            return getattr(self._owner, str(node.target))
        given: Any = map_arg((node.args, node.kwargs), lambda one: self._value(one, memory))
        args, kwargs = given
        function: Any = node.target
        state = torch_inductor_private.random_state_call(function)
        if state == "keeps":
            return torch.empty(STATE_BYTES, dtype=torch.uint8, device="cpu"), args[0](*args[1:], **kwargs)
        if state == "restores":
            return args[1](*args[2:], **kwargs)
        return function(*args, **kwargs)

    def _value(self, node: Node, memory: dict[Node, Any]) -> Any:
        return self._call(node, memory) if is_view(node) else memory[node]


def operation_of(kernel: Kernel) -> Operation:
    """A kernel as the traffic that it is: what it reads or writes goes through memory once."""
    written = [tensor_of(result) for result in kernel.results]
    moved = sum(made.nbytes for made in written)
    for source, views in kernel.reads.items():
        moved += min(tensor_of(source).nbytes, sum(_bytes_seen(view) for view in views))
    seen = [tensor_of(view) for views in kernel.reads.values() for view in views]
    elements = max(tensor.numel() for tensor in (*written, *seen))
    dtype = next((DTYPES[made.dtype] for made in written if made.dtype in DTYPES), "fp32")
    return Operation(KERNEL, REDUCTION if kernel.reduces else ELEMENTWISE, dtype, bytes=moved, elements=elements)


def _bytes_seen(view: Node) -> int:
    """Of a view, in which a dimension that is expanded (stride 0) is in memory once."""
    seen = tensor_of(view)
    sizes = (size for size, stride in zip(seen.shape, seen.stride()) if stride or not size)
    return math.prod(sizes) * seen.element_size()


def _picked(item: Node, call: Node, made: Any) -> Any:
    """What a call has made, or one of its results."""
    if item is call:
        return made
    whole, index = item.args
    return _picked(whole, call, made)[index]  # type: ignore[arg-type]


def _items(node: Node) -> Iterator[Node]:
    """The results of a call with several, also of those inside one."""
    for user in node.users:
        if is_item(user):
            yield user
            yield from _items(user)


def _steps(graph: Graph) -> list[Step]:
    """What a graph runs, in its own order. Of a call with several results those count that are used."""
    kernels = Kernels(graph)
    steps: list[tuple[float, Step]] = []
    for node, position in kernels.position.items():
        if node.op not in ("call_function", "get_attr") or is_view(node) or is_item(node) or is_fused(node):
            continue
        items = list(_items(node))
        reads = list(dict.fromkeys(root(used) for used in node.all_input_nodes))
        steps.append((position, Step(node, reads, items or [node])))
    steps += [(kernel.at, Step(kernel, list(kernel.reads), kernel.results)) for kernel in kernels.kernels]
    return [step for _, step in sorted(steps, key=lambda each: each[0])]
