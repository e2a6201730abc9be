"""tracker=wandb: a run at Weights & Biases (W&B), online or offline."""

import contextlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legroom.tracking.run import Job, Result, Run, reason
from legroom.units import MIB

SPARE_BYTES = MIB  # with less than this on the disk, W&B's files may have lost their end in silence
LONGEST_NAME = 128
# Nothing of this machine goes to W&B but what the record says.
QUIET: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "symlink": False,
    "stop_fn": lambda: None,
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "finish_timeout_raises": True,
    "x_transaction_log_flush_interval": 1.0,  # what is lost at most when this process is ended
}


class WandbRun(Run):
    """A run at W&B: online where that is wanted and works, else offline."""

    label = "W&B"
    offline_because: str | None = None  # of the sweep's earlier jobs: the next ones do not wait for it again

    def __init__(self, job: Job, trouble: Callable[[str], None]):
        from wandb import Settings

        # Unless a person wants it, no report about us goes to W&B: it would be one more thing to wait for.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self.folder = Path(job.folder)
        self.trouble = trouble
        # Half of the time for the start, most of it for the end: so the parent hears what came of both.
        seconds = job.settings["finish_seconds"]
        settings = QUIET | {"init_timeout": seconds / 2, "finish_timeout": seconds * 0.8}
        # Of the training that is resumed
        self.earlier = sorted(self.folder.glob("wandb/*run-*-*"), key=os.path.getmtime)
        self.run = self._start(
            name=os.environ.get("WANDB_NAME") or job.name[:LONGEST_NAME],
            config=job.config,
            job_type="run",
            group=job.group[:LONGEST_NAME] if job.group else None,
            tags=job.tags,
            dir=job.folder,
            project=job.settings["project"],
            entity=job.settings["entity"],
            mode=job.settings["mode"],
            settings=Settings(**{key: settings[key] for key in settings.keys() & Settings.model_fields}),
            id=self.earlier[-1].name.rpartition("-")[2] if self.earlier else None,
        )
        self.local = self.run.offline or not self.run.url
        files = shlex.quote(str(Path(self.run.dir).parent))
        if self.local:
            self.send_later = f"wandb sync {files}"
            self.where = f"logged offline; to send it: {self.send_later}"
        else:
            self.send_later = f"wandb sync --include-online {files}"
            self.where = self.run.url

    def _start(self, **init: Any) -> Any:
        import wandb

        self._take_output()
        cause = WandbRun.offline_because
        if cause is None:
            is_offline = (init["mode"] or os.environ.get("WANDB_MODE")) == "offline"
            resume = None  # offline it is resumed by its id, when it is sent
            if self.earlier and not is_offline:
                resume = "allow"
            try:
                return wandb.init(**init, resume=resume)
            except Exception as error:  # no key, a wrong one, no network, a server that does not answer
                cause = f"no log-in or no connection ({reason(error)}), so it logged offline"
            stop_service()
            for folder in set(self.folder.glob("wandb/run-*")) - set(self.earlier):
                shutil.rmtree(folder, ignore_errors=True)  # the failed start's: it holds nothing
            self._take_output()
        init["mode"] = "offline"
        os.environ["WANDB_MODE"] = "offline"  # also over a mode there that wandb does not know
        run = wandb.init(**init)
        WandbRun.offline_because = cause
        self.trouble(cause)
        return run

    def _take_output(self) -> None:
        """Keep what W&B prints from now on, for `finish`."""
        self.output = io.StringIO()
        sys.stderr = self.output

    def log(self, values: dict[str, float], step: int) -> None:
        if step >= self.run.starting_step:  # W&B has the earlier steps of a run that goes on
            self.run.log(values, step=step)

    def finish(self, result: Result) -> None:
        try:
            self.run.summary.update(result.summary)
            self.run.finish(exit_code=result.exit_code)
        finally:
            stop_service()
        if shutil.disk_usage(self.folder).free < SPARE_BYTES:
            self.trouble("the disk is full, so its files may lack their end")
        elif self.run.offline:
            for folder in self.earlier:
                if folder.name.startswith("offline"):  # the new files have its steps, too
                    shutil.rmtree(folder, ignore_errors=True)
        for line in self.output.getvalue().splitlines():  # what else went wrong, it only prints
            level, _, text = line.removeprefix("wandb: ").partition(" ")
            if level in ("WARNING", "ERROR"):
                self.trouble(reason(text))

    @staticmethod
    def sweep_line(folder: Path) -> str:
        """The command that sends all offline runs of a sweep."""
        pattern = "*/wandb/offline-run-*"
        if not any(folder.glob(pattern)):
            return ""
        return f"to send the whole sweep: wandb sync {shlex.quote(str(folder))}/{pattern}"


def stop_service() -> None:
    """End W&B's service; a new one starts with the next run."""
    with contextlib.suppress(Exception, SystemExit):
        import wandb

        wandb.teardown()
