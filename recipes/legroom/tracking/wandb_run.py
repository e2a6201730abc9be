"""tracker=wandb: a run at Weights & Biases (W&B), online or offline."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from legroom.tracking.interface import Job, Result, Say
from legroom.tracking.process import reason
from legroom.units import MIB

LABEL, PACKAGE, HAS_SWEEP_RUN = "W&B", "wandb", True
TAKES_PAGE = True
SPARE_BYTES = MIB  # with less than this on the disk, W&B's files may have lost their end in silence
LONGEST_NAME = 128


def open_run(job: Job, say: Say) -> WandbRun:
    """Start a run: online where that is wanted and works, else offline. Raises what wandb raises then."""
    return WandbRun(job, say)


def sweep_line(folder: Path) -> str:
    """The command that sends all offline runs of a sweep."""
    here = shlex.quote(str(folder))
    patterns = [pattern for pattern in ("*/wandb/offline-run-*", "wandb/offline-run-*") if list(folder.glob(pattern))]
    return f"to send the whole sweep: wandb sync {' '.join(f'{here}/{p}' for p in patterns)}" if patterns else ""


class WandbRun:
    """A run at W&B. See `interface.Run`."""

    offline_because: str | None = None  # of the sweep's earlier jobs: the next ones do not wait for it again

    def __init__(self, job: Job, say: Say):
        from wandb import Settings

        # Unless a person wants it, no report about us goes to W&B: it would be one more thing to wait for.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self.job, self.say = job, say
        wanted = quiet_settings(job.settings["finish_seconds"])
        wanted = {key: value for key, value in wanted.items() if key in Settings.model_fields}  # versions differ
        init: dict[str, Any] = {
            "name": os.environ.get("WANDB_NAME") or job.name[:LONGEST_NAME],
            "config": job.config,
            "job_type": job.kind,
            "group": job.group[:LONGEST_NAME] if job.group else None,
            "tags": job.tags,
            "dir": job.folder,
            "project": job.settings["project"],
            "entity": job.settings["entity"],
            "mode": job.settings["mode"],
            "settings": Settings(**wanted),
        }
        self.earlier = (
            sorted(Path(job.folder).glob("wandb/*run-*-*"), key=os.path.getmtime) if job.kind == "run" else []
        )
        if self.earlier:  # of the training that is resumed
            init |= {"id": self.earlier[-1].name.rpartition("-")[2], "resume": "allow"}
        if WandbRun.offline_because:
            say.trouble(WandbRun.offline_because)
            init["mode"] = "offline"
        self.run = self._start(init)
        files, url = shlex.quote(str(Path(self.run.dir).parent)), None if self.run.offline else self.run.url
        if url:
            say.where(f"W&B: {url}", local=False, send_later=f"wandb sync --include-online {files}")
        else:
            send = f"wandb sync {files}"
            say.where(f"W&B: logged offline; to send it: {send}", local=True, send_later=send)

    def _start(self, init: dict[str, Any]) -> Any:
        import wandb

        if (init["mode"] or os.environ.get("WANDB_MODE")) == "offline":
            init.pop("resume", None)  # a run is resumed by its id when it is sent
        self.output = sys.stderr = io.StringIO()
        before = set(Path(init["dir"]).glob("wandb/run-*"))
        try:
            return wandb.init(**init)
        except Exception as error:  # no key, a wrong one, no network, a server that does not answer
            why = f"no log-in or no connection ({reason(error)}), so it logged offline"
        stop_service()
        for folder in set(Path(init["dir"]).glob("wandb/run-*")) - before:
            shutil.rmtree(folder, ignore_errors=True)  # the failed start's: it holds nothing
        self.output = sys.stderr = io.StringIO()
        init.pop("resume", None)
        os.environ["WANDB_MODE"] = init["mode"] = "offline"  # also over a mode there that wandb does not know
        try:
            run = wandb.init(**init)
        except BaseException:
            stop_service()
            raise
        WandbRun.offline_because = why
        self.say.trouble(why)
        return run

    def log(self, values: dict[str, float], step: int) -> None:
        """See `interface.Run`."""
        if step >= self.run.starting_step:  # W&B has the earlier steps of a run that goes on
            self.run.log(values, step=step)

    def finish(self, result: Result) -> None:
        """See `interface.Run`."""
        import wandb

        try:
            self.run.summary.update(result.summary)
            extra: dict[str, Any] = {Path(path).stem: wandb.Image(path) for path in result.pictures}
            if result.table:
                extra["results"] = read_table(Path(result.table))
            if extra:
                self.run.log(extra)
            if result.page:
                self._log_page(Path(result.page))
            self.run.finish(exit_code=result.exit_code)
        finally:
            stop_service()
        if shutil.disk_usage(self.job.folder).free < SPARE_BYTES:
            self.say.trouble("the disk is full, so its files may lack their end")
        elif self.run.offline:
            for folder in self.earlier:
                if folder.name.startswith("offline"):  # the new files have its steps, too
                    shutil.rmtree(folder, ignore_errors=True)
        for line in self.output.getvalue().splitlines():  # what else went wrong, it only prints
            level, _, text = line.removeprefix("wandb: ").partition(" ")
            if level in ("WARNING", "ERROR"):
                self.say.trouble(reason(text))

    def _log_page(self, page: Path) -> None:
        """Log a page as an artifact: its own view in W&B shows the file in the browser."""
        import wandb

        kept = Path(self.run.dir).parent / "page.html"  # W&B reads it later, and `wandb sync` again
        shutil.copyfile(page, kept)
        artifact = wandb.Artifact(f"page-{self.run.id}", type="page")
        artifact.add_file(str(kept), name="page.html", policy="immutable")
        self.run.log_artifact(artifact)


def quiet_settings(seconds: float) -> dict[str, Any]:
    """W&B's settings: nothing of this machine but what the record says. seconds: for the start and the end together."""
    return {
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
        # Half of the time for the start, most of it for the end: so the parent hears what came of both.
        "init_timeout": seconds / 2,
        "finish_timeout": seconds * 0.8,
        "finish_timeout_raises": True,
        "x_transaction_log_flush_interval": 1.0,  # what is lost at most when this process is ended
    }


def stop_service() -> None:
    """End W&B's service; a new one starts with the next run."""
    with contextlib.suppress(Exception, SystemExit):
        import wandb

        wandb.teardown()


def read_table(file: Path) -> Any:
    """A CSV file as a wandb.Table: columns of numbers as numbers, empty cells as none."""
    import wandb

    columns, *rows = csv.reader(file.open(newline=""))
    typed = []
    for cells in zip(*rows):
        try:
            typed.append([float(cell) if cell else None for cell in cells])
        except ValueError:
            typed.append([cell or None for cell in cells])
    return wandb.Table(columns=list(columns), data=[list(row) for row in zip(*typed)])
