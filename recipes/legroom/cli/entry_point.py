"""From the command line to an exit code: Hydra composes, this package checks, starts jobs and reports.

Hydra's experimental callbacks (on_multirun_start, on_multirun_end) are not used for the start and the end of a sweep:
they cannot set the exit code, and on_multirun_end is not called when the sweep ends with an error.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import hydra
import yaml
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from legroom import invocation, levers, paths
from legroom.cli import argv, console, exit_codes, flags, joblib_jobs, single_run, submitit_jobs, sweep_run
from legroom.cli import sweep as sweeps
from legroom.cli.exit_codes import REFUSED
from legroom.compat import hydra_private, hydra_refused_code_private, hydra_remembered_private
from legroom.errors import Refusal
from legroom.machine import instances
from legroom.options import compose, hydra_errors, model_names, overrides
from legroom.ranks.rank_info import RankInfo, current_rank

VERBOSE = "--verbose"  # the one flag that is not Hydra's
ENDS_SWEEP = ("interrupted", "preempted", sweeps.INVALID)  # statuses after which no further job is run
WAITS_FOR_RANKS = "LEGROOM_WAITS_FOR_RANKS"  # set by what waits for every rank: cli/submit/assets/ranks.sh
REFUSAL_DELAY_SECONDS = 10.0  # before a rank other than 0 exits after a refusal


def run(conf: Path) -> int:
    """Run what the command line says, with the menus of the folder conf. Returns the exit code."""
    code = _run(conf)
    if code == REFUSED and not current_rank().is_main:
        time.sleep(REFUSAL_DELAY_SECONDS)  # a launcher ends all ranks when one exits, and only rank 0 prints the reason
    return code


def _run(conf: Path) -> int:
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises, and hydra_errors explains
    compose.store_schema()
    console.VERBOSE = VERBOSE in sys.argv[1:]
    typed, problems = _checked(conf, [text for text in sys.argv[1:] if text != VERBOSE])
    if problems:
        return _refuse(*problems)
    rank_info = current_rank()
    if rank_info.launched and argv.MULTIRUN & set(typed):
        return _refuse(_sweep_under_launcher(rank_info))
    sys.argv[1:] = argv.expand_argv(typed, rank_info)
    sweep = sweeps.new()
    folder = argv.sweep_folder(sys.argv[1:])
    if folder is not None and not any(text.startswith("hydra/launcher=") for text in sys.argv[1:]):
        sweeps.fork_server()  # imports while Hydra composes; other launchers run jobs in processes of their own
    ended = Ended()
    try:
        _run_jobs(conf, sweep, folder, ended)
    except _Refused as refused:
        return _refuse(*refused.problems)
    if folder is not None:
        return sweep_run.conclude(sweep, folder, ended.statuses)
    if not ended.statuses:  # of a flag that runs no job
        return 0
    return exit_codes.of(ended.statuses[-1], ended.preempted_exit_code)


@dataclass
class Ended:
    """How the jobs ended that this process has run. preempted_exit_code: launch.preempted_exit_code of a single run."""

    statuses: list[str] = field(default_factory=list)
    preempted_exit_code: int = 0


class _Refused(Exception):
    """Hydra has refused the command line, or the folder cannot be written."""

    def __init__(self, *problems: str):
        self.problems = problems


def _run_jobs(conf: Path, sweep: sweeps.Sweep, folder: Path | None, ended: Ended) -> None:
    """Have Hydra compose and run the jobs. folder: the sweep's, or None. Raises _Refused."""
    if folder is None:
        remembered = contextlib.nullcontext()  # a run is composed once
    else:
        remembered = hydra_remembered_private.remembered()
    try:
        with (
            submitit_jobs.followed(sweep, folder),
            joblib_jobs.stoppable(sweep, folder),
            hydra_private.flags_decide_the_mode(),
            hydra_private.forgotten_jobs(),
            remembered,
            hydra_refused_code_private.checked(_check_sweep),
            console.one_line_warnings(),
        ):
            _hydra_main(conf, sweep, ended)()
    except KeyboardInterrupt:  # before a job, or between two
        ended.statuses.append("interrupted")
    except Refusal as refusal:
        raise _Refused(*str(refusal).splitlines()) from refusal
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        # No job was started, also in a sweep.
        raise _Refused(hydra_errors.explain(error, paths.menus())) from error
    except OSError as error:
        key = "hydra.run.dir" if folder is None else "hydra.sweep.dir"
        raise _Refused(single_run.unwritable(error, key)) from error
    except Exception as error:
        if hydra_private.raised_by_hydra(error):
            raise _Refused(hydra_errors.explain(error, paths.menus())) from error
        if not hydra_private.raised_by_plugin(error):
            raise
        if sweeps.INVALID not in ended.statuses:  # whose reason was printed
            console.say_problems([f"the sweeper or launcher ended with {type(error).__name__}: {error}"])
            ended.statuses.append("failed")


def _checked(conf: Path, typed: list[str]) -> tuple[list[str], list[str]]:
    """(the command line with its flags in front and its paths in quotes, why it cannot be used)."""
    line = flags.split(typed)
    if line.problems or line.names & flags.NO_JOBS:
        return line.flags + line.overrides, line.problems
    own_folders, typed_for_them = flags.own_menus(line)
    paths.remember_menus(typed_for_them, own_folders or ())
    folders = []  # of menus; none where they are not known
    if own_folders is not None and not line.names & flags.CONFIG_PATH:
        folders = [conf, *own_folders]
    named, notes = model_names.in_overrides(line.overrides, folders or [conf])
    for note in notes:
        console.say(note)
    try:
        named = instances.in_overrides(named)
    except Refusal as refusal:
        return line.flags + line.overrides, str(refusal).splitlines()
    in_quotes = overrides.quoted(named)
    sweeping = bool(line.names & argv.MULTIRUN)
    problems = overrides.problems(in_quotes, folders, sweeping)
    if not sweeping and not line.names & flags.SHOWS:
        problems += argv.only_for_sweeps(in_quotes)
    return line.flags + argv.leave_auto_out(in_quotes), problems


def _check_sweep(hydra_config: DictConfig) -> None:
    """Raise Refusal for what a file lets a sweeper vary and nobody could type. hydra_config: Hydra's own node."""
    folders = compose.menu_folders(cast(HydraConf, hydra_config))
    problems = overrides.swept_in_a_file(hydra_config.sweeper.params, folders)
    if problems:
        raise Refusal("\n".join(problems))


def _hydra_main(conf: Path, sweep: sweeps.Sweep, ended: Ended) -> Callable[[], None]:
    """Hydra's main function: composes the configuration of each job, runs it, and notes in `ended` how it ended."""

    @hydra.main(version_base="1.3", config_path=str(conf), config_name="config")
    def job(composed: DictConfig) -> str | float:
        levers.load_rules()  # a launcher's own process comes here first
        hydra_config = HydraConfig.get()
        if hydra_config.mode == RunMode.MULTIRUN:
            return _job_of_sweep(composed, hydra_config, sweep, ended)
        status = single_run.run_alone(composed, hydra_config)
        ended.statuses.append(status)
        # Most launchers end all ranks where one fails, and rank 0 may still write.
        if current_rank().is_main or WAITS_FOR_RANKS in os.environ:
            ended.preempted_exit_code = composed.launch.preempted_exit_code
        return status

    return job


def _job_of_sweep(composed: DictConfig, hydra_config: HydraConf, sweep: sweeps.Sweep, ended: Ended) -> str | float:
    """Run a job of a sweep. Returns what the sweeper is given: the number of `objective`, or the status."""
    if set(ENDS_SWEEP) & set(ended.statuses):
        return ended.statuses[-1]
    folder = Path(hydra_config.sweep.dir).absolute()
    status, number = sweep_run.run_in_sweep(composed, hydra_config, sweep, folder)
    submitit_jobs.exit_if_failed(status)
    ended.statuses.append(status)
    if number is not None:
        return number
    return status


def _refuse(*problems: str) -> int:
    console.say_problems(list(problems))
    return REFUSED


def _sweep_under_launcher(rank_info: RankInfo) -> str:
    return (
        f"a sweep starts the ranks of each job itself, and a launcher has started {rank_info.world_size} already. Type "
        f"{invocation.command()} -m ... parallelism.num_processes={rank_info.world_size} instead, without the launcher."
    )
