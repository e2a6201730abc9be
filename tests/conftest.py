"""What the tests share: small jobs in a fraction of a second, and the command as a person runs it.

A job in these tests is forked from one fork server, which has imported the libraries; a few tests, marked
by their use of `legroom`, start the whole command in an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import dies_with_parent

from legroom import config, levers
from legroom.cli import entry_point, sweep
from legroom.compat import hydra_remembered_private
from legroom.jobs import fork_client, launch, supervise
from legroom.machine import host
from legroom.options.compose import compose as compose_config
from legroom.records import record, record_file, run_folder
from legroom.records.messages import Message, WarningRaised

levers.load_rules()
# As in an environment that was activated: commands are printed with `python`, which finds this one.
os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
GPU = host.gpus()

# Sizes that any family has, and what else a small job needs. They come before a test's own overrides.
SMALL = [
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.feed_forward=64",
    "model.vocab=512",
    "model.positions=64",
    "data.seq_len=32",
    "data.samples=8",
    "batch.per_device=2",
    "train.max_steps=2",
    "measure.warmup_steps=0",
    "device=cpu",
]


def bare_model(cfg):
    """(the model as `builder` makes it, which no lever wraps, its data) of a resolved configuration."""
    from legroom.data import dataset
    from legroom.models import builder, head
    from legroom.options import hooks, task

    architecture = builder.configuration(cfg)
    asked = task.task_of(cfg, architecture)
    labels = head.pretrained_labels(cfg, architecture, asked)
    data = dataset.build_data(cfg, asked, architecture.vocab_size, labels)
    data.head = labels
    return builder.build_model(cfg, architecture, data, hooks.behaviours(cfg)), data


def small(*overrides: str) -> list[str]:
    """SMALL and the overrides, with the sizes that only some options have (`model=llama_*`: kv_heads).

    Trained weights (model.pretrained=) bring their own sizes.
    """
    chosen = dict(word.split("=", 1) for word in overrides if "=" in word)
    sizes = SMALL
    if "model.pretrained" in chosen:
        sizes = [word for word in SMALL if not word.startswith("model.")]
    elif chosen.get("model", "").startswith("llama"):
        sizes = [*SMALL, "model.heads=4", "model.kv_heads=2"]
    if chosen.get("data", "dummy") not in ("text", "chat", "hub"):
        sizes = [*sizes, "data.eval_samples=4"]
    return [*sizes, *overrides]


# --- the environment -------------------------------------------------------------------------------


def pytest_configure(config):
    """No network, and no cache of the user's: set before anything reads these variables."""
    # A shell that starts the tests in the background ignores SIGINT, which every process below would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A third of the suite's seconds went into reading the same menus. Folders that tests write to are read anew.
    for_the_process = contextlib.ExitStack()
    for_the_process.enter_context(hydra_remembered_private.remembered(only=CONF))
    config.add_cleanup(for_the_process.close)
    config._cache_folder = tempfile.TemporaryDirectory(prefix="legroom-tests-")
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": config._cache_folder.name,
        "LEGROOM_CALIBRATION": str(Path(config._cache_folder.name, "calibration")),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(config._cache_folder.name, "inductor")),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }  # the tensors are tiny, and the machine may be shared
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE", "TRANSFORMERS_CACHE"):
        os.environ.pop(name, None)


def pytest_collection_finish(session):
    """What was imported stays: no collection of garbage looks at torch's objects again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    config._cache_folder.cleanup()


@pytest.hookimpl(tryfirst=True)  # before pytest applies -m
def pytest_collection_modifyitems(items):
    for item in items:
        slow_parameters = item.get_closest_marker("slow_for")
        if slow_parameters and item.callspec.id in slow_parameters.args:
            item.add_marker(pytest.mark.slow)
    why = "needs an NVIDIA GPU, and a torch that is built for it: machine.gpus() is empty here"
    for item in items:
        if item.get_closest_marker("gpu") and not GPU:
            item.add_marker(pytest.mark.skip(reason=why))


# What small jobs need besides what all need, imported once. A worker imports peft for a second, and trains for a tenth
# of one. Workers that import their libraries themselves, as a user's do, are those of `fault` and of whole commands.
PRELOADED = """
import contextlib, importlib
from legroom.training import preload
preload.import_libraries()
for family in ("bert", "gpt2", "llama"):
    importlib.import_module(f"transformers.models.{family}.modeling_{family}")
import legroom.foresight.estimate
from legroom.machine import gpu_specs
gpu_specs.options()
"""
if not GPU:  # bitsandbytes initializes CUDA, after which no process that uses it can be forked
    PRELOADED += """
for package in ("peft", "torchao.optim"):
    with contextlib.suppress(ImportError):
        importlib.import_module(package)
"""


@pytest.fixture(scope="session")
def fork_server():
    """Forks the workers of all small jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_client, "FORK_SERVER_CODE", PRELOADED + fork_client.FORK_SERVER_CODE)
        fork_server = fork_client.ForkServer()
    yield fork_server
    fork_server.close()


SITECUSTOMIZE = """
import os, sys
if "legroom." in "".join(sys.orig_argv):  # a worker or a fork server, not the command
    import legroom.jobs.worker as worker
    main = worker.main
    def faulty(job, pipe):
        exec(open(os.environ["LEGROOM_TEST_FAULT"]).read(), {"job": job})
        main(job, pipe)
    worker.main = faulty
"""


@pytest.fixture(scope="session")
def _faulty(tmp_path_factory):
    """A fork server whose workers first run the code in a file; (fork server, file)."""
    folder = tmp_path_factory.mktemp("fault")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("LEGROOM_TEST_FAULT", str(folder / "fault.py"))
        fork_server = fork_client.ForkServer()
    yield fork_server, folder / "fault.py"
    fork_server.close()


@pytest.fixture
def fault(_faulty):
    """fault(code) -> a fork server whose next workers run the code (it sees `job`) before they begin."""
    fork_server, file = _faulty

    def fault(code: str) -> fork_client.ForkServer:
        file.write_text(code)
        return fork_server

    yield fault
    file.write_text("")


# --- a configuration -------------------------------------------------------------------------------


class Composed(NamedTuple):
    """What a command line comes to: the typed tree, the record to be filled, and the problems (a line each)."""

    cfg: config.Config
    record: record.Record
    problems: list[str]


def compose(*overrides: str) -> Composed:
    """What the command would run with these words. Hydra's own errors are raised."""
    return Composed(*compose_config(CONF, *overrides))


@pytest.fixture
def pretend_gpu(monkeypatch):
    """pretend_gpu((7, 5)): let this process believe in one GPU of that compute capability. It can refuse, not train."""

    def pretend(capability: tuple[int, int], name: str = "NVIDIA Pretended"):
        gpu = host.Gpu(uuid="GPU-0", name=name, memory_bytes=16 * 2**30, capability=capability)
        monkeypatch.setattr(host, "gpus", lambda: (gpu,))

    return pretend


# --- a job -----------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A job that is over: its record, its folder, and the messages of its worker."""

    record: record.Record
    folder: Path
    messages: list[Message]


@pytest.fixture(scope="session")
def make_job(tmp_path_factory):
    """make_job(*overrides) -> launch.Job, composed and checked, with a new folder."""

    def make(*overrides: str) -> launch.Job:
        _, outcome, problems = compose(*overrides)
        assert not problems, problems
        return launch.Job(outcome, tmp_path_factory.mktemp("job"))

    return make


@pytest.fixture(scope="session")
def train(make_job, fork_server):
    """train(*overrides, status="ok") -> Run: a small job, asserted to end so (status=None: however it ends).

    In the raw loop, which starts faster, unless a recipe is named: a test of what both do names both.
    """

    def train(*overrides: str, status: str | None = "ok", fork_server=fork_server) -> Run:
        named = any(word.startswith("recipe=") for word in overrides)
        job, messages = make_job(*small(*overrides), *([] if named else ["recipe=accelerate"])), []
        outcome = supervise.run(job, messages.append, fork_server)
        assert status in (None, outcome.status), (
            outcome.status,
            outcome.error,
            _tail(job.folder / run_folder.LOG_FILE),
        )
        return Run(outcome, job.folder, messages)

    return train


@pytest.fixture(scope="session")
def saved_llama(train) -> Path:
    """The folder of a tiny Llama that was trained and saved: tests read it, and train on from it elsewhere."""
    return train("model=llama_tiny", "save.final=true").folder / run_folder.MODEL_FOLDER


@pytest.fixture
def again(make_job, fork_server):
    """again(folder, *words, status="ok", on_message=) -> (record, warnings): a job in a folder that has been used."""

    def again(folder, *words: str, status: str | None = "ok", on_message=lambda _: None):
        job, warned = make_job(*small(*words)), []
        job.folder = folder
        (folder / record_file.FILE_NAME).unlink(missing_ok=True)

        def listen(message):
            on_message(message)
            if isinstance(message, WarningRaised):
                warned.append(message.text)

        outcome = supervise.run(job, listen, fork_server)
        assert status in (None, outcome.status), (outcome.error, (folder / run_folder.LOG_FILE).read_text()[-2000:])
        return outcome, warned

    return again


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:] if path.exists() else ""


# --- the command -----------------------------------------------------------------------------------


class Ended(NamedTuple):
    """A command that is over."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, tmp_path, capfd, fork_server):
    """command(*arguments) -> Ended: `python train.py ...` in this process, its jobs forked from the fork server.

    Outputs land in tmp_path/outputs. With fork_server=None it is an error that a job is started at all.
    """
    start = launch.start
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets these two for good; here they are taken back
    monkeypatch.setenv("LEGROOM_MENUS", "{}")
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str, fork_server: fork_client.ForkServer | None = fork_server) -> Ended:
        def start_here(job, _=None):
            assert fork_server is not None, "a job was started"
            return start(job, fork_server)

        monkeypatch.setattr(launch, "start", start_here)
        monkeypatch.setattr(sweep, "fork_server", lambda: fork_server)
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        capfd.readouterr()
        try:
            code = entry_point.run(CONF)
        except SystemExit as stopped:  # argparse's way out
            code = stopped.code
        return Ended(code, *capfd.readouterr())

    return command


def start_legroom(*arguments: str, cwd: Path, env: dict | None = None, **streams) -> subprocess.Popen:
    """`python train.py ...` as a person starts it, in a group of its own as from a shell; it ends with the tests."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=cwd,
        text=True,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=dies_with_parent(),
        **streams,
    )


@pytest.fixture
def legroom(tmp_path):
    """legroom(*arguments, env=None, timeout=120) -> Ended: the whole command in a process of its own."""

    def legroom(*arguments: str, env: dict | None = None, timeout: float = 120) -> Ended:
        process = start_legroom(*arguments, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
            process.wait()
        return Ended(process.returncode, out, err)

    return legroom


@pytest.fixture
def predicted(tmp_path):
    """predicted(*overrides) -> the record that an estimate of them would leave, made in this process."""

    def predicted(*overrides: str) -> record.Record:
        from legroom.foresight import prediction, simulation

        cfg, outcome, problems = compose("recipe=estimate", *overrides)
        assert not problems, problems
        cfg = host.configuration(outcome.config)  # as a worker has it: a record holds no facts
        seen = simulation.simulate_step(cfg, str(tmp_path), prediction.allocator_bytes(cfg), cfg.estimate.explain, True)
        prediction.fill(cfg, outcome, seen)
        return outcome

    return predicted
