"""A SLURM of this machine alone, from Debian's packages slurm-wlm and munge, in a folder that goes with the tests.

Accounting would need a database, so a script answers for sacct with what scontrol knows.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
REQUEUE_SECONDS = 20.0
SACCT = """#!{python}
import re, subprocess, sys

print("JobID|State|NodeList")
for job in [sys.argv[i + 1] for i, word in enumerate(sys.argv) if word == "-j"]:
    shown = subprocess.run(["scontrol", "show", "job", "-o", job], capture_output=True, text=True).stdout
    for line in shown.splitlines():
        found = dict(re.findall(r"(\\w+)=(\\S*)", line))
        print(found["JobId"], found["JobState"], found["NodeList"], sep="|")
"""
NODES = 2  # slurmd plays both, each with its own port
CONFIG = """
ClusterName=legroom
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=10
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=16000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=16000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=30 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why there can be no SLURM here, or None."""
    paths = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    missing = [name for name in PROGRAMS if shutil.which(name, path=paths) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd runs as root alone"


class Slurm:
    """Its daemons. environment: what the commands of SLURM need to find it."""

    def __init__(self, folder: Path):
        self.folder, self.started = folder, []
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"], "/usr/sbin", "/sbin"]),
        }
        self.waiting: dict[str, float] = {}  # job -> since when it has been seen to wait
        (folder / "bin").mkdir()
        (folder / "bin" / "sacct").write_text(SACCT.format(python=sys.executable))
        (folder / "bin" / "sacct").chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "state").mkdir()
        ports = [_free_port() for _ in range(NODES + 1)]
        values = {
            "host": socket.gethostname().split(".")[0],
            "user": getpass.getuser(),
            "folder": folder,
            "ports": ports,
        }
        (folder / "slurm.conf").write_text(CONFIG.format(**values))
        try:
            names = {"key-file": "munge.key", "socket": "munge.socket", "seed-file": "munge.seed"}
            files = [f"--{name}={folder / file}" for name, file in names.items()]
            self._start("munged", "--foreground", "--force", f"--pid-file={folder}/munge.pid", *files)
            self._wait(lambda: (folder / "munge.socket").exists())
            self._start("slurmctld", "-D")
            for number in range(NODES):
                self._start("slurmd", "-D", "-N", f"node{number + 1}")
            self._wait(lambda: self.output("sinfo", "-h", "-o", "%T", "-p", "low").split() == ["idle"])
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, *arguments: str) -> None:
        with open(self.folder / "daemons.log", "ab") as log:
            self.started.append(
                subprocess.Popen(
                    [name, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )

    def _wait(self, ready, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, "SLURM does not start: " + self.logs()
            time.sleep(0.2)

    def output(self, *command: str) -> str:
        """What a command of SLURM prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout

    def hurry(self) -> None:
        """Let jobs begin that were requeued: SLURM waits two minutes for what ends slowly on another node. A little is
        needed: at first slurmd takes the new job for the old one."""
        now = time.monotonic()
        pending = self.output("squeue", "-h", "-t", "PENDING", "-o", "%A").split()
        self.waiting = {job: self.waiting.get(job, now) for job in pending}  # of one that has begun, from the next time
        for job, seen in self.waiting.items():
            if now > seen + REQUEUE_SECONDS:
                self.output("scontrol", "update", f"JobId={job}", "StartTime=now")
                self.waiting[job] = now

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.log"))

    def close(self) -> None:
        """End all jobs and the daemons."""
        if (self.folder / "munge.socket").exists():
            self.output("scancel", "--user", getpass.getuser())
            self.output("scancel", "--signal=KILL", "--full", "--user", getpass.getuser())
        for process in reversed(self.started):
            process.terminate()
        for process in reversed(self.started):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
