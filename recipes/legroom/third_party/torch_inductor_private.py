"""Inductor, the compiler behind torch.compile: what an estimate reads of it. Importing it takes seconds and Dynamo."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

from legroom.third_party.patching import patched


@contextlib.contextmanager
def graphs_compiled_by(compile_graph: Callable[[Any, Collection[int]], Any]) -> Iterator[Callable[[], list[str]]]:
    """Inside, torch.compile gives the graphs that Inductor would write kernels for to `compile_graph` instead.

    They are what is left after Inductor's decompositions and passes, and after the partition into forward and backward.
    compile_graph(graph: torch.fx.Graph, donated): donated are the indices of a backward graph's inputs that it alone
    holds, and may overwrite. It returns a function of a list of inputs, which it empties, that returns the outputs.
    Yields a function that returns why code was left uncompiled so far.

    torch.compile looks the function `compile_fx` up in its module; its parameter `inner_compile` is Inductor's own
    way to replace the compilation of a graph, and has no public name.
    """
    import torch
    from torch._dynamo import config as dynamo_config
    from torch._dynamo.utils import counters
    from torch._inductor import compile_fx, config
    from torch._inductor.utils import get_donated_idxs

    def inner_compile(module: Any, example_inputs: Any, **settings: Any) -> Any:
        # While a forward graph is compiled, too, these are the indices of the backward graph's inputs.
        run = compile_graph(module.graph, (settings.get("is_backward") and get_donated_idxs()) or ())

        def boxed(inputs: list) -> Any:
            return run(inputs)

        boxed._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd then hands over its references to the inputs
        return boxed

    replaced = patched(compile_fx, compile_fx=functools.partial(compile_fx.compile_fx, inner_compile=inner_compile))
    # Folding computes constants on the device, which the fake GPU cannot.
    folding = config.patch(joint_graph_constant_folding=False)
    # Inputs of a second shape, a shorter last micro-batch, would get a graph whose sizes are symbols, which the fake
    # device has no numbers for. Here each shape has a graph of its own.
    static = dynamo_config.patch(automatic_dynamic_shapes=False)
    # A graph that this machine has compiled before would be run as real code, on tensors without memory.
    compiler_config: Any = getattr(torch.compiler, "config")  # noqa: B009  # the module adds `patch` to itself
    caches = compiler_config.patch(force_disable_caches=True)
    torch._dynamo.reset()
    counters.clear()
    try:
        with replaced, folding, static, caches, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
            yield lambda: list(counters["graph_break"])
    finally:
        torch._dynamo.reset()


def is_lowered(func: Any) -> bool:
    """Whether Inductor writes a kernel for an operation, instead of calling torch's."""
    from torch._inductor import lowering

    return func in lowering.lowerings and func not in lowering.fallbacks


def random_state_call(target: Any) -> str:
    """What a call in a graph does with the state of random numbers, which checkpointing keeps for the recomputation.

    "keeps": target(operation, *arguments) returns (the state, what the operation returns). "restores": target(state,
    operation, *arguments) returns that. "": any other call.
    """
    from torch._prims import rng_prims

    return {rng_prims.run_and_save_rng_state: "keeps", rng_prims.run_with_rng_state: "restores"}.get(target, "")
