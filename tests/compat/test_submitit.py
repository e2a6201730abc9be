"""Private names of submitit and hydra-submitit-launcher that legroom.compat.submitit_private uses."""

import inspect
import signal

import pytest

submitit = pytest.importorskip("submitit")
from legroom.compat import submitit_private


def test_executor_map_array_can_be_replaced():
    from submitit.core.core import Executor

    original = Executor.map_array
    with submitit_private.jobs_wrapped(lambda start, rows: [rows]):
        assert Executor.map_array(None, print, [1], [2]) == [([1], [2])]
    assert Executor.map_array is original


def test_overrides_and_numbers():
    """The rows as the launcher gives them: overrides, a key, the number, the job's id, Hydra's state."""
    rows = (["a=1"], ["a=2"]), ("key", "key"), (0, 1), ("id_0", "id_1"), (None, None)
    assert submitit_private.overrides_and_numbers(rows) == ((["a=1"], ["a=2"]), (0, 1))


def test_map_array_takes_overrides_and_numbers():
    launcher = pytest.importorskip("hydra_plugins.hydra_submitit_launcher.submitit_launcher")
    source = inspect.getsource(launcher.BaseSubmititLauncher.launch)
    parameters = list(inspect.signature(launcher.BaseSubmititLauncher.__call__).parameters)[1:]
    assert "executor.map_array(self, *zip(*job_params))" in source
    order = [source.index(entry) for entry in ("list(overrides)", '"hydra.sweep.dir"', " idx,\n")]
    assert order == sorted(order)
    assert (parameters[0], parameters[2]) == ("sweep_overrides", "job_num")


def test_a_local_job_has_its_process_and_a_slurm_job_has_none(tmp_path):
    assert submitit_private.is_local(submitit.LocalJob(tmp_path, "1"))
    assert not submitit_private.is_local(submitit.SlurmJob(tmp_path, "1"))


def test_the_requeue_signal_is_a_signal():
    assert submitit_private.requeue_signal() in (signal.SIGUSR1, signal.SIGUSR2)


def test_raised_by_submitit_is_true_for_an_executor_that_does_not_exist(tmp_path):
    import submitit

    with pytest.raises(ValueError) as in_submitit:
        submitit.AutoExecutor(tmp_path, cluster="none")
    with pytest.raises(ValueError) as in_python:
        int("x")
    assert submitit_private.raised_by_submitit(in_submitit.value)
    assert not submitit_private.raised_by_submitit(in_python.value)
