"""Private names of Hydra that legroom.compat.hydra_private uses."""

import sys

import hydra
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core import utils

from legroom.compat import hydra_private
from legroom.options import compose
from legroom.paths import CONF


def test_get_args_parser_separates_overrides_from_flags():
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        swept, fixed = hydra_private.parse_overrides(["-m", "optim=adamw,sgd", "train.seed=1"])
    assert swept.is_sweep_override() and list(swept.sweep_string_iterator()) == ["adamw", "sgd"]
    assert fixed.get_key_element() == "train.seed" and not fixed.is_sweep_override()


def test_raised_by_hydra_is_true_for_an_error_of_its_own_checks_alone():
    with pytest.raises(AssertionError) as in_hydra:
        hydra.compose("config")  # before Hydra is initialized
    with pytest.raises(ValueError) as in_python:
        int("x")
    assert hydra_private.raised_by_hydra(in_hydra.value) and not hydra_private.raised_by_hydra(in_python.value)


def test_unknown_flags_are_refused_in_a_line():
    known = hydra_private.flags()
    assert known["--multirun"] == (False, ()) and known["--cfg"].takes_value and known["-cd"].takes_value
    assert not known["--info"].takes_value and "defaults" in known["--info"].optional_values
    assert hydra_private.flag_problem(["-m", "--cfg", "job"]) is None
    assert "expected one argument" in (hydra_private.flag_problem(["--cfg"]) or "")


def test_values_of_an_override_are_those_of_a_choice_without_their_quotes():
    parsed = [hydra_private.parse_override(text) for text in ("a='x y'", "a=1,'b',null", "a=range(3)")]
    assert list(map(hydra_private.values_of, parsed)) == [["x y"], [1, "b", None], None]


def test_a_command_is_composed_once_and_its_flags_make_it_a_sweep(monkeypatch, tmp_path):
    composed, jobs = [], []
    compose.store_schema()
    monkeypatch.chdir(tmp_path)
    load = ConfigLoaderImpl.load_configuration
    monkeypatch.setattr(
        ConfigLoaderImpl, "load_configuration", lambda *args, **kwargs: composed.append(1) or load(*args, **kwargs)
    )
    job = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda cfg: jobs.append(cfg))
    for flags, count in ((["train.seed=1"], 1), (["-m", "train.seed=1,2"], 2)):
        jobs.clear()
        composed.clear()
        monkeypatch.setattr(sys, "argv", ["train.py", *flags])
        with hydra_private.flags_decide_the_mode():
            job()
        assert len(jobs) == count
        if count == 1:
            assert len(composed) == 1


def test_a_launcher_keeps_no_configuration_of_a_job_that_has_ended(monkeypatch, tmp_path):
    """Of a thousand jobs it would be half a GiB."""
    compose.store_schema()
    monkeypatch.chdir(tmp_path)
    returned = []

    def job_return() -> utils.JobReturn:
        returned.append(made())
        return returned[-1]

    made = utils.JobReturn
    monkeypatch.setattr(utils, "JobReturn", job_return)
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "train.seed=1,2"])
    with hydra_private.flags_decide_the_mode(), hydra_private.forgotten_jobs():
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda cfg: cfg.train.seed)()
    assert [(job.return_value, job.cfg, job.hydra_cfg) for job in returned] == [(1, None, None), (2, None, None)]


def test_an_error_of_a_sweeper_is_told_from_one_of_a_job():
    def raised(*modules):
        """An error that goes through a function of each module, the last one raises it."""
        code = "def call(rest): rest[0](rest[1:]) if rest else 1 / 0"
        functions = []
        for name in modules:
            module = {"__name__": name}
            exec(code, module)
            functions.append(module["call"])
        with pytest.raises(ZeroDivisionError) as error:
            functions[0](functions[1:])
        return error.value

    assert hydra_private.raised_by_plugin(raised("hydra_plugins.optuna", "optuna.study"))
    assert not hydra_private.raised_by_plugin(raised("hydra_plugins.optuna", "legroom.cli.entry_point", "torch"))
    assert not hydra_private.raised_by_plugin(raised("torch"))
