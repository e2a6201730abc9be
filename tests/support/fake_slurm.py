"""A stand-in for SLURM's commands, on one machine: `python fake_slurm.py sbatch|srun|sacct|scontrol ...`.

It starts what it is told to, with the variables that SLURM sets, and knows how a job ended. It has no queue,
no limits and no second machine. Its state lies in the folder FAKE_SLURM: <job> holds sacct's word for it,
<job>.requeue is there when it is to run again, <job>.pid is its script's process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(os.environ["FAKE_SLURM"])


def sbatch(words: list[str]) -> int:
    """Start a script, once for each index of its array, and come back at once."""
    given = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    script, *arguments = [word for word in words if not word.startswith("--")]
    lines = re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", Path(script).read_text(), re.MULTILINE)
    told = dict(lines) | given
    nodes, per_node = int(told.get("nodes", 1)), int(told.get("ntasks-per-node", 1))
    number = str(1000 + len(list(HERE.glob("*.pid"))))
    environment = os.environ | {
        "SLURM_JOB_ID": number,
        "SLURM_NTASKS": str(nodes * per_node),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": ",".join(["localhost"] * nodes),
        "SLURM_CPUS_PER_TASK": "1",
    }
    last = re.fullmatch(r"0-(\d+)%\d+", told["array"])[1] if "array" in told else None
    for index in range(int(last) + 1) if last else [None]:
        job = number if index is None else f"{number}_{index}"
        place = {} if index is None else {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": str(index)}
        log = told["output"].replace("%j", job).replace("%A_%a", job)
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:
            subprocess.Popen(
                [sys.executable, __file__, "attempts", job, script, *arguments],
                env=environment | place,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
    print(f"Submitted batch job {number}")
    return 0


def attempts(words: list[str]) -> int:
    """Run a job's script, and again as often as it is put back into the queue."""
    job, *command = words
    again = HERE / f"{job}.requeue"
    for attempt in range(10):
        again.unlink(missing_ok=True)
        (HERE / job).write_text("RUNNING")
        process = subprocess.Popen(["bash", *command], env=os.environ | {"SLURM_RESTART_COUNT": str(attempt)})
        (HERE / f"{job}.pid").write_text(str(process.pid))
        code = process.wait()
        if not again.exists():
            (HERE / job).write_text("COMPLETED" if code == 0 else "FAILED")
            return code


def srun(words: list[str]) -> int:
    """Run a command as each task of the job, and hand signals on to them. The worst exit code of all."""
    output = None
    while words[0].startswith("-"):
        word = words.pop(0)
        if word in ("--output", "--error"):
            value = words.pop(0)
            output = value if word == "--output" else output
    tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_JOB_NUM_NODES"])
    started = []
    for task in range(tasks):
        log = None
        if output is not None:
            job = os.environ.get("SLURM_ARRAY_JOB_ID")
            job = f"{job}_{os.environ['SLURM_ARRAY_TASK_ID']}" if job else os.environ["SLURM_JOB_ID"]
            log = open(output.replace("%A_%a", job).replace("%j", job).replace("%t", str(task)), "a")  # noqa: SIM115 (handed to a process)
        place = {
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task % (tasks // nodes)),
            "SLURM_NODEID": str(task // (tasks // nodes)),
        }
        started.append(subprocess.Popen(words, env=os.environ | place, stdout=log, stderr=log))
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda number, _: [process.send_signal(number) for process in started])
    return max(abs(process.wait()) for process in started)


def sacct(words: list[str]) -> int:
    """The states of the jobs that are named with -j."""
    print("JobID|State|NodeList")
    for name in (words[i + 1] for i, word in enumerate(words) if word == "-j"):
        for path in sorted(HERE.iterdir()):
            if path.name.split("_")[0] == name:
                print(f"{path.name}|{path.read_text()}|localhost")
    return 0


def scontrol(words: list[str]) -> int:
    """The hosts of a job, or a job that is to run again."""
    if words[0] == "show":
        print(words[2].replace(",", "\n"))
    else:
        (HERE / f"{words[1]}.requeue").touch()
    return 0


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](sys.argv[2:]))
