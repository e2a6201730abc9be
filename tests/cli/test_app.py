"""scripts/app.py: what can be chosen, who may ask, and what is answered."""

from __future__ import annotations

import errno
import http.client
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from processes import children_with

from legroom.cli import commands
from legroom.cli.app import child, command, model_name
from legroom.cli.app.estimates import Estimates, NotWanted, _failed
from legroom.cli.app.form import MODES, MOST_CONFIG_BYTES, Form, read
from legroom.cli.app.server import MOST_BYTES, Server
from legroom.errors import Refusal
from legroom.foresight import estimate_worker
from legroom.machine import worker_environment
from legroom.units import GIB

CHOSEN = {"model": "bert_tiny", "gpu": "t4_16gb", "data.seq_len": 64, "batch.per_device": 2, "accumulation.steps": 1}
PASTED = {"model": ""}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


@pytest.fixture
def form(tmp_path):
    return Form(tmp_path / "pasted", [tmp_path / "it's mine, really"])


class Sent:
    """The end of a pipe that keeps what is sent."""

    def send(self, value, /):
        self.value = json.loads(json.dumps(value))


@pytest.fixture
def answered(tmp_path):
    """answered(overrides) -> what a process of the app sends, from this process."""

    def answered(overrides, **more):
        pipe = Sent()
        estimate_worker.answer(overrides, tmp_path / "answer", pipe, **more)
        return pipe.value

    return answered


def test_choices_become_overrides(form):
    words = form.overrides(CHOSEN | {"precision": "fp16", "optim": "adamw", "gpus": 4, "mode": "ddp", "explain": True})
    assert words[:3] == ["recipe=estimate", "model=bert_tiny", "gpu=t4_16gb"]
    assert "precision=fp16" in words and not any(word.startswith("optim") for word in words)
    assert words[-3:] == ["parallelism=ddp", "parallelism.num_processes=4", "estimate.explain=true"]
    assert not any(word.startswith("parallelism") for word in form.overrides(CHOSEN))


def test_every_choice_is_accepted(form):
    choices = form.choices()
    for menu in choices["menus"]:
        for option in menu["options"]:
            assert form.overrides(CHOSEN | {menu["key"]: option["name"]})
    assert [gpu["memory_bytes"] for gpu in choices["gpus"]] == sorted(gpu["memory_bytes"] for gpu in choices["gpus"])
    assert all(form.overrides(CHOSEN | {"model": model["name"]}) for model in choices["models"])


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"model": "/etc"}, "not among the known models"),
        ({"model": "nobody/opt-6.7b"}, "codellama_7b, llama2_7b, deepseek_7b"),
        ({"model": "../x"}, "not among the known models"),
        ({"model": "zzqx 900B"}, "is not clear, or no known model"),
        ({"model": "Phi-3"}, "phi3_mini, phi3_medium"),
        ({"model": ["bert_tiny"]}, "must be a text"),
        ({"config": json.dumps(LLAMA)}, "leave one of them out"),
        ({"gpu": "t4_16gb hydra.run.dir=/tmp"}, "gpu: choose one of"),
        ({"optim": ["adamw"]}, "optim: choose one of"),
        ({"data.seq_len": 0}, "whole number from 1"),
        ({"data.seq_len": "64"}, "whole number"),
        ({"data.seq_len": 2**20 + 1}, "from 1 to 1,048,576"),
        ({"batch.per_device": 2**14 + 1}, "from 1 to 16,384"),
        ({"accumulation.steps": 2**12 + 1}, "from 1 to 4,096"),
        ({"gpus": 1025}, "from 1 to 1,024"),
        ({"adapter": "lora", "adapter.rank": 2**12 + 1}, "from 1 to 4,096"),
        ({"launch.memory_limit_gib": 1025}, "at most 1,024"),
        ({"batch.per_device": True}, "whole number"),
        ({"gpus": 10**9}, "Number of GPUs"),
        ({"launch.memory_limit_gib": 0}, "Limit of its memory in GiB must be a number above 0"),
        ({"launch.memory_limit_gib": "ten"}, "must be a number above 0"),
        ({"gpus": 2, "mode": "dp"}, "mode: choose one of"),
        (PASTED | {"config": "{"}, "not JSON"),
        (PASTED | {"config": "[" * 60_000}, "not JSON"),
        (PASTED | {"config": "{}"}, "no model_type"),
        (PASTED | {"config": " " * MOST_CONFIG_BYTES + "{}"}, "at most 64 KiB"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_other_choices_are_refused(form, wrong, said):
    with pytest.raises(Refusal, match=said):
        form.overrides(CHOSEN | wrong)


def test_cached_model_is_known_by_its_id(form, monkeypatch):
    monkeypatch.setattr(model_name, "_is_cached", lambda _: True)
    assert "model.pretrained=nobody/of-that-name" in form.overrides(CHOSEN | {"model": "nobody/of-that-name"})
    for text in ("../x", "a/b/c", "/etc"):
        with pytest.raises(Refusal, match="not among the known models"):
            form.overrides(CHOSEN | {"model": text})


@pytest.mark.parametrize(
    ("written", "override", "shown"),
    [
        ("mistralai/Mistral-7B-v0.3", "model.pretrained=mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-v0.3"),
        (
            "https://huggingface.co/mistralai/Mistral-7B-Instruct-v0.3/tree/main",
            "model.pretrained=mistralai/Mistral-7B-Instruct-v0.3",
            "mistralai/Mistral-7B-Instruct-v0.3 with the sizes of mistralai/Mistral-7B-v0.3",
        ),
        ("Mistral 7B", "model=mistral_7b", "mistral_7b with the sizes of mistralai/Mistral-7B-v0.3"),
        ("gemma-2 9b", "model=gemma2_9b", "gemma2_9b"),
        ("mixtral 8x7b", "model=mixtral_8x7b", "mixtral_8x7b"),
        (" bert_base ", "model=bert_base", "bert_base"),
    ],
)
def test_models_are_found_by_name(form, written, override, shown):
    words = form.overrides(CHOSEN | {"model": written})
    assert override in words
    assert form.named({"model": written}, words, {"command": ""})["model"].startswith(shown)


def test_what_is_not_clear_has_options_to_click(form):
    with pytest.raises(model_name.Unclear) as refused:
        form.overrides(CHOSEN | {"model": "Qwen 32B"})
    assert set(refused.value.near) == {"qwen2_5_32b", "qwen3_32b"}


def test_every_preset_is_a_question_that_the_form_takes(form):
    for preset in form.choices()["presets"]:
        values = CHOSEN | preset["values"]
        overrides = form.overrides(values)
        assert f"model.pretrained={values['model']}" in overrides and f"gpu={values['gpu']}" in overrides


def test_settings_of_another_trainer_fill_in_the_form(form):
    found = read(
        "base_model: Qwen/Qwen3-8B\nadapter: qlora\nlora_target_modules: [q_proj]\nmicro_batch_size: 2\nrl: dpo"
    )
    assert found["trainer"] == "axolotl" and found["unread"] == ["rl: dpo"]
    overrides = form.overrides(CHOSEN | found["values"] | {"more": found["more"]})
    assert {"adapter=qlora", "batch.per_device=2", "adapter.targets=[q_proj]"} <= set(overrides)
    assert "train.epochs=1" in found["rest"] and "train.epochs=1" in found["assumed"]


@pytest.mark.parametrize(
    "more", [["hydra.run.dir=/tmp"], ["adapter.targets=a b"], ["data.path=/etc/passwd"], "kernels=liger"]
)
def test_a_pasted_text_sets_nothing_else(form, more):
    with pytest.raises(Refusal):
        form.overrides(CHOSEN | {"more": more})


def test_empty_request_is_refused(form):
    with pytest.raises(Refusal, match="not an object of choices"):
        form.overrides([CHOSEN])


def test_command_of_a_pasted_model(form):
    assert "adapter.rank=4" in form.overrides(CHOSEN | {"adapter": "lora", "adapter.rank": 4})
    assert not any(word.startswith("adapter") for word in form.overrides(CHOSEN | {"adapter.rank": 4}))
    values = CHOSEN | PASTED | {"config": json.dumps(LLAMA)}
    words = form.overrides(values)
    found = form.named(values, words, {"command": f"python train.py {words[1]} gpu=t4_16gb"})
    assert found["command"].endswith("model.pretrained=pasted-model gpu=t4_16gb") and "pasted" in found["model"]


def test_memory_limit_decides_the_verdict(form, answered):
    found = answered(form.overrides(CHOSEN | {"launch.memory_limit_gib": 0.5}))
    estimate = found["record"]["estimate"]
    assert 0.5 * 2**30 < estimate["limit_bytes"] < 2**30 < estimate["capacity_bytes"]  # with the context
    assert "launch.memory_limit_gib=0.5" in found["command"]


def test_answer_has_record_command_and_page(form, answered, tmp_path):
    found = answered(form.overrides(CHOSEN))
    assert found["record"]["estimate"]["verdict"] == "fits" and found["record"]["memory"]["device_used_bytes"] > 0
    assert found["command"].startswith("python train.py recipe=estimate model=bert_tiny gpu=t4_16gb")
    assert (tmp_path / "answer" / "page.html").stat().st_size > 100_000


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_several_gpus_is_estimated(form, answered, mode):
    more = {"model": "llama_tiny", "gpu": "l4_24gb", "gpus": 4, "mode": mode, "accumulation.steps": 2}
    found = answered(form.overrides(CHOSEN | more))
    assert f"parallelism={mode}" in found["command"] and found["record"]["estimate"]["verdict"] == "fits"


def test_pasted_configuration_is_estimated(form, answered):
    found = answered(form.overrides(CHOSEN | PASTED | {"config": json.dumps(LLAMA)}))
    assert found["record"]["model"]["architecture"] == "LlamaForCausalLM" and found["record"]["model"]["layers"] == 2


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"model": "bert_tiny", "loss": "chunked"}, "chunked"),
        (PASTED | {"config": json.dumps(LLAMA | {"model_type": "of nobody"})}, "of nobody"),
        (PASTED | {"config": json.dumps(LLAMA | {"num_attention_heads": -3})}, ""),
        (PASTED | {"config": json.dumps(LLAMA | {"num_hidden_layers": -1})}, "num_hidden_layers=-1"),
        (PASTED | {"config": json.dumps(LLAMA | {"num_hidden_layers": 10**9})}, "num_hidden_layers=1000000000"),
        (PASTED | {"config": json.dumps(LLAMA | {"num_labels": 10**9})}, "num_labels=1000000000"),
    ],
    ids=["classifier", "unknown", "nonsense", "no layers", "layers", "labels"],
)
def test_refusal_is_one_sentence(form, answered, wrong, said):
    found = answered(form.overrides(CHOSEN | wrong))
    reason = found.get("refused") or found["failed"]
    assert said in reason and "Traceback" not in reason and "record" not in found


# --- the server ----------------------------------------------------------------------------------------------


class Recorded(Estimates):
    """Estimates that only note what they are asked."""

    def __init__(self):
        self.asked = []

    def answer(self, overrides, advise=False, gone=lambda: False):
        self.asked.append([*overrides, "advise"] if advise else overrides)
        return {"record": {}, "page": 3}

    def page(self, number):
        return b"a page" if number == 3 else None


@pytest.fixture
def server(form):
    made = Server("127.0.0.1", 0, form, Recorded())
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def request_(server):
    """request_(method, path, body, **headers) -> (status, text)."""

    def request_(method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text

    return request_


@pytest.mark.parametrize("length", ["\u00b2", "9" * 5000, "-1", "1.5", ""])
def test_content_length_must_be_a_number(request_, length, capfd):
    status, text = request_("POST", "/estimate", None, Content_Type="application/json", Content_Length=length)
    assert status == 413 and "KiB" in text
    assert "Traceback" not in capfd.readouterr().err


def test_server_answers_page_files_and_estimates(request_, server):
    for path, part in (
        ("/", "app.js"),
        ("/app.js", "Will it fit?"),
        ("/app.css", ".verdict"),
        ("/choices", "bert_tiny"),
    ):
        status, text = request_("GET", path)
        assert status == 200 and part in text
    status, text = request_("POST", "/estimate", json.dumps(CHOSEN), Content_Type="application/json")
    assert (status, json.loads(text)["page"]) == (200, 3) and "model=bert_tiny" in server.estimates.asked[0]
    assert request_("GET", "/pages/3") == (200, "a page")


@pytest.mark.parametrize("path", ["/pages/4", "/pages/../../etc/passwd", "/etc/passwd", "/app.html", "/pages/"])
def test_no_other_file_can_be_read(request_, path):
    assert request_("GET", path)[0] == 404


@pytest.mark.parametrize(
    "headers,status",
    [
        ({"Host": "elsewhere.example", "Content_Type": "application/json"}, 403),
        ({"Origin": "http://elsewhere.example", "Content_Type": "application/json"}, 403),
        ({"Content_Type": "text/plain"}, 404),
    ],
    ids=["another name", "another page", "a form"],
)
def test_requests_of_other_origins_are_refused(request_, server, headers, status):
    assert request_("POST", "/estimate", json.dumps(CHOSEN), **headers)[0] == status
    assert not server.estimates.asked


@pytest.mark.parametrize(
    "name, status", [("elsewhere.example", 403), ("localhost:80", 200), ("[::1]:80", 200), ("[::1]", 200)]
)
def test_only_loopback_names_are_answered(request_, name, status):
    assert request_("GET", "/app.css", Host=name)[0] == status


def test_unwanted_estimate_has_no_answer(request_, server, monkeypatch):
    def answer(*_):
        raise NotWanted

    monkeypatch.setattr(server.estimates, "answer", answer)
    with pytest.raises(http.client.RemoteDisconnected):
        request_("POST", "/estimate", json.dumps(CHOSEN), Content_Type="application/json")


def test_long_or_invalid_request_is_refused(request_, server):
    kind = {"Content_Type": "application/json"}
    assert request_("POST", "/estimate", b" " * (MOST_BYTES + 1), **kind)[0] == 413
    status, text = request_("POST", "/estimate", "{", **kind)
    assert status == 200 and "refused" in json.loads(text) and not server.estimates.asked


def test_closed_tab_ends_its_estimate(server, capfd, monkeypatch):
    asked, noticed = threading.Event(), threading.Event()

    def answer(overrides, advise=False, gone=lambda: False):
        assert not gone()
        asked.set()
        while not gone():
            pass
        noticed.set()
        return {"record": "x" * 10**7}  # which cannot be sent any more

    monkeypatch.setattr(server.estimates, "answer", answer)
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("POST", "/estimate", json.dumps(CHOSEN), {"Content-Type": "application/json"})
    assert asked.wait(10)
    connection.close()
    assert noticed.wait(10)
    for error, printed in ((BrokenPipeError(), ""), (ZeroDivisionError(), "ZeroDivisionError")):
        try:
            raise error
        except Exception:
            server.handle_error(None, ("127.0.0.1", 1))
        assert printed in (err := capfd.readouterr().err) and bool(printed) == bool(err)


@pytest.fixture
def sent(server):
    """sent(method, path, body, **headers) -> (status, headers that matter, text, whether the connection is closed)."""

    def sent(method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        known = {name.lower(): value for name, value in reply.getheaders() if name not in ("Server", "Date")}
        text = reply.read().decode()
        assert int(known.pop("content-length")) == len(text.encode())
        assert connection.sock is not None
        try:
            connection.sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            closed = connection.sock.recv(1) == b""
        except ConnectionError:
            closed = True
        connection.close()
        return {"status": reply.status, "headers": known, "text": text[:80], "closed": closed}

    return sent


def test_open_server_checks_the_origin(sent, server):
    server.only_loopback = False
    kind = {"Content_Type": "application/json", "Host": "elsewhere.example:80"}
    assert sent("GET", "/", Host="elsewhere.example")["status"] == 200
    for origin, status in (("http://elsewhere.example:80", 200), ("http://other.example", 403)):
        assert sent("POST", "/estimate", json.dumps(CHOSEN), Origin=origin, **kind)["status"] == status


# --- the processes ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_estimates_are_kept(form, tmp_path):
    estimates = Estimates(tmp_path / "estimates")
    words = form.overrides(CHOSEN)
    first = estimates.answer(words)
    assert first["record"]["estimate"]["fits"] and estimates.answer(words) is first
    assert b"<html" in (estimates.page(first["page"]) or b"") and estimates.page(99) is None
    other = estimates.answer(form.overrides(CHOSEN | {"gpu": "rtx3060_12gb"}))  # another generation: another simulation
    again = estimates.answer(form.overrides(CHOSEN | {"gpu": "rtx3090_24gb"}))
    assert len(list((tmp_path / "estimates" / "simulations").iterdir())) == 2
    assert other["record"]["memory"]["peak_tensor_bytes"] == again["record"]["memory"]["peak_tensor_bytes"]


@pytest.mark.slow
def test_slow_estimate_is_ended(form, tmp_path, monkeypatch):
    monkeypatch.setattr("legroom.cli.app.estimates.SECONDS", 0.01)
    found = Estimates(tmp_path / "estimates").answer(form.overrides(CHOSEN))
    assert "no answer after" in found["failed"]


@pytest.fixture
def forked(tmp_path, monkeypatch):
    """forked(answer) -> estimates whose processes are forked from this one and run `answer`."""

    def forked(answer):
        monkeypatch.setattr(Estimates, "import_libraries", lambda _: None)
        monkeypatch.setattr(estimate_worker, "answer", answer)
        made = Estimates(tmp_path / "estimates")
        made._context = multiprocessing.get_context("fork")
        return made

    return forked


def _wait(*_):
    signal.pause()


@pytest.mark.parametrize("how, code", [("the app has ended", signal.SIGKILL), ("time", signal.SIGALRM)])
def test_estimate_process_ends_itself(tmp_path, monkeypatch, how, code):
    monkeypatch.setattr(estimate_worker, "answer", _wait)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    seconds = 0.1 if how == "time" else 60

    def run():
        ours.close()  # which a fork has inherited, and a process of the app has not
        child.run(["x"], tmp_path / "1", theirs, False, seconds)

    process = context.Process(target=run)
    process.start()
    if how != "time":
        ours.close()
    process.join(10)
    assert process.exitcode == -code


def test_memory_of_an_estimate_is_limited(forked, monkeypatch):
    def fill(overrides, folder, pipe, advise):
        bytearray(2**40)

    monkeypatch.setattr(estimate_worker, "_estimated", fill)
    found = forked(estimate_worker.answer).answer(["x"])
    assert "memory" in found["failed"] and "Traceback" not in found["failed"]
    limits = []
    monkeypatch.setattr(worker_environment, "limit_data", limits.append)
    monkeypatch.setattr(child, "_end_with_app", lambda _: None)
    monkeypatch.setattr(signal, "setitimer", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    ours, theirs = multiprocessing.Pipe()
    monkeypatch.setattr(estimate_worker, "answer", lambda *_: None)
    child.run(["x"], Path("unused"), theirs, True, 1.0)
    assert 0 < limits[0] <= child.MOST_BYTES and ours


@pytest.mark.parametrize("advise", [True, False])
def test_simulations_are_shared(monkeypatch, tmp_path, advise):
    monkeypatch.setattr(child, "_end_with_app", lambda _: None)
    monkeypatch.setattr(worker_environment, "limit_data", lambda _: None)
    timed, handled, asked = [], {}, []
    monkeypatch.setattr(signal, "setitimer", lambda *arguments: timed.append(arguments))
    monkeypatch.setattr(signal, "signal", handled.__setitem__)
    monkeypatch.setattr(estimate_worker, "answer", lambda *arguments: asked.append(arguments))
    monkeypatch.delenv(worker_environment.SIMULATIONS, raising=False)
    pipe = SimpleNamespace()
    for number in ("1", "2"):
        child.run(["x"], tmp_path / "estimates" / number, pipe, advise, 7.0)  # type: ignore[arg-type]
    assert asked == [(["x"], tmp_path / "estimates" / number, pipe, advise) for number in ("1", "2")]
    shared = tmp_path / "estimates" / child.SHARED
    assert os.environ.pop(worker_environment.SIMULATIONS, None) == (None if advise else str(shared))
    assert shared.is_dir() is not advise and timed == [(signal.ITIMER_REAL, 7.0)] * 2
    assert handled == {signal.SIGINT: signal.SIG_IGN, signal.SIGALRM: signal.SIG_DFL}


@pytest.mark.parametrize(
    "code, said",
    [
        (-6, "may take 3.0 GiB, and it ended with SIGABRT"),
        (-9, "may take 3.0 GiB, and it ended with SIGKILL"),
        (-14, "took more than 180 seconds on this machine"),
        (3, "exit code 3"),
        (None, "exit code None"),
    ],
)
def test_end_of_a_process_is_explained(monkeypatch, code, said):
    monkeypatch.setattr("legroom.cli.app.estimates.most_bytes", lambda: 3 * GIB)
    text = _failed(code)["failed"]
    assert said.replace("may take", "lets it take") in text
    assert ("This says nothing about the GPU" in text) is (code is not None and code < 0)


@pytest.mark.parametrize("host, open_to_all", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_open_address_is_announced(monkeypatch, tmp_path, capsys, host, open_to_all):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(command.worker_environment, "prepare", lambda *_: None)
    monkeypatch.setattr(Estimates, "import_libraries", lambda _: None)
    monkeypatch.setattr(Server, "serve_forever", lambda _: None)
    for words in ([], ["--open"]):
        assert command.main(["--port", "0", "--host", host, *words]) == 0
    said = capsys.readouterr().out
    assert len(opened) == 1 and f"Will it fit? {opened[0]} (Ctrl-C ends it)" in said
    assert ("Everybody who reaches this address can start estimates" in said) is open_to_all


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_removes_the_folder(monkeypatch, tmp_path, number):
    closed, before = [], signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(command.worker_environment, "prepare", lambda *_: None)
    monkeypatch.setattr(Estimates, "import_libraries", lambda _: None)
    monkeypatch.setattr(Estimates, "close", lambda _: closed.append(list(tmp_path.iterdir())))
    monkeypatch.setattr(Server, "serve_forever", lambda _: os.kill(os.getpid(), number))
    assert command.main(["--port", "0"]) == 0
    assert closed[0] and not list(tmp_path.iterdir()) and signal.getsignal(signal.SIGTERM) is before


def test_fork_server_ends_with_the_app(tmp_path):
    """Not after its imports, which it has just begun here; and Ctrl-C, which it gets too, is none of its affairs."""
    words = [sys.executable, "-m", "legroom", "app", "--port", "0"]
    with (
        (tmp_path / "said").open("w") as said,
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True) as app,
    ):
        try:
            started, found = time.monotonic(), []
            while not found:
                assert time.monotonic() < started + 20
                time.sleep(0.05)
                found = children_with(app.pid, "forkserver")
            time.sleep(0.5)
        finally:
            os.killpg(app.pid, signal.SIGINT)
    gone, _ = psutil.wait_procs(found, timeout=10)
    assert gone == found and "Traceback" not in (tmp_path / "said").read_text()


@pytest.mark.parametrize("port", ["-1", "99999999", "65536", "x"])
def test_invalid_port_is_refused(port, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([f"--port={port}"])
    assert ended.value.code == 2 and port in (said := capsys.readouterr().err) and "65535" in said


def test_privileged_port_is_refused(monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(command.worker_environment, "prepare", lambda *_: None)
    monkeypatch.setattr(Estimates, "import_libraries", lambda _: None)
    monkeypatch.setattr(Server, "server_bind", refuse)
    assert commands.answered(command.main, ["--port", "80"]) == 2
    assert "127.0.0.1:80 cannot be used (Permission denied)" in capsys.readouterr().err


def test_advice_is_asked_for_separately(answered, request_, server, monkeypatch):
    monkeypatch.setattr("legroom.foresight.advice.hint", lambda *_: "Tried: something.")
    request_("POST", "/estimate", json.dumps(CHOSEN | {"advise": True}), Content_Type="application/json")
    assert server.estimates.asked[-1][-1] == "advise"
    large = ["recipe=estimate", "gpu=t4_16gb", "model=bert_tiny", "launch.memory_limit_gib=0.01"]
    assert answered(large)["record"]["error"]["hint"] is None
    assert answered(large, advise=True)["record"]["error"]["hint"] == "Tried: something."


def test_folder_without_configuration_is_refused(tmp_path, capsys):
    assert commands.answered(command.main, ["--models", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
