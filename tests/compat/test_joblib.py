"""What we use of joblib and of Hydra's plugin for it that is not documented."""

import contextlib
import functools
import os
import signal
from pathlib import Path

from legroom.compat import joblib_private
from legroom.machine import signals


def test_the_launcher_starts_its_jobs_inside_the_context_and_blocked_signals_stay_blocked():
    seen = []

    @contextlib.contextmanager
    def entered():
        with signals.blocked():
            yield

    with joblib_private.launch_inside(entered, print):
        from hydra_plugins.hydra_joblib_launcher import joblib_launcher

        original = vars(joblib_launcher)["JoblibLauncher"]

        class Launcher(original):
            def setup(self, **_):
                pass

            @property
            def config(self):  # the first that `launch` reads
                seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
                raise KeyError("enough")

            @config.setter
            def config(self, value):
                pass

        with contextlib.suppress(KeyError):
            Launcher().launch([["a=1"]], initial_job_idx=0)
    assert seen and all(set(signals.OF_CLUSTERS) <= mask for mask in seen)
    assert joblib_launcher.JoblibLauncher.launch.__name__ == "launch"


def test_each_process_calls_the_initializer_before_a_job(tmp_path):
    """Also one to which no job comes, such as the second of two for a single job."""
    with joblib_private.launch_inside(contextlib.nullcontext, functools.partial(_touch_own_file, tmp_path)):
        from hydra_plugins.hydra_joblib_launcher import _core, joblib_launcher

        launched = []

        class Launcher(vars(joblib_launcher)["JoblibLauncher"]):
            def setup(self, **_):
                pass

            @property
            def config(self):
                launched.append(_core.Parallel(n_jobs=2, backend="loky")([_core.delayed(_files)(tmp_path)]))
                raise KeyError("enough")

            @config.setter
            def config(self, value):
                pass

        with contextlib.suppress(KeyError):
            Launcher().launch([["a=1"]], initial_job_idx=0)
    ((files,),) = launched
    assert files, "of the process that ran the job, at the least"


def _touch_own_file(folder: Path) -> None:
    (folder / str(os.getpid())).touch()


def _files(folder: Path) -> list[str]:
    assert str(os.getpid()) in os.listdir(folder)
    return os.listdir(folder)
