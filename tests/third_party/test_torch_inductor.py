"""Each private name of Inductor that the project uses still does what the project needs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._inductor import compile_fx, config

from legroom.foresight.fake_gpu import fused_kernels
from legroom.third_party import torch_inductor_private

aten = torch.ops.aten


def test_graphs_compiled_by():
    """torch.compile gives the graphs of both passes, runs what it gets for them, and is itself again afterwards."""
    graphs, inputs, own = [], [], compile_fx.compile_fx

    def compiled(graph, donated):
        graphs.append((graph, donated))

        def run(given):
            inputs.append(given)
            values = list(given)
            given.clear()
            return torch.fx.Interpreter(graph.owning_module).run(*values)

        return run

    weight = torch.nn.Parameter(torch.ones(4, 4))
    with torch_inductor_private.graphs_compiled_by(compiled) as breaks:
        torch.compile(lambda x: torch.tanh(x @ weight).exp().sum())(torch.ones(2, 4)).backward()
        assert breaks() == []
    assert weight.grad is not None and len(graphs) == 2 and inputs == [[], []]
    (forward, of_forward), (backward, donated) = graphs
    assert not of_forward, "its inputs are not those that the backward graph alone holds"
    assert [node.op for node in forward.nodes].count("output") == 1
    saved = [node for node in backward.nodes if node.op == "placeholder"]
    assert donated and max(donated) < len(saved)
    assert all(node.meta["val"].shape is not None for node in saved)
    assert compile_fx.compile_fx is own


def test_graphs_compiled_by_says_what_is_left_out():
    def broken(x):
        torch._dynamo.graph_break()
        return x.sin()

    with torch_inductor_private.graphs_compiled_by(
        lambda graph, _: lambda given: torch.fx.Interpreter(graph.owning_module).run(*given)
    ) as breaks:
        torch.compile(broken)(torch.ones(2))
        assert len(breaks()) == 1


def test_every_shape_of_the_inputs_has_a_graph_of_its_own():
    """A shorter last micro-batch: torch.compile would make a graph whose sizes are symbols."""
    shapes = []

    def compiled(graph, _):
        shapes.append([node.meta["val"].shape for node in graph.nodes if node.op == "placeholder"])
        return lambda given: torch.fx.Interpreter(graph.owning_module).run(*given)

    with torch_inductor_private.graphs_compiled_by(compiled):
        double = torch.compile(lambda x: x * 2)
        for rows in (4, 2):
            double(torch.ones(rows, 3))
    assert shapes == [[(4, 3)], [(2, 3)]]


@pytest.mark.parametrize(
    "func,lowered",
    [
        (aten.add.Tensor, True),
        (aten.sum.dim_IntList, True),
        (aten._scaled_dot_product_efficient_attention.default, False),
    ],
)
def test_is_lowered(func, lowered):
    assert torch_inductor_private.is_lowered(func) == lowered


def test_the_thresholds_of_fused_kernels_are_inductors():
    assert config.realize_reads_threshold == fused_kernels.READS_OF_A_REUSED_RESULT
    assert config._realize_opcount_threshold_default == fused_kernels.OPERATIONS_OF_A_REUSED_RESULT
    assert config._realize_acc_reads_threshold_default == fused_kernels.MOST_READS
    assert config.inplace_buffers


def test_a_job_that_does_not_compile_does_not_import_inductor():
    name = torch_inductor_private.__name__
    code = f"import sys; import {name}; print([name for name in sys.modules if name.startswith('torch')])"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"[]\n"


def test_random_state_call():
    """Checkpointing keeps the state of random numbers in the forward graph, and restores it in the backward one."""
    from torch._prims import rng_prims

    keeps, restores = rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state
    assert torch_inductor_private.random_state_call(keeps) == "keeps"
    assert torch_inductor_private.random_state_call(restores) == "restores"
    assert torch_inductor_private.random_state_call(aten.add.Tensor) == ""
    state, drawn = keeps(aten.bernoulli.p, torch.ones(32), 0.5)
    assert torch.equal(restores(state, aten.bernoulli.p, torch.ones(32), 0.5), drawn)
