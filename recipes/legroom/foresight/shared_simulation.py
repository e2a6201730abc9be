"""Simulations that the jobs of one sweep share: on GPUs of the same rules the same step allocates and runs the same.

The cards of a generation differ in capacity and speed, which come after the simulation. The sweep makes a folder of its
own, which nobody else can write to and which ends with it, and names it in the environment (SIMULATIONS).
"""

import hashlib
import json
import os
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from legroom import config
from legroom.config import Config
from legroom.estimator.fake_gpu import attention, op_trace, reductions
from legroom.estimator.ledger.timeline import timeline
from legroom.foresight import prediction, simulation
from legroom.foresight.simulation import SimulatedStep
from legroom.machine.worker_environment import SIMULATIONS


def simulate_step(
    cfg: Config, folder: str, listener: simulation.Listener = simulation.NOBODY
) -> tuple[SimulatedStep, dict[str, Any]]:
    """(`simulation.simulate_step` of an estimate, its timeline), which another job of this sweep may have simulated.

    What another job has simulated comes without its trace, which only estimate.explain reads.
    """
    shared, capacity = os.environ.get(SIMULATIONS), prediction.allocator_bytes(cfg)
    file = Path(shared, _key(cfg)) if shared and cfg.target.gpu and not cfg.estimate.explain else None
    if file is not None and file.exists():
        values, seen = pickle.loads(file.read_bytes())
        return simulation.within(SimulatedStep(**(values | {"trace": None})), capacity, cfg.gpu.memory_bytes), seen
    simulated = simulation.simulate_step(cfg, folder, capacity, True, True, listener)
    assert simulated.trace.origins is not None
    seen = timeline(simulated.trace.log, simulated.trace.origins)
    if file is not None:
        bare = replace(simulated, demand=None, lengths=None, unknown_settings=[])
        values = {each.name: getattr(bare, each.name) for each in fields(bare) if each.name != "trace"}
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps((values, seen)))
        part.replace(file)
    return simulated, seen


def _key(cfg: Config) -> str:
    """The same for configurations whose steps differ in the GPU's capacity and speed alone."""
    values = config.to_dict(cfg) | {"gpu": cfg.gpu.machines}  # where FSDP's groups of a machine's ranks end
    del values["launch"]
    capability = cfg.gpu.kernel_rules
    rules = [*attention.rules(capability), op_trace.cublas_workspace_bytes(capability)]
    rules += [reductions.threads_per_multiprocessor(capability), cfg.gpu.sm_count]
    return hashlib.sha256(json.dumps([values, rules], sort_keys=True).encode()).hexdigest()[:16]
