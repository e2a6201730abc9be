"""What a configuration may have Hydra import or run: what this project documents, and nothing else."""

from __future__ import annotations

import re

import hydra._internal.hydra
import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from omegaconf import OmegaConf

from legroom.compat import hydra_refused_code_private as refused_code

CALL = {"_target_": "os.mkdir", "path": "MADE"}


@pytest.fixture
def calls(tmp_path):
    """calls(node, **more) -> a folder of menus whose experiment/own/x.yaml sets that node of Hydra, and a path that
    its code would make."""

    def calls(values):
        made = tmp_path / "made"
        text = yaml.safe_dump({"hydra": values}).replace("MADE", str(made))
        (tmp_path / "mine/experiment/own").mkdir(parents=True)
        (tmp_path / "mine/experiment/own/x.yaml").write_text(f"# @package _global_\n{text}")
        return tmp_path / "mine", made

    return calls


RAY = "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher"
OPTUNA = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"
SLURM = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
LATER = "${.${oc.select:hydra.job.id,now}}"  # what a job's id makes another value than is there when it is checked


@pytest.mark.parametrize(
    "values, key",
    [({"callbacks": {"x": CALL}}, "hydra.callbacks"), ({"job": {"env_set": {"PYTHONPATH": "x"}}}, "hydra.job.env_set")],
)
def test_code_that_a_file_names_is_refused_by_its_key_and_not_run(command, calls, values, key):
    folder, made = calls(values)
    ended = command("--config-dir", str(folder), "+experiment/own=x", "device=cpu", fork_server=None)
    assert ended.code == 2 and key in ended.err and len(ended.err.splitlines()) == 1, ended.err
    assert not made.exists()


@pytest.mark.parametrize(
    "values, key",
    [
        ({"callbacks": {"x": "${oc.create:{_target_:os.getcwd}}"}}, "callbacks"),
        ({"callbacks": "${oc.select:hydra.job.id}"}, "callbacks"),
        ({"launcher": {"_target_": "os.getcwd"}}, "launcher._target_"),
        ({"launcher": {"_target_": SLURM, "teardown": ["x"]}}, "launcher.teardown"),
        ({"launcher": {"_target_": SLURM, "srun_args": ["--task-prolog=x"]}}, "launcher.srun_args"),
        (
            {"launcher": {"_target_": RAY, "ray": {"init": {"runtime_env": {"pip": ["x"]}}}}},
            "launcher.ray.init.runtime_env",
        ),
        ({"launcher": {"_target_": RAY, "ray": {"init": {"address": "x:1"}}}}, "launcher.ray.init.address"),
        ({"sweeper": {"params": {"x": CALL}}}, "sweeper.params.x._target_"),
        ({"sweeper": {"params": {"+hydra.job.env_set.LD_PRELOAD": "x"}}}, "sweeper.params.+hydra"),
        ({"sweeper": {"sampler": {"_target_": "optuna.samplers._cmaes.pickle.loads"}}}, "sweeper.sampler._target_"),
        ({"job_logging": {"handlers": {"x": {"()": "os.getcwd"}}}}, "job_logging.handlers.x.()"),
        ({"hydra_logging": {"filters": {"x": {"()": "os.getcwd"}}}}, "hydra_logging.filters.x.()"),
        ({"job_logging": {"handlers": {"x": {"class": "legroom.Own"}}}}, "job_logging.handlers.x.class"),
        ({"job_logging": {"handlers": {"x": {"stream": "ext://os.sep"}}}}, "job_logging.handlers.x.stream"),
        ({"job_logging": {"x": {"class": LATER, "now": "logging.NullHandler"}}}, "job_logging.x.class"),
        ({"job_logging": {"x": LATER, "now": {}}}, "job_logging.x"),
        ({"job_logging": {"handlers": {"x": {"filename": ".bashrc"}}}}, "job_logging.handlers.x.filename"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_could_run_code_is_refused_by_its_key(values, key):
    with pytest.raises(HydraException, match=re.escape(f"hydra.{key}")):
        refused_code.check(_composed(**values), ["+hydra.job.env_set.LD_PRELOAD=x"])


@pytest.mark.parametrize(
    "typed, key",
    [
        (["+hydra.callbacks.x._target_=os.getcwd"], "hydra.callbacks"),
        (["+hydra.callbacks={x:{_target_:os.getcwd}}"], "hydra.callbacks"),
        (["-m", "hydra.launcher._target_=os.getcwd", "train.seed=1,2"], "hydra.launcher._target_"),
        (["-m", "hydra.sweeper._target_=hydra_plugins.own.Sweeper", "train.seed=1,2"], "hydra.sweeper._target_"),
        (["+hydra.job_logging.handlers.x.class=logging.config.valid_ident"], "hydra.job_logging.handlers.x.class"),
        (["hydra.searchpath=[pkg://antigravity]"], "pkg://antigravity"),
    ],
    ids=lambda typed: typed[0] if isinstance(typed, list) else "",
)
def test_code_that_a_command_names_is_refused(command, typed, key):
    ended = command(*typed, "optim=stable_adamw", "device=cpu", fork_server=None)
    assert ended.code == 2 and key in ended.err and "Traceback" not in ended.err, ended.err


def test_a_job_of_a_sweep_is_asked_as_well_wherever_it_is_composed(command, calls):
    folder, made = calls({"job_logging": {"handlers": {"x": {"()": "os.mkdir", "path": "MADE"}}}})
    (folder / "experiment/own/y.yaml").write_text("# @package _global_\ntrain:\n  max_steps: 0\n")
    ended = command("-m", "--config-dir", str(folder), "+experiment/own=x,y", "device=cpu", fork_server=None)
    assert ended.code == 2 and "hydra.job_logging.handlers.x.()" in ended.err and not made.exists(), ended.err


def test_what_the_documentation_names_stays_possible():
    """Of Optuna, which is not installed beside ours: its own launchers, sweepers, samplers."""
    sampler = {"_target_": "optuna.samplers.TPESampler", "seed": 1}
    refused_code.check(_composed(sweeper={"_target_": OPTUNA, "sampler": sampler, "direction": "minimize"}), [])
    launcher = {"_target_": SLURM, "name": "${hydra.job.name}", "setup": ["module load cuda"]}
    refused_code.check(_composed(launcher=launcher), ["hydra.launcher.setup=[module load cuda]"])
    with pytest.raises(HydraException, match=r"hydra\.launcher\.setup"):
        refused_code.check(_composed(launcher=launcher), ["hydra/launcher=submitit_slurm"])
    ray = {"_target_": RAY, "ray": {"init": {"address": "auto", "num_cpus": 2}, "remote": {"num_gpus": 1}}}
    refused_code.check(_composed(launcher=ray), ["hydra.launcher.ray.init.address=auto"])
    with pytest.raises(HydraException, match=r"hydra\.launcher\.comment"):
        refused_code.check(_composed(launcher={"_target_": SLURM, "comment": "a\nrm x"}), [])
    with pytest.raises(HydraException, match=r"custom_search_space"):
        refused_code.check(_composed(sweeper={"_target_": OPTUNA, "custom_search_space": "os.getcwd"}), [])


def test_a_part_that_stands_elsewhere_is_refused():
    basic = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher", "x": "${hydra.help}"}
    with pytest.raises(HydraException, match=r"hydra\.launcher\.x"):
        refused_code.check(_composed(launcher=basic, help=CALL), [])


@pytest.mark.parametrize("name", ["basic", "joblib", "submitit_local", "submitit_slurm"])
def test_launchers_that_are_installed_are_not_refused(command, name):
    ended = command(f"hydra/launcher={name}", "--cfg", "hydra", fork_server=None)
    assert ended.code == 0 and "_target_" in ended.out, ended.err


@pytest.mark.parametrize("name", ["default", "disabled", "none", "stdout"])
def test_hydras_own_logging_is_not_refused(command, name):
    ended = command(f"hydra/job_logging={name}", "train.max_steps=0", "device=cpu", fork_server=None)
    assert ended.err.startswith("refused: train.max_steps=0"), ended.err


def test_the_loader_that_is_replaced_is_what_hydra_makes():
    assert hydra._internal.hydra.ConfigLoaderImpl is ConfigLoaderImpl
    assert callable(ConfigLoaderImpl.load_configuration) and callable(ConfigLoaderImpl._process_config_searchpath)


def _composed(**nodes):
    return OmegaConf.create({"hydra": {"job": {"env_set": {}, "env_copy": [], "id": "???"}, **nodes}})
