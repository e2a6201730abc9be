"""W&B, in its own process: what it logs, read back with W&B's own tools, and that its failures cost nothing.

Online runs are sent to a small server in this process that speaks as much of W&B's API as a run needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import CONF, ROOT
from tracked_job import KEY, LOSSES, Job, cfg, mark, marked, record, write_steps  # noqa: F401 (mark: a fixture)

from legroom.options import tracker as tracker_options
from legroom.tracking import trackers

# --- W&B -------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """W&B, as far as a run sees it.

    answers: ok, denied (the key is wrong), stall (uploads are never answered), refuse (they are, with a no).
    """

    daemon_threads = True

    def __init__(self, answers: str):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.over = answers, threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.variables: dict = {}  # of all requests that make or change the run
        self.history: list[dict] = []
        self.texts: list[str] = []  # everything that was sent, but for headers

    def handle_error(self, *_):
        """A client that is ended in the middle of a request is no error here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        server, text = self.server, self.rfile.read(int(self.headers["Content-Length"])).decode(errors="replace")
        server.texts.append(text)
        answer = {}
        if server.answers == "denied":
            return self.reply(401, {"errors": [{"message": "user is not logged in"}]})
        if self.path == "/graphql":
            asked = json.loads(text)
            given = asked["variables"]
            if "mutation UpsertBucket" in asked["query"]:
                server.variables |= {key: value for key, value in given.items() if value is not None}
                project = {"name": given["project"], "entity": {"name": "someone"}}
                answer = {
                    "upsertBucket": {
                        "inserted": True,
                        "bucket": {
                            "id": "1",
                            "name": given["name"],
                            "displayName": given["displayName"],
                            "config": "{}",
                            "historyLineCount": 0,
                            "project": project,
                        },
                    }
                }
            elif "query RunResumeStatus" in asked["query"] and server.history:
                tail = json.dumps([json.dumps({"_step": server.history[-1]["_step"], "_runtime": 1})])
                bucket = {"name": given["name"], "historyLineCount": len(server.history), "historyTail": tail}
                bucket |= {"eventsLineCount": 0, "logLineCount": 0, "eventsTail": "[]", "summaryMetrics": "{}"}
                answer = {"model": {"bucket": bucket | {"config": "{}", "tags": [], "wandbConfig": '{"t": 1}'}}}
            elif "mutation CreateRunFiles" in asked["query"]:
                answer = {
                    "createRunFiles": {
                        "runID": "1",
                        "uploadHeaders": [],
                        "files": [{"name": name, "uploadUrl": f"{server.url}/file"} for name in given["files"]],
                    }
                }
        elif self.path.endswith("file_stream"):
            if server.answers == "stall":
                server.over.wait(60)
            elif server.answers == "refuse":
                return self.reply(403, {"error": "not here"})
            rows = json.loads(text).get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            server.history += map(json.loads, rows)
        self.reply(200, {"data": answer})

    do_PUT = do_POST

    def reply(self, code: int, values: dict) -> None:
        body = json.dumps(values).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)


@pytest.fixture
def server(monkeypatch):
    """server(answers) -> Server, which the environment names as W&B, with a key."""
    started = []

    def server(answers: str) -> Server:
        started.append(Server(answers))
        threading.Thread(target=started[-1].serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", started[-1].url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        return started[-1]

    yield server
    for one in started:
        one.over.set()
        one.shutdown()
        one.server_close()


@pytest.fixture
def fake_wandb(monkeypatch, tmp_path):
    """fake_wandb(code): what `import wandb` runs instead of the package."""

    def fake_wandb(code: str) -> None:
        folder = tmp_path / "packages" / "wandb"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(folder.parent))

    return fake_wandb


# --- W&B's own reader ------------------------------------------------------------------------------


def wandb_says(*words: str) -> str:
    """W&B's own command line, without a network."""
    ended = subprocess.run(
        [sys.executable, "-m", "wandb", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"WANDB_BASE_URL": "http://127.0.0.1:1"},
    )
    assert ended.returncode == 0, ended
    return ended.stdout + ended.stderr


class Logged:
    """A run as `wandb leet inspect` reads it from the folder: all of its one .wandb file."""

    def __init__(self, folder: Path):
        (file,) = folder.glob("wandb/*run-*/*.wandb")
        rows = [
            json.loads(line)
            for line in wandb_says("leet", "inspect", "--json", str(file)).splitlines()
            if line.startswith("{")
        ]
        self.history = [row["history"]["item"] for row in rows if row["type"] == "history"]
        self.losses = [(row["_step"], row["training/loss"]) for row in self.history if "training/loss" in row]
        (self.run,) = [row["run"] for row in rows if row["type"] == "run"]
        self.config = self.run["config"]["update"]
        self.summary = {}
        for row in rows:
            if row["type"] == "summary":
                self.summary |= row["summary"].get("update", {})
        self.exit_codes = [row["exit"]["exit_code"] for row in rows if row["type"] == "exit"]


_measured: list[float] = []


def offline_seconds(folder: Path) -> float:
    """How long an offline run takes on this machine, from its start to its end; measured once."""
    if not _measured:
        start = time.monotonic()
        assert Job(folder / "measured", mode="offline", finish_seconds=240).finish() == []
        _measured.append(time.monotonic() - start)
    return _measured[0]


COMPLETE = list(enumerate(LOSSES, 1))
SYNC = re.compile(r"wandb (sync .*)$")


# --- offline ---------------------------------------------------------------------------------------


def test_offline_run_is_read_by_wandb(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_MODE", "offline")
    job = Job(tmp_path / "a folder", tags=["mine"])
    assert job.finish() == []
    assert capfd.readouterr() == ("", "")
    run = Logged(job.folder)
    assert run.losses == COMPLETE
    assert run.history[4]["training/step_seconds"] == 0.5
    assert run.history[4]["training/samples_per_second"] == 8
    assert run.history[4]["training/tokens_per_second"] == 64
    assert run.history[4]["training/learning_rate"] == 0.1 and run.history[4]["training/epoch"] == 0.5
    assert run.history[4]["training/gradient_norm"] == 2 and "training/gradient_norm" not in run.history[0]
    assert run.run["project"] == "legroom" and run.run["display_name"] == "precision=bf16"
    assert run.run["tags"] == ["trainer", "mine"]
    assert run.config["train"] == {"seed": 7, "epochs": None} and run.config["recipe"] == {"name": "trainer"}
    assert run.config["config_key"] == "0123abcd" and run.config["environment"] == {"device_name": "a CPU"}
    assert run.summary.items() >= trackers.summary(record()).items()
    assert run.exit_codes == [0]
    command = SYNC.search(job.tracker.line)[1]
    assert "Would sync 1 run" in wandb_says(*shlex.split(command), "--dry-run")


def test_summary_without_steps(tmp_path):
    write_steps(tmp_path, [9.0, 9.0])
    tracker = trackers.open_tracker(cfg(mode="offline"), record(), tmp_path)
    assert tracker.finish(record("failed")) == []
    run = Logged(tmp_path)
    assert run.losses == [] and run.summary["status"] == "failed"


def test_summary_is_flat():
    assert trackers.summary(record()) == {
        "status": "ok",
        "training/steps": 40,
        "training/samples": 160,
        "training/tokens": 1280,
        "training/final_loss": 0.025,
        "evaluation/samples": 8,
        "evaluation/loss": 0.5,
        "speed/samples_per_second": 12.5,
        "memory/peak_tensor_bytes": 1000,
        "memory/largest_bytes/optimizer": 300,
    }


# --- online ----------------------------------------------------------------------------------------


def test_online_run_arrives(tmp_path, server, capfd):
    wandb = server("ok")
    job = Job(tmp_path / "job", group="a sweep", project="mine")
    assert job.finish() == []
    assert capfd.readouterr() == ("", "")
    assert [(row["_step"], row["training/loss"]) for row in wandb.history] == COMPLETE
    assert wandb.variables["project"] == "mine" and wandb.variables["groupName"] == "a sweep"
    assert json.loads(wandb.variables["config"])["config_key"]["value"] == "0123abcd"
    assert job.tracker.line == f"W&B: {wandb.url}/someone/mine/runs/{wandb.variables['name']}"
    sent = "".join(wandb.texts)
    assert KEY not in sent and str(ROOT) not in sent and sys.executable not in sent and "pytest" not in sent


def test_resumed_run_is_the_same_run(tmp_path, server, capfd):
    """After a kill in step 10 it has all steps again in steps.jsonl; W&B gets those that it lacks."""
    wandb = server("ok")
    job = Job(tmp_path / "job", project="mine")
    assert job.finish() == []
    line, first = job.tracker.line, [row for row in wandb.history if row["_step"] <= 10]
    wandb.history[:] = first
    again = Job(tmp_path / "job", project="mine")
    assert again.finish() == [] and capfd.readouterr() == ("", "")
    assert again.tracker.line == line
    assert [(row["_step"], row["training/loss"]) for row in wandb.history if "training/loss" in row] == COMPLETE


def test_run_resumed_offline_is_one_run(tmp_path):
    ids = []
    for _ in range(2):
        job = Job(tmp_path / "job", mode="offline")
        assert job.finish() == []
        ids.append(Logged(job.folder).run["run_id"])  # it asserts that there is one file
    assert ids[0] == ids[1] and Logged(job.folder).losses == COMPLETE


@pytest.mark.parametrize("answers, said", [("stall", "Timed out finishing run"), ("refuse", "Fatal error while")])
@pytest.mark.slow
def test_failed_upload_can_be_sent_later(answers, said, tmp_path, server):
    limit = max(6, 3 * offline_seconds(tmp_path))
    wandb = server(answers)
    job = Job(tmp_path / "job", finish_seconds=limit)
    while not wandb.variables:  # the run is made
        time.sleep(0.05)
    (warning,) = job.finish()
    assert job.seconds < limit + 2 and said in warning and job.tracker.line.startswith("W&B: http")
    assert Logged(job.folder).losses == COMPLETE
    assert "Would sync 1 run" in wandb_says(*shlex.split(SYNC.search(warning)[1]), "--dry-run")


# --- failures --------------------------------------------------------------------------------------


def no_server(server, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    return "connection refused"


def no_key(server, monkeypatch):
    return "No API key"


def wrong_key(server, monkeypatch):
    server("denied")
    return "user is not logged in"


@pytest.mark.parametrize("prepare", [no_key, wrong_key, no_server])
@pytest.mark.slow
def test_offline_with_a_warning(prepare, tmp_path, server, monkeypatch, capfd):
    limit = 6 + 4 * offline_seconds(tmp_path)  # half of it for the start, and then W&B starts again
    said = prepare(server, monkeypatch)
    job = Job(tmp_path / "job", finish_seconds=limit)
    (warning,) = job.finish()
    assert "not done" not in warning
    assert said in warning and "logged offline" in warning and "\n" not in warning
    assert capfd.readouterr() == ("", "") and job.tracker.line == ""
    assert Logged(job.folder).losses == COMPLETE  # and no other .wandb file lies there
    assert shlex.split(SYNC.search(warning)[1]) == ["sync", *map(str, job.folder.glob("wandb/offline-run-*"))]
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or KEY[:20].encode() not in file.read_bytes(), file


def test_warnings_have_no_secret(tmp_path, fake_wandb, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "short")
    fake_wandb(
        f"""
class Settings:
    model_fields = {{}}
    def __init__(self, **_): pass
def init(**_): raise RuntimeError("key short, or {KEY}, at https://me:word@proxy:80/x")
"""
    )
    assert Job(tmp_path / "job").finish() == [
        "W&B: key ***, or ***, at https://***@proxy:80/x. The run's own files hold everything."
    ]


FULL = """
import shutil, sys
from types import SimpleNamespace
shutil.disk_usage = lambda _: SimpleNamespace(free=FREE)
class Settings:
    model_fields = {}
    def __init__(self, **_): pass
class Run:
    offline, url, dir, starting_step, summary = True, "", "files/1", 0, {}
    def log(self, values, step): pass
    def finish(self, exit_code):
        print("wandb: INFO fine\\nwandb: ERROR not sent\\nwandb: WARNING slow.", file=sys.stderr)
def init(**_): return Run()
"""


@pytest.mark.parametrize(
    "free, said", [(2**20, []), (2**20 - 1, ["the disk is full, so its files may lack their end"])]
)
def test_printed_problems_are_warnings(free, said, tmp_path, fake_wandb):
    fake_wandb(FULL.replace("FREE", str(free)))
    (warning,) = Job(tmp_path / "job").finish()
    assert warning == f"W&B: {'; '.join([*said, 'not sent', 'slow'])}. To send it later: wandb sync files"


@pytest.mark.parametrize("status, keys, limit", [("ok", {"finish_seconds": 1}, 3), ("interrupted", {}, 1.5)])
def test_hanging_wandb_is_ended(status, keys, limit, tmp_path, fake_wandb, mark):
    fake_wandb("import subprocess, time; subprocess.Popen(['sleep', '1000'], start_new_session=True); time.sleep(1000)")
    job = Job(tmp_path / "job", **keys)
    deadline = time.monotonic() + 20
    while "sleep 1000" not in marked(mark):
        assert time.monotonic() < deadline
    (warning,) = job.finish(status)
    assert job.seconds < limit and "not done" in warning
    assert marked(mark) == []


@pytest.mark.slow
def test_stopped_process_holds_nothing_up(tmp_path, fake_wandb):
    fake_wandb("")
    job = Job(tmp_path / "job", finish_seconds=1)
    process = job.tracker.process.process
    process.send_signal(signal.SIGSTOP)
    try:
        (warning,) = job.finish()
        assert job.seconds < 6 and "not done 1 seconds" in warning
    finally:
        process.kill()


@pytest.mark.slow
def test_dead_process_is_a_warning(tmp_path):
    needed = offline_seconds(tmp_path)
    job = Job(tmp_path / "job", mode="offline")
    assert job.tracker.process.channel.poll(60)  # it says where the run is, and then logs the steps
    time.sleep(2.5 + needed)
    job.tracker.process.process.kill()
    (warning,) = job.tracker.finish(record())
    assert "its process has failed" in warning and SYNC.search(warning)
    assert Logged(job.folder).losses == COMPLETE[:-1]  # W&B holds a step back until the next


def test_ctrl_c_leaves_nothing(tmp_path, fake_wandb, mark):
    fake_wandb("import time; time.sleep(1000)")
    job = Job(tmp_path / "job")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        job.finish()
    assert marked(mark) == []


PARENT = """
import signal, sys
sys.path[:0] = [{root!r} + "/recipes", {tests!r}, {tests!r} + "/support"]
from pathlib import Path
from tracked_job import Job
job = Job(Path({folder!r}), mode="offline")
job.wait_until_open()
print("open", flush=True)
signal.pause()
"""


def test_killed_parent_leaves_nothing(tmp_path, mark, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    code = PARENT.format(root=str(ROOT), tests=str(ROOT / "tests"), folder=str(tmp_path / "job"))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "open\n"
    assert any("wandb-core" in command for command in marked(mark))  # or the rest of the test means nothing
    assert [*temporary.rglob("*wandb-media")]  # W&B makes it when it is imported
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 5
    while left := [*marked(mark), *temporary.iterdir()]:  # the folder goes last
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


# --- a sweep ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sweep_imports_wandb_once(tmp_path, server, mark):
    wandb = server("denied")
    first = Job(tmp_path / "first", group="a sweep")
    process = first.tracker.process.process
    (warning,) = first.finish()
    assert "user is not logged in" in warning and "logged offline" in warning and "not done" not in warning
    assert Logged(first.folder).losses == COMPLETE
    assert not any("wandb-core" in command for command in marked(mark))
    asked = len(wandb.texts)
    second = Job(tmp_path / "second", group="a sweep")
    assert second.tracker.process.process is process
    assert len(second.finish()) == 1  # the same reason again, and its own folder
    assert asked > 0 and len(wandb.texts) == asked
    assert Logged(second.folder).losses == COMPLETE
    process.kill()  # between two jobs
    process.wait()
    third = Job(tmp_path / "third", group="a sweep", mode="offline")
    assert third.finish() == []
    trackers.close()
    assert marked(mark) == []


@pytest.mark.slow
def test_sweep_line_sends_all_runs(tmp_path):
    folder = tmp_path / "a sweep"
    folder.mkdir()
    for name in ("first", "second"):
        job = Job(folder / name, group="a sweep", mode="offline")
        assert job.finish() == [] and job.tracker.line == "", "the sweep's end has the line"
    line = trackers.sweep_line(cfg(mode="offline"), folder)
    trackers.close()
    assert line.startswith("W&B: ")
    command = f"{sys.executable} -m {line.partition('sweep: ')[2]} --dry-run"
    said = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert "Would sync 2 run" in said.stdout + said.stderr, said


@pytest.mark.slow
def test_name_begins_with_what_differs(tmp_path):
    outcome = record()
    outcome.overrides = ["precision=bf16", "model.layers=2", "tracker=wandb", "train.seed=3"]
    tracker = trackers.open_tracker(cfg(mode="offline"), outcome, tmp_path, "a sweep", ["train.seed=3"])
    assert tracker.finish(outcome) == []
    assert Logged(tmp_path).run["display_name"] == "train.seed=3 precision=bf16 model.layers=2"


# --- the option ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{"name": "none"}, {"name": "local"}, {"mode": "disabled"}])
def test_no_process_without_a_tracker(keys, tmp_path, mark):
    job = Job(tmp_path / "job", **keys)
    assert marked(mark) == [] and job.finish() == [] and job.tracker.line == ""
    assert trackers.sweep_line(cfg(**keys), tmp_path) == ""


def test_wandb_mode_disabled(tmp_path, monkeypatch, mark):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert Job(tmp_path / "job").finish() == [] and marked(mark) == []
    assert isinstance(trackers.open_tracker(cfg(mode="offline"), record(), tmp_path), trackers.ProcessTracker)


def test_wandb_disabled(tmp_path, monkeypatch, mark):
    monkeypatch.setenv("WANDB_DISABLED", "true")
    assert Job(tmp_path / "job").finish() == [] and marked(mark) == []
    (line,) = tracker_options.warnings(cfg())
    assert "WANDB_DISABLED=true" in line and "tracker.mode=online" in line
    assert tracker_options.sends(cfg(mode="offline")) and tracker_options.warnings(cfg(mode="offline")) == []
    monkeypatch.setenv("WANDB_DISABLED", "false")
    assert tracker_options.sends(cfg()) and tracker_options.warnings(cfg()) == []


def test_settings_that_wandb_refuses(monkeypatch):
    assert tracker_options.problems(cfg()) == []
    assert tracker_options.problems(cfg(name="local", mode="never", project="")) == []
    for keys, word in [
        ({"mode": "never"}, "tracker.mode=never"),
        ({"project": "a/b"}, "tracker.project=a/b"),
        ({"project": ""}, "tracker.project="),
        ({"project": "x" * 129}, "1 to 128"),
    ]:
        (line,) = tracker_options.problems(cfg(**keys))
        assert word in line
    monkeypatch.setenv("WANDB_MODE", "never")
    (line,) = tracker_options.problems(cfg())
    assert "WANDB_MODE=never" in line
    assert tracker_options.problems(cfg(mode="offline")) == []


@pytest.mark.parametrize("option", ["wandb", "tensorboard", "mlflow"])
def test_every_key_of_the_option_has_a_comment(option):
    lines = (CONF / "tracker" / f"{option}.yaml").read_text().splitlines()
    assert lines[0].startswith("# ") and lines[1] == f"name: {option}"
    assert lines[2] == f"kind: {option}"
    keys = lines[3 : lines.index("facts:")] if "facts:" in lines else lines[3:]
    assert all("  # " in line for line in keys)
