"""scripts/app.py: what can be chosen, who may ask, and what is answered."""

from __future__ import annotations

import http.client
import json
import threading

import pytest

from legroom.cli.app import command
from legroom.cli.app.estimates import Estimates
from legroom.cli.app.form import MOST_CONFIG_BYTES, Form
from legroom.cli.app.server import MOST_BYTES, Server
from legroom.errors import Refusal
from legroom.foresight import estimate_worker

CHOSEN = {"model": "bert_tiny", "gpu": "t4_16gb", "data.seq_len": 64, "batch.per_device": 2, "accumulation.steps": 1}
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


def test_what_is_chosen_becomes_a_command_line_without_the_defaults(form):
    words = form.overrides(CHOSEN | {"precision": "fp16", "optim": "adamw", "gpus": 4, "mode": "ddp", "explain": True})
    assert words[:3] == ["recipe=estimate", "model=bert_tiny", "gpu=t4_16gb"]
    assert "precision=fp16" in words and not any(word.startswith("optim") for word in words)
    assert words[-3:] == ["parallelism=ddp", "parallelism.num_processes=4", "estimate.explain=true"]
    assert not any(word.startswith("parallelism") for word in form.overrides(CHOSEN))


def test_all_that_the_page_offers_can_be_chosen(form):
    choices = form.choices()
    for menu in choices["menus"]:
        for option in menu["options"]:
            assert form.overrides(CHOSEN | {menu["key"]: option["name"]})
    assert [gpu["memory_bytes"] for gpu in choices["gpus"]] == sorted(gpu["memory_bytes"] for gpu in choices["gpus"])
    assert all(form.overrides(CHOSEN | {"model": model["name"]}) for model in choices["models"])


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"model": "/etc"}, "model: choose one of"),
        ({"model": "folder 7"}, "model: choose one of"),
        ({"gpu": "t4_16gb hydra.run.dir=/tmp"}, "gpu: choose one of"),
        ({"optim": ["adamw"]}, "optim: choose one of"),
        ({"data.seq_len": 0}, "whole number from 1"),
        ({"data.seq_len": "64"}, "whole number"),
        ({"batch.per_device": True}, "whole number"),
        ({"gpus": 10**9}, "Number of GPUs"),
        ({"gpus": 2, "mode": "zero"}, "mode: choose one of"),
        ({"config": "{"}, "not JSON"),
        ({"config": "[" * 60_000}, "not JSON"),
        ({"config": "{}"}, "no model_type"),
        ({"config": " " * MOST_CONFIG_BYTES + "{}"}, "at most 64 KiB"),
    ],
    ids=str,
)
def test_what_the_page_does_not_offer_is_refused(form, wrong, said):
    with pytest.raises(Refusal, match=said):
        form.overrides(CHOSEN | wrong)


def test_an_answer_has_the_record_the_command_and_a_page(form, answered, tmp_path):
    found = answered(form.overrides(CHOSEN))
    assert found["record"]["estimate"]["verdict"] == "fits" and found["record"]["memory"]["device_used_bytes"] > 0
    assert found["command"].startswith("python train.py recipe=estimate model=bert_tiny gpu=t4_16gb")
    assert (tmp_path / "answer" / "page.html").stat().st_size > 100_000


def test_a_pasted_configuration_is_estimated(form, answered):
    found = answered(form.overrides(CHOSEN | {"config": json.dumps(LLAMA)}))
    assert found["record"]["model"]["architecture"] == "LlamaForCausalLM" and found["record"]["model"]["layers"] == 2


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"model": "bert_tiny", "loss": "chunked"}, "chunked"),
        ({"config": json.dumps(LLAMA | {"model_type": "of nobody"})}, "of nobody"),
        ({"config": json.dumps(LLAMA | {"num_attention_heads": -3})}, ""),
    ],
    ids=["classifier", "unknown", "nonsense"],
)
def test_what_cannot_be_estimated_is_said_in_a_sentence(form, answered, wrong, said):
    found = answered(form.overrides(CHOSEN | wrong))
    reason = found.get("refused") or found["failed"]
    assert said in reason and "Traceback" not in reason and "record" not in found


# --- the server ----------------------------------------------------------------------------------------------


class Recorded(Estimates):
    """Estimates that only note what they are asked."""

    def __init__(self):
        self.asked = []

    def answer(self, overrides, advise=False):
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


def test_the_page_its_files_and_an_estimate(request_, server):
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
def test_pages_from_elsewhere_cannot_ask(request_, server, headers, status):
    assert request_("POST", "/estimate", json.dumps(CHOSEN), **headers)[0] == status
    assert not server.estimates.asked


def test_a_request_that_is_too_long_or_no_json_is_refused(request_, server):
    kind = {"Content_Type": "application/json"}
    assert request_("POST", "/estimate", b" " * (MOST_BYTES + 1), **kind)[0] == 413
    status, text = request_("POST", "/estimate", "{", **kind)
    assert status == 200 and "refused" in json.loads(text) and not server.estimates.asked


# --- the processes ---------------------------------------------------------------------------------------------


def test_estimates_run_in_processes_and_are_kept(form, tmp_path):
    estimates = Estimates(tmp_path / "estimates")
    words = form.overrides(CHOSEN)
    first = estimates.answer(words)
    assert first["record"]["estimate"]["fits"] and estimates.answer(words) is first
    assert b"<html" in (estimates.page(first["page"]) or b"") and estimates.page(99) is None
    other = estimates.answer(form.overrides(CHOSEN | {"gpu": "rtx3060_12gb"}))  # another generation: another simulation
    again = estimates.answer(form.overrides(CHOSEN | {"gpu": "rtx3090_24gb"}))
    assert len(list((tmp_path / "estimates" / "simulations").iterdir())) == 2
    assert other["record"]["memory"]["peak_tensor_bytes"] == again["record"]["memory"]["peak_tensor_bytes"]


def test_an_estimate_that_takes_too_long_is_ended(form, tmp_path, monkeypatch):
    monkeypatch.setattr("legroom.cli.app.estimates.SECONDS", 0.01)
    found = Estimates(tmp_path / "estimates").answer(form.overrides(CHOSEN))
    assert "no answer after" in found["failed"]


def test_what_would_make_it_fit_is_a_question_of_its_own(answered, request_, server, monkeypatch):
    monkeypatch.setattr("legroom.foresight.tried_levers.hint", lambda *_: "Tried: something.")
    request_("POST", "/estimate", json.dumps(CHOSEN | {"advise": True}), Content_Type="application/json")
    assert server.estimates.asked[-1][-1] == "advise"
    large = ["recipe=estimate", "gpu=t4_16gb", "model=bert_tiny", "launch.memory_limit_gib=0.01"]
    assert answered(large)["record"]["error"]["hint"] is None
    assert answered(large, advise=True)["record"]["error"]["hint"] == "Tried: something."


def test_a_folder_without_a_configuration_is_refused(tmp_path, capsys):
    assert command.main(["--models", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
