"""Which kernels torch.compile makes of a graph, and which of their results need memory.

Inductor decides in two stages, and so does this module, in short:

1. Lowering (torch/_inductor/graph.py, run_node). An element-wise result is not computed by itself but inside whatever
   reads it, unless it is a reduction, an input of a product or an output of the graph, or reads too much.
2. Scheduling (torch/_inductor/scheduler.py). Kernels that go over the same elements, and read each other or the same
   inputs, become one, and a result that only its own kernel reads needs no memory.

Not modelled: the search for an order of the kernels with a lower peak (torch/_inductor/memory.py), which would only
lower it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from legroom.foresight.speed.operation_names import GATHERING, PRODUCTS
from legroom.third_party import torch_inductor_private
from legroom.third_party.torch_private import op_name, schema

# torch/_inductor/config.py: realize_reads_threshold, realize_opcount_threshold and realize_acc_reads_threshold.
READS_OF_A_REUSED_RESULT, OPERATIONS_OF_A_REUSED_RESULT, MOST_READS = 4, 30, 8
# torch/_inductor/ir.py, should_realize_on_reuse: on a CPU these are not computed twice.
HEAVY_ON_CPU = {"exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh"}
REDUCTIONS = {
    *("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "var", "var_mean"),
    *("logsumexp", "xor_sum", "prepare_softmax_online"),
}
FARTHEST = 64  # torch/_inductor/scheduler.py, are_long_distant_nodes: what reads the same, but far apart, is not joined
NEXT = 2**-12  # of a kernel that reads another one: it runs right after that
SCATTERS = {  # their kernel is joined with no other
    *("index_put", "_unsafe_index_put", "_unsafe_masked_index_put_accumulate"),
    *("scatter", "scatter_add", "scatter_reduce"),
}


@dataclass
class Kernel:
    """results: what it writes to memory. reads: the results of others, and inputs of the graph, that it needs, each
    with what it sees of them. at: the position in the graph after which it runs. reduces: it has sums or maxima."""

    results: list[Node]
    reads: dict[Node, list[Node]]
    at: float
    reduces: bool


@dataclass(frozen=True)
class _Computed:
    """How a result is computed from what is in memory. reads: (as which view, of which node); of a table of which rows
    are picked, as what is picked."""

    reads: frozenset[tuple[Node, Node]] = frozenset()
    operations: int = 0
    heavy: bool = False


@dataclass
class _Group:
    """Results that one kernel computes. rows, length: of a reduction; length 1: element-wise over `rows` elements.
    open: nothing outside needs a result yet, so that the kernel may still run later. at: as of Kernel."""

    rows: int
    length: int
    trailing: bool = True  # a reduction runs over the last dimensions
    open: bool = True
    at: float = -1
    members: list[Node] = field(default_factory=list)


def tensor_of(node: Node) -> torch.Tensor:
    """What torch knows of a node's result while it compiles: its shape, strides, dtype and device."""
    return node.meta["val"]


def is_view(node: Node) -> bool:
    """Whether a node is another view of the memory of its first argument."""
    if is_item(node):
        return is_view(_argument(node))
    return node.op == "call_function" and getattr(node.target, "is_view", False)


def root(node: Node) -> Node:
    """The node whose memory a view shows."""
    while is_view(node):
        node = _argument(node)
    return node


def is_fused(node: Node) -> bool:
    """Whether a node is computed by a kernel that torch.compile writes, and not by a library's."""
    if is_item(node):
        return is_fused(_argument(node))
    if node.op != "call_function" or is_view(node):
        return False
    func = node.target
    if not hasattr(func, "is_view") or schema(func).is_mutable or op_name(func) in PRODUCTS:
        return False  # a control operator of torch.compile; what writes in place; a product
    return torch_inductor_private.is_lowered(func)


def is_item(node: Node) -> bool:
    """Whether a node is one of several results of another."""
    return getattr(node.target, "__name__", "") == "getitem"


def _argument(node: Node) -> Node:
    return node.all_input_nodes[0]


def consumers(node: Node) -> Iterable[Node]:
    """The nodes that use a node, also by way of views."""
    for user in node.users:
        if is_view(user):
            yield from consumers(user)
        else:
            yield user


class Kernels:
    """The kernels of a graph of Inductor's, after its passes and the partition into forward and backward.

    kernels: in the order in which they run. stored: the nodes that are in memory once they are computed.
    """

    def __init__(self, graph: Graph):
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self._computed: dict[Node, _Computed] = {}
        self._stored: set[Node] = set()
        self._groups: dict[Node, _Group] = {}
        self._readers: dict[Node, list[Node]] = {}  # stored results by what they read
        every: list[_Group] = []
        for node in graph.nodes:
            if is_view(node):
                continue
            if not is_fused(node):
                self._stored.add(node)
                for used in map(root, node.all_input_nodes):
                    self._close(used)
            elif self._has_items(node):
                self._computed[node] = self._operands(node)
            else:
                self._lower(node)
                if node in self._stored:
                    every += self._join(node)
        self.kernels = sorted(map(self._kernel, (group for group in every if group.members)), key=lambda one: one.at)

    # --- lowering ---

    @staticmethod
    def _has_items(node: Node) -> bool:
        return any(is_item(user) for user in node.users)

    def _operands(self, node: Node) -> _Computed:
        """How a node is computed, with the operands that are not in memory computed inside."""
        reads: set[tuple[Node, Node]] = set()
        operations, heavy = 1, op_name(node.target) in HEAVY_ON_CPU if not is_item(node) else False
        for operand in node.all_input_nodes:
            source = root(operand)
            if source in self._stored:
                picked = not is_item(node) and op_name(node.target) in GATHERING and operand is node.args[0]
                reads.add((node if picked else operand, source))
            elif source in self._computed:
                inner = self._computed[source]
                reads |= inner.reads
                operations, heavy = operations + inner.operations, heavy or inner.heavy
        return _Computed(frozenset(reads), operations, heavy)

    def _lower(self, node: Node) -> None:
        """Decide whether the result of a node is stored."""
        computed = self._computed[node] = self._operands(node)
        users = set(consumers(node))
        reduction = _reduced(node) is not None
        needed = any(not is_fused(user) for user in users)
        reused = len(users) > 1 and (
            len(computed.reads) > READS_OF_A_REUSED_RESULT
            or computed.operations + len(computed.reads) > OPERATIONS_OF_A_REUSED_RESULT
            or (computed.heavy and tensor_of(node).device.type == "cpu")
        )
        if reduction or needed or reused or len(computed.reads) > MOST_READS or _scatters(node):
            self._stored.add(node)

    # --- scheduling ---

    def _close(self, node: Node) -> None:
        if node in self._groups:
            self._groups[node].open = False

    def _join(self, node: Node) -> list[_Group]:
        """Put a stored result into the kernel of one that it reads or that reads the same, or into a new one, which is
        returned."""
        sources = list(dict.fromkeys(source for _, source in self._computed[node].reads))
        read = _distinct(self._groups[source] for source in sources if source in self._groups)
        beside = _distinct(self._groups[other] for source in sources for other in self._readers.get(source, []))
        beside = [group for group in beside if abs(self.position[node] - group.at) <= FARTHEST]
        fitting = [group for group in _distinct([*read, *beside]) if self._can_join(group, node, sources)]
        new = [] if fitting else [_new_group(node, self.position[node])]
        chosen = (fitting or new)[0]
        for group in read:
            if group is not chosen and group.open and chosen.open and group in fitting and _alike(group, chosen):
                self._merge(group, chosen)
            elif group is not chosen:
                group.open = False
        if chosen.open:
            chosen.at = max(chosen.at, self._ready(sources, chosen))
        reduced = _reduced(node)
        if reduced is not None and chosen.length == 1:
            chosen.rows, chosen.length, chosen.trailing = reduced
        chosen.members.append(node)
        self._groups[node] = chosen
        for source in sources:
            self._readers.setdefault(source, []).append(node)
        return new

    def _can_join(self, group: _Group, node: Node, sources: list[Node]) -> bool:
        return not _scatters(node) and _fits(group, node) and (group.open or self._ready(sources, group) <= group.at)

    def _ready(self, sources: list[Node], inside: _Group) -> float:
        """The position after which a kernel can run that reads these."""
        others = [source for source in sources if self._groups.get(source) is not inside]
        return max((self._made_at(source) for source in others), default=-1)

    def _made_at(self, source: Node) -> float:
        if source.op == "placeholder":
            return -1
        return self._groups[source].at + NEXT if source in self._groups else self.position[source]

    def _merge(self, group: _Group, into: _Group) -> None:
        into.members += group.members
        into.at = max(into.at, group.at)
        self._groups |= dict.fromkeys(group.members, into)
        group.members = []

    def _kernel(self, group: _Group) -> Kernel:
        inside = set(group.members)
        results = [node for node in group.members if self._is_read_outside(node, inside)]
        reads: dict[Node, list[Node]] = {}
        for view, source in {pair: None for node in group.members for pair in self._computed[node].reads}:
            if source not in inside:
                reads.setdefault(source, []).append(view)
        return Kernel(results, reads, group.at, group.length > 1)

    def _is_read_outside(self, node: Node, inside: set[Node]) -> bool:
        seen, pending = set(), [node]
        while pending:
            for user in consumers(pending.pop()):
                if user in seen or user in inside:
                    continue
                seen.add(user)
                if user in self._stored:
                    return True
                pending.append(user)  # computed inside of what reads it
        return False


def _scatters(node: Node) -> bool:
    return not is_item(node) and op_name(node.target) in SCATTERS


def _reduced(node: Node) -> tuple[int, int, bool] | None:
    """(rows, length, whether the last dimensions are reduced) of a reduction; None for what is element-wise."""
    call = _argument(node) if is_item(node) else node
    if op_name(call.target) not in REDUCTIONS:
        return None
    whole, result = tensor_of(_argument(call)), tensor_of(node)
    rows = result.numel()
    kept = [size for size in result.shape if size != 1]
    leading = [size for size in whole.shape if size != 1][: len(kept)]
    return rows, whole.numel() // max(1, rows), kept == leading


def _new_group(node: Node, at: float) -> _Group:
    reduced = _reduced(node)
    return _Group(tensor_of(node).numel(), 1, at=at) if reduced is None else _Group(*reduced, at=at)


def _distinct(groups: Iterable[_Group]) -> list[_Group]:
    return list({id(group): group for group in groups}.values())


def _alike(one: _Group, other: _Group) -> bool:
    return (one.rows, one.length, one.trailing) == (other.rows, other.length, other.trailing)


def _fits(group: _Group, node: Node) -> bool:
    """Whether a kernel can compute a result, too: it goes over the same elements, or over the rows of a reduction."""
    reduced = _reduced(node)
    if reduced is None:
        size = tensor_of(node).numel()
        return size == group.rows or (group.trailing and size == group.rows * group.length)
    rows, length, trailing = reduced
    if group.length == 1:
        return trailing and group.rows == rows * length
    return (group.rows, group.length, group.trailing) == reduced
