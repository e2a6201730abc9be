"""From the command line to the record: Hydra composes, we check, launch and report. Never imports torch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from recipes import config
from recipes.cli import argv, console, single_run, submitit_jobs, sweep, sweep_run
from recipes.options import hydra_errors
from recipes.ranks import rank_info

BEHIND_SECONDS = 10.0  # how long a rank that refuses lets rank 0 go first


def run(conf: Path) -> int:
    """Run what the command line says. conf: the folder of the menus. Returns the exit code."""
    code = _run(conf)
    if code == single_run.EXIT_CODES["refused"] and not rank_info.current_rank().is_main:
        time.sleep(BEHIND_SECONDS)  # a launcher ends all ranks as soon as one has gone, and only rank 0 says why
    return code


def _run(conf: Path) -> int:
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, and we say it in our words
    ConfigStore.instance().store(name="schema", node=config.Config)
    place = rank_info.current_rank()
    if place.launched and {"-m", "--multirun"} & set(sys.argv[1:]):
        console.say_problems(
            [
                f"a sweep starts the ranks of each job itself, and a launcher has started {place.world_size} "
                "already. Type python train.py -m ... parallelism.num_processes="
                f"{place.world_size} instead, without the launcher."
            ]
        )
        return single_run.EXIT_CODES["refused"]
    sys.argv[1:] = argv.expand_argv(sys.argv[1:], place)
    statuses: list[str] = []  # of the jobs in this process; a sweep's are in its file
    this, folder = sweep.new(conf), argv.sweep_folder(sys.argv[1:])

    @hydra.main(version_base="1.3", config_path=str(conf), config_name="config")
    def job(composed) -> str:
        told = HydraConfig.get()
        if told.mode == RunMode.MULTIRUN:
            if {"interrupted", "preempted", sweep.INVALID} & set(statuses):  # ends the sweep, not one of its jobs
                return statuses[-1]
            statuses.append(sweep_run.run_in_sweep(composed, told, this, Path(told.sweep.dir).absolute()))
        else:
            statuses.append(single_run.run_alone(composed, told, conf))
        return statuses[-1]

    if folder is not None and not any(word.startswith("hydra/launcher=") for word in sys.argv[1:]):
        sweep.fork_server()  # its imports take longer than Hydra's part; other launchers run jobs in processes of their own
    try:
        with submitit_jobs.followed(this, folder):
            job()
    except KeyboardInterrupt:  # before a job had begun, or between two of them
        statuses.append("interrupted")
    except (HydraException, OmegaConfBaseException) as error:
        console.say_problems([hydra_errors.explain(error, conf)])
        return single_run.EXIT_CODES["refused"]  # nothing has started, also in a sweep
    except ValueError as error:
        if not hydra_errors.raised_by_hydra(error):
            raise
        emptied = [g for g in config.GROUPS if any(w.lstrip("+") in (f"{g}=null", f"{g}=") for w in sys.argv[1:])]
        console.say_problems([hydra_errors.needs_option(group, [conf]) for group in emptied] or [str(error).strip()])
        return single_run.EXIT_CODES["refused"]
    except OSError as error:
        console.say_problems([single_run.unwritable(error, "hydra.run.dir" if folder is None else "hydra.sweep.dir")])
        return single_run.EXIT_CODES["refused"]
    if folder is not None:
        return sweep_run.conclude(this, folder, statuses)
    return single_run.EXIT_CODES.get(statuses[-1], 1) if statuses else 0
