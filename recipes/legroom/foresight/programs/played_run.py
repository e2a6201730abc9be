"""The observer of `legroom check`: a machine with the GPU that is predicted, and what two steps come to there.

Runs in the script's own process (process.py), as the observer of its optimizer steps.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from legroom.config import Gpu
from legroom.foresight import prediction, step_estimate, user_step
from legroom.foresight.programs import longest_rows, played_cuda, played_device, played_levers, played_ranks
from legroom.foresight.programs.longest_rows import LongestRows
from legroom.foresight.programs.played_code import Decisions
from legroom.foresight.programs.steps import Watch
from legroom.foresight.programs.trace import ProgramTrace
from legroom.foresight.speed import anatomy
from legroom.foresight.step_estimate import estimate_of, precision_of
from legroom.measure.timeline import timeline
from legroom.third_party.patching import patched


@contextlib.contextmanager
def observe(options: dict[str, Any], watch: Watch) -> Iterator[Callable[[], dict[str, Any]]]:
    """Inside, the script runs on the played GPU. The value returns what was found: `estimates`, of each GPU.

    options: gpus (name -> Gpu, all of the same rules), margin, strict, ranks, longest (whether further steps are on the
    longest rows), changes (played_levers.py; None: the script is left as it is, and what it trains with is not looked
    at), and page: whether `steps` is found, too. watch: stops the script; its limit is the number of steps.
    """
    gpus: dict[str, Gpu] = options["gpus"]
    gpu = next(iter(gpus.values()))
    fake = played_device.PlayedDevice(gpu.kernel_rules)
    followed = ProgramTrace(fake)
    ranks = options["ranks"]
    others = prediction.context(gpu)[0] + gpu.nccl_bytes * (ranks > 1)
    meter = played_cuda.Meter(lambda: followed.trace.allocator_events(), gpu.memory_bytes - others, gpu, others)
    found: dict[str, Any] = {}
    changes, facts = options.get("changes"), dict[str, Any]()

    longest = LongestRows(fake, options.get("longest", False))

    def ended(optimizers: list) -> None:
        usual, pages = found.get("estimates"), found.get("steps", {})
        followed.note_growth()
        if usual is None and longest.follow_next():
            watch.limit = (watch.limit or 0) + longest_rows.STEPS
        if not followed.trace.ledger.parts()["peak_tensor_bytes"]:
            fake.warnings["nothing of the step is on the GPU: the script does not move its model there."] = None
        found["estimates"] = {name: _estimate(followed, one, options["margin"], ranks) for name, one in gpus.items()}
        if options.get("page"):
            found["steps"] = _steps(followed, gpus, ranks)
        if changes is not None:
            found["facts"] = facts | {"optimizers": played_levers.optimizers_seen(optimizers)}
        for name, figures in (usual or {}).items():  # this step was on the longest rows
            more = figures["device_used_bytes"] > found["estimates"][name]["device_used_bytes"]
            kept = longest_rows.OF_A_USUAL_STEP + longest_rows.OF_THE_DEVICE * more
            found["estimates"][name] |= {figure: figures[figure] for figure in kept}
        for name in pages:
            found["steps"][name] = pages[name] | {"timeline": found["steps"][name]["timeline"]}

    decisions = Decisions(fake, options.get("strict", False))
    with (
        followed.following(watch, decisions, ranks, ended),
        played_cuda.machine_with(gpu, fake, meter, lambda: followed.trace.emptied(), decisions, ranks),
        played_ranks.rank_0_of(ranks, fake),
        patched(step_estimate, FOLLOWED=True),
        played_levers.changed(changes, facts) if changes is not None else contextlib.nullcontext(),
    ):
        yield lambda: found or {"decided": list(decisions.counts)}


def _steps(followed: ProgramTrace, gpus: dict[str, Gpu], ranks: int) -> dict[str, dict[str, Any]]:
    """By the GPU's name, the tensors and the operations of the last step, as its page shows them."""
    trace = followed.trace
    assert trace.origins is not None, "the last step has its origins"
    seen, precision = timeline(trace.log, trace.origins), precision_of(trace)
    tally = trace.step_tally(len(trace.passes))
    made = {name: anatomy.predicted(tally, gpu, precision, ranks) for name, gpu in gpus.items()}
    return {
        name: {"rank": 0, "timeline": seen, "operations": one.details, "summary": dataclasses.asdict(one.summary)}
        for name, one in made.items()
    }


def _estimate(followed: ProgramTrace, gpu: Gpu, margin: float, ranks: int) -> dict[str, Any]:
    """The fields of a StepEstimate on one GPU, as JSON knows them."""
    usable = prediction.usable_bytes(gpu, gpu.nccl_bytes * (ranks > 1), None)
    seen = user_step.seen_in(followed.trace, gpu, usable, list(followed.fake.warnings))
    return {**vars(estimate_of(seen, gpu, margin, usable, ranks)), "_trace": None}
