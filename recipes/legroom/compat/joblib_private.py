"""Names of joblib and of Hydra's plugin for it that are not part of their public interface."""

import contextlib
import functools
from collections.abc import Callable
from multiprocessing import resource_tracker
from typing import Any

from hydra.core.plugins import Plugins

from legroom.compat.patching import patched


def launch_inside(
    entered: Callable[[], contextlib.AbstractContextManager], initializer: Callable[[], None]
) -> contextlib.AbstractContextManager[None]:
    """Have Hydra's launcher for joblib start its jobs inside a context. It has no hook, so the method is replaced.

    initializer: called first in each of joblib's processes, whether or not a job comes to it. To be pickled.

    Processes that track resources are started before the context is entered: where a signal is blocked, starting them
    unblocks it (`ensure_running` of multiprocessing and of joblib's copy).
    """
    Plugins.instance()  # it executes the modules of plugins anew, which makes other classes
    from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher

    launch = JoblibLauncher.launch

    def launch_inside(launcher: Any, *arguments: Any, **named: Any) -> Any:
        import joblib
        from hydra_plugins.hydra_joblib_launcher import _core
        from joblib.externals.loky.backend import resource_tracker as of_joblib

        resource_tracker.ensure_running()
        of_joblib.ensure_running()
        parallel = functools.partial(joblib.Parallel, initializer=initializer)
        with entered(), patched(_core, Parallel=parallel):
            return launch(launcher, *arguments, **named)

    return patched(JoblibLauncher, launch=launch_inside)
