"""From the command line to an exit code: Hydra composes, this package checks, starts jobs and reports.

Hydra's experimental callbacks (on_multirun_start, on_multirun_end) are not used for the start and the end of a sweep:
they cannot set the exit code, and on_multirun_end is not called when the sweep ends with an error.
"""

import os
import sys
import time
from collections.abc import Callable
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
from legroom.compat import hydra_private, hydra_refused_code_private
from legroom.errors import Refusal
from legroom.options import compose, hydra_errors, overrides
from legroom.ranks.rank_info import RankInfo, current_rank

VERBOSE = "--verbose"  # the one flag that is not Hydra's
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
    sys.argv[1:] = typed
    rank_info = current_rank()
    if rank_info.launched and argv.MULTIRUN & set(sys.argv[1:]):
        return _refuse(_sweep_under_launcher(rank_info))
    sys.argv[1:] = argv.expand_argv(sys.argv[1:], rank_info)
    statuses: list[str] = []  # of the jobs that this process has run
    preempted: list[int] = []  # launch.preempted_exit_code of a single run
    sweep, folder = sweeps.new(), argv.sweep_folder(sys.argv[1:])
    if folder is not None and not any(argument.startswith("hydra/launcher=") for argument in sys.argv[1:]):
        sweeps.fork_server()  # imports while Hydra composes; other launchers run jobs in processes of their own
    try:
        with (
            submitit_jobs.followed(sweep, folder),
            joblib_jobs.stoppable(sweep, folder),
            hydra_private.flags_decide_the_mode(),
            hydra_refused_code_private.checked(_check_sweep),
            console.one_line_warnings(),
        ):
            _hydra_main(conf, sweep, statuses, preempted)()
    except KeyboardInterrupt:  # before a job, or between two
        statuses.append("interrupted")
    except Refusal as refusal:
        return _refuse(*str(refusal).splitlines())
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        return _refuse(hydra_errors.explain(error, paths.menus()))  # no job was started, also in a sweep
    except OSError as error:
        return _refuse(single_run.unwritable(error, "hydra.run.dir" if folder is None else "hydra.sweep.dir"))
    except Exception as error:
        if hydra_private.raised_by_hydra(error):
            return _refuse(hydra_errors.explain(error, paths.menus()))
        if not hydra_private.raised_by_plugin(error):
            raise
        if sweeps.INVALID not in statuses:  # whose reason was said
            console.say_problems([f"the sweeper or launcher ended with {type(error).__name__}: {error}"])
            statuses.append("failed")
    if folder is not None:
        return sweep_run.conclude(sweep, folder, statuses)
    return exit_codes.of(statuses[-1], preempted[-1] if preempted else 0) if statuses else 0


def _checked(conf: Path, typed: list[str]) -> tuple[list[str], list[str]]:
    """(the command line with its flags in front and its paths in quotes, why it cannot be used)."""
    line = flags.split(typed)
    if line.problems or line.names & flags.NO_JOBS:
        return line.flags + line.overrides, line.problems
    own, typed_for_them = flags.own_menus(line)
    paths.remember_menus(typed_for_them, own or ())
    folders = [] if own is None or line.names & flags.CONFIG_PATH else [conf, *own]
    in_quotes = overrides.quoted(line.overrides)
    sweeping = bool(line.names & argv.MULTIRUN)
    problems = overrides.problems(in_quotes, folders, sweeping)
    if not sweeping and not line.names & flags.SHOWS:
        problems += argv.only_for_sweeps(in_quotes)
    return line.flags + argv.leave_auto_out(in_quotes), problems


def _check_sweep(hydra_config: DictConfig) -> None:
    """Raise Refusal for what a file lets a sweeper vary and nobody could type. hydra_config: Hydra's own node."""
    folders = compose.menu_folders(cast(HydraConf, hydra_config))
    if problems := overrides.swept_in_a_file(hydra_config.sweeper.params, folders):
        raise Refusal("\n".join(problems))


def _hydra_main(conf: Path, sweep: sweeps.Sweep, statuses: list[str], preempted: list[int]) -> Callable[[], None]:
    """Hydra's main function: composes the configuration of each job and runs it. Appends to the statuses, and for a
    single run to the exit codes of one that is preempted."""

    @hydra.main(version_base="1.3", config_path=str(conf), config_name="config")
    def job(composed: DictConfig) -> str | float:
        levers.load_rules()  # a launcher's own process comes here first
        hydra_config = HydraConfig.get()
        if hydra_config.mode == RunMode.MULTIRUN:
            if {"interrupted", "preempted", sweeps.INVALID} & set(statuses):  # these end the whole sweep
                return statuses[-1]
            sweep_dir = Path(hydra_config.sweep.dir).absolute()
            status, number = sweep_run.run_in_sweep(composed, hydra_config, sweep, sweep_dir)
            submitit_jobs.exit_if_failed(status)
            statuses.append(status)
            if number is not None:
                return number  # to the sweeper
        else:
            statuses.append(single_run.run_alone(composed, hydra_config))
            if current_rank().is_main:  # a launcher ends all ranks where one fails: rank 0 may still write
                preempted.append(composed.launch.preempted_exit_code)
        return statuses[-1]

    return job


def _refuse(*problems: str) -> int:
    console.say_problems(list(problems))
    return REFUSED


def _sweep_under_launcher(rank_info: RankInfo) -> str:
    return (
        f"a sweep starts the ranks of each job itself, and a launcher has started {rank_info.world_size} already. Type "
        f"{invocation.command()} -m ... parallelism.num_processes={rank_info.world_size} instead, without the launcher."
    )
