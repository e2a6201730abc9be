"""The calls that scripts/calibrate.py times on a CPU: operations by size, products by shape and layout, attention.

In a training an operation's first argument has mostly just been made by the operation before it and is still in the
cache; the others (saved activations, weights, an optimizer's states) come from memory. `Probe.made` says which tensor
that is. Arguments are slices of one pool a dtype, so that nothing is generated between two timed calls.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

Call = Callable[[], object]
aten = torch.ops.aten
WIDTH = 768  # of rows of a normalisation and of a sum over rows
HEADS, HEAD = 16, 64  # of tensors whose heads are moved before their positions, as attention needs them
# (batch, heads, positions) of attention, from few FLOPs to many
ATTENDING = ((1, 2, 64), (4, 4, 64), (4, 8, 128), (8, 12, 128), (8, 12, 512))
VOCABULARY = 16384  # length of log_softmax's rows
TOKENS = 16  # rows of an embedding's table for each row that is used
POOL = 2**24  # elements of the largest tensor
SIDES = (64, 256, 1024, 4096)  # M, N and K of products
MOST_PRODUCT = 2**32  # of M * N * K
LAYOUTS = ("nn", "nt", "tn")  # of a product's factors
# (batch, M, N, K) of products in attention: scores, and scores with values, by length and head size.
BATCHED = [(192, length, other, depth) for length in (64, 256) for other, depth in ((length, HEAD), (HEAD, length))]


class Probe(NamedTuple):
    """call: what is timed. made: the argument that the operation before has just made; None: all come from memory."""

    call: Call
    made: torch.Tensor | None


class Pool:
    """Three tensors of random numbers of a dtype, from which arguments are cut, and one to overwrite."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.a, self.b, self.c, self.target = ((0.1 + 0.9 * torch.rand(POOL)).to(dtype) for _ in range(4))

    def factor(self, source: torch.Tensor, shape: tuple[int, ...], layout: str) -> torch.Tensor:
        """A factor of a product, in memory as it is or transposed."""
        flat = source[: math.prod(shape)]
        if layout == "n":
            return flat.view(shape)
        return flat.view(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)


def element_wise(elements: int, pool: Pool) -> Iterator[Probe]:
    """Element-wise operations, copies and sums on tensors of so many elements."""
    a, b, c, target = (tensor[:elements] for tensor in (pool.a, pool.b, pool.c, pool.target))
    heads = a.view(-1, HEADS, HEAD).transpose(0, 1) if elements >= HEADS * HEAD else a
    lower = torch.bfloat16 if pool.dtype == torch.float32 else torch.float32
    for call in (
        lambda: a + b,
        lambda: a * b,
        lambda: a / b,
        lambda: a * 0.5,
        lambda: torch.pow(a, 3.0),
        lambda: torch.tanh(a),
        lambda: aten.tanh_backward(a, b),
        lambda: aten.gelu(a),
        lambda: aten.gelu_backward(a, b),
        lambda: aten.silu(a),
        lambda: aten.silu_backward(a, b),
        lambda: -a,
        lambda: a.sqrt(),
        lambda: torch.empty_like(a).bernoulli_(0.9),
        lambda: a.add_(b, alpha=0.0),
        lambda: a.div_(1.0),
        lambda: a.addcmul_(b, c, value=0.0),
        lambda: a.addcdiv_(b, c, value=0.0),
        lambda: torch.linalg.vector_norm(a),
        lambda: heads.clone(memory_format=torch.contiguous_format),
        lambda: torch.cat([a, b]),
    ):
        yield Probe(call, a)
    # Gradients are cast where they were made; weights, and what the optimizer and the clipping read first, were not.
    yield Probe(lambda: a.to(lower), None if pool.dtype == torch.float32 else a)
    yield Probe(lambda: a.mul_(1.0), None)
    yield Probe(lambda: a.lerp_(b, 0.01), None)
    yield Probe(lambda: aten._foreach_mul_.Scalar([a], 1.0), None)
    yield Probe(lambda: aten._foreach_norm.Scalar([a]), None)
    yield Probe(lambda: target.zero_(), None)
    rows = a[: elements // WIDTH * WIDTH].view(-1, WIDTH)
    if len(rows) > 1:
        yield Probe(lambda: rows.sum(0), rows)
        yield Probe(lambda: rows.mean(-1, keepdim=True), rows)
        yield Probe(lambda: aten.slice_backward(rows, [len(rows), 2 * WIDTH], 1, 0, WIDTH, 1), rows)


def by_rows(elements: int, pool: Pool) -> Iterator[Probe]:
    """Normalisations, softmax and losses, whose rows have a length; rows of a table by their number."""
    count, dtype = max(2, elements // WIDTH), pool.dtype
    rows = pool.a[: count * WIDTH].view(-1, WIDTH)
    scale, shift = torch.ones(WIDTH, dtype=dtype), torch.zeros(WIDTH, dtype=dtype)
    normal, mean, deviation = aten.native_layer_norm(rows, [WIDTH], scale, shift, 1e-5)
    yield Probe(lambda: aten.native_layer_norm(rows, [WIDTH], scale, shift, 1e-5), rows)
    yield Probe(
        lambda: aten.native_layer_norm_backward(rows, normal, [WIDTH], mean, deviation, scale, shift, [True] * 3), rows
    )
    scores = pool.a[: max(2, elements // 128) * 128].view(-1, 128)
    saved = pool.b[: scores.numel()].view(-1, 128)
    yield Probe(lambda: torch.softmax(scores, -1), scores)
    yield Probe(lambda: aten._safe_softmax(scores, -1), scores)
    yield Probe(lambda: aten._softmax_backward_data(scores, saved, -1, dtype), scores)
    logits = pool.a[: max(2, elements // VOCABULARY) * VOCABULARY].view(-1, VOCABULARY)
    saved_logits = pool.b[: logits.numel()].view(-1, VOCABULARY)
    labels = torch.zeros(len(logits), dtype=torch.long)
    one = torch.ones((), dtype=dtype)
    total = torch.tensor(float(len(labels)), dtype=dtype)
    yield Probe(lambda: torch.log_softmax(logits, -1), logits)
    yield Probe(lambda: aten._log_softmax_backward_data(logits, saved_logits, -1, dtype), logits)
    yield Probe(lambda: aten.nll_loss_backward(one, logits, labels, None, 1, -100, total), None)
    table = pool.b[: POOL // WIDTH * WIDTH].view(-1, WIDTH)
    tokens = torch.randint(0, len(table), (count,))
    yield Probe(lambda: torch.nn.functional.embedding(tokens, table), None)
    used = torch.randint(0, count, (max(1, count // TOKENS),))
    gradient = rows[: len(used)]
    yield Probe(lambda: aten.embedding_dense_backward(gradient, used, count, -1, False), gradient)


def attention(pool: Pool) -> Iterator[Probe]:
    """Attention by its own kernel, forward and backward; half of it is masked."""
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    for sizes in ATTENDING:
        shape = (*sizes, HEAD)
        q, k, v = (source[: math.prod(shape)].view(shape) for source in (pool.a, pool.b, pool.c))
        out, logsumexp = forward(q, k, v, 0.0, True)
        grad = pool.target[: q.numel()].view(shape)
        backward = functools.partial(
            aten._scaled_dot_product_flash_attention_for_cpu_backward, grad, q, k, v, out, logsumexp, 0.0, True
        )
        yield Probe(functools.partial(forward, q, k, v, 0.0, True), q)
        yield Probe(backward, grad)


def products(pool: Pool, layout: str) -> Iterator[tuple[tuple[int, int, int], Probe]]:
    """((M, N, K), product) by side. layout: of the factors, as `Operation.layout`.

    A linear layer has nt in the forward pass, nn for the gradient of its input, and tn for that of its weight.
    """
    for m in SIDES:
        for n in SIDES:
            for k in SIDES:
                if m * n * k <= MOST_PRODUCT:
                    left, right = pool.factor(pool.a, (m, k), layout[0]), pool.factor(pool.b, (k, n), layout[1])
                    yield (m, n, k), Probe(functools.partial(torch.mm, left, right), left)


def batched(pool: Pool, layout: str) -> Iterator[tuple[tuple[int, int, int, int], Probe]]:
    """((batch, M, N, K), batch of products) in attention."""
    for batch, m, n, k in BATCHED:
        batch = max(8, batch * 128 // m)
        left = pool.factor(pool.a, (batch, m, k), layout[0])
        right = pool.factor(pool.b, (batch, k, n), layout[1])
        yield (batch, m, n, k), Probe(functools.partial(torch.bmm, left, right), left)
