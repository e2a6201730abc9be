"""What we use of joblib and of Hydra's plugin for it that is not documented."""

import contextlib
import signal

from legroom.compat import joblib_private
from legroom.machine import signals


def test_the_launcher_starts_its_jobs_inside_the_context_and_blocked_signals_stay_blocked():
    seen = []

    @contextlib.contextmanager
    def entered():
        with signals.blocked():
            yield

    with joblib_private.launch_inside(entered):
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
