"""What `chat`, `export`, `report` and `calibrate` do with a model that is played and folders that are made up."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.known_values import known

import legroom.checkpoint
import legroom.models
from legroom.cli import calibrate, chat, export, report
from legroom.cli.commands import answered
from legroom.errors import Refusal


def in_place_of(monkeypatch, package: ModuleType, name: str, **functions: Any) -> None:
    """A module with these functions in place of one that imports libraries for seconds."""
    module = SimpleNamespace(**functions)
    monkeypatch.setitem(sys.modules, f"{package.__name__}.{name}", module)
    monkeypatch.setattr(package, name, module, raising=False)


# --- chat ---------------------------------------------------------------------------------------------------------


class Tokenizer:
    """Texts of letters, a token each; it keeps how it was called."""

    eos_token_id, all_special_ids = 3, [3]

    def __init__(self, template: str | None, seen: list[Any]):
        self.chat_template, self.seen = template, seen

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def __call__(self, text: str, **settings: Any) -> dict[str, Any]:
        self.seen.append(["tokens of", text, settings])
        ids = [ord(letter) for letter in text]
        return {"input_ids": torch.tensor([ids]) if settings.get("return_tensors") else ids}

    def apply_chat_template(self, messages: list[dict[str, str]], **settings: Any) -> str:
        self.seen.append(["template", settings])
        return "|".join(f"{each['role'][0]}:{each['content']}" for each in messages)

    def decode(self, ids: Any, **settings: Any) -> str:
        self.seen.append(["decodes", list(map(int, ids)), settings])
        return f"answer of {len(ids)}"


class Model:
    """Answers with two tokens."""

    device, generation_config = "cpu", SimpleNamespace(eos_token_id=3)

    def __init__(self, name: str, most: int | None, seen: list[Any]):
        self.name, self.seen = name, seen
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=most))

    def generate(self, input_ids, attention_mask, streamer, **settings):
        assert torch.is_inference_mode_enabled() and torch.equal(attention_mask, torch.ones_like(input_ids))
        streams = [streamer.skip_prompt, streamer.decode_kwargs]
        self.seen.append([f"{self.name} generates", settings, streams, torch.initial_seed()])
        return torch.cat([input_ids, torch.tensor([[7, 8]])], 1)


def conversation(seen: list[Any], template: str | None = "x", most: int | None = None, base=None, **asked: Any):
    settings = {"seed": 5, "tokens": 9, "temperature": 0.0, "system": "", "compare": False} | asked
    opened = SimpleNamespace(
        model=Model("trained", most, seen),
        tokenizer=Tokenizer(template, seen),
        base=base,
        base_name="the base",
        notes=[],
    )
    return chat.Conversation(opened, SimpleNamespace(**settings))  # type: ignore[arg-type]


def test_an_answer_is_asked_of_the_model_and_kept(data_regression, capsys):
    found: dict[str, Any] = {}

    def answers(name: str, *lines: str, **more: Any) -> None:
        seen: list[Any] = []
        try:
            talk = conversation(seen, **more)
            seen.clear()  # what the ends of an answer take
            for line in lines:
                talk.answer(line)
            result = {"messages": talk.messages, "heading": talk.heading, "ends": talk.ends}
        except Refusal as refusal:
            result = {"refused": str(refusal)}
        found[name] = known(result | {"seen": seen, "out": capsys.readouterr().out})

    answers("two lines", "one", "two")
    answers("warm, with a system message", "one", temperature=0.5, system="be kind")
    answers("no template", "one", template=None)
    answers("a system message without a template", template=None, system="be kind")
    answers("room for one", "abc", most=6)
    answers("room for none", "abc", most=5)
    answers("as many as are asked", "abc", most=14)
    answers("no limit", "abc", most=-1)
    answers("a limit of one", "abc", most=1)
    seen: list[Any] = []
    other = Model("other", None, seen)
    answers("beside its base", "a", compare=True, base=lambda: contextlib.nullcontext(other))
    answers("beside itself", "a", compare=True, base=lambda: contextlib.nullcontext(None))
    answers("a base that is not asked for", "a", base=lambda: contextlib.nullcontext(other))
    answers("a base that is not open", "a", compare=True)
    found["the base is asked"] = known(seen)
    data_regression.check(found)


def test_a_model_without_an_end_is_padded_with_the_first_token():
    seen: list[Any] = []
    talk = conversation(seen, template=None)
    talk.ends = []
    talk.answer("a")
    ((_, settings, *_),) = [each for each in seen if each[0] == "trained generates"]
    assert settings["eos_token_id"] is None and settings["pad_token_id"] == 0


@pytest.mark.parametrize("asks", [True, False])
def test_what_is_typed_in_a_conversation(monkeypatch, capsys, asks):
    lines, prompts = [" ", "/new", "hello", "/NEW x", "/", "/path/x", " /quit "], []
    talk: Any = SimpleNamespace(heading="Talk.", messages=["old"], answer=lambda line: print(f"<{line}>"))
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or lines.pop(0))
    chat.talk(talk, asks)
    said = capsys.readouterr()
    heading = [f"Talk. {chat.KEYS}."] * asks
    assert said.out.splitlines() == [*heading, "<hello>", "</path/x>"] and talk.messages == []
    assert [line.split()[0] for line in said.err.splitlines()] == ["/NEW", "/"]
    assert set(prompts) == {"> " if asks else ""} and not lines


@pytest.mark.parametrize(
    "typed, gpus, device", [([], [], "cpu"), ([], ["one"], "cuda"), (["--device", "cpu"], ["one"], "cpu")]
)
def test_chat_opens_the_model_on_the_gpu_where_there_is_one(monkeypatch, capsys, tmp_path, typed, gpus, device):
    seen: list[Any] = []
    opened = SimpleNamespace(model=Model("trained", None, seen), tokenizer=Tokenizer(None, seen), notes=["assumed"])
    monkeypatch.setattr(chat.saved_model, "locate", lambda folder, use: seen.append(use) or (folder, None))
    monkeypatch.setattr(chat.saved_model, "check_talks", lambda *given: seen.append(given))
    in_place_of(monkeypatch, legroom.models, "trained", open_trained=lambda *given: seen.append(given) or opened)
    monkeypatch.setattr(chat.host, "gpus", lambda: gpus)
    monkeypatch.setattr(chat.worker_environment, "prepare_imports", lambda: seen.append("imports"))
    broken, plain = io.TextIOWrapper(io.BytesIO(b"\xe4\n"), "utf-8"), io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdin", broken)
    monkeypatch.setattr(chat, "talk", lambda *_: plain.write(f"{broken.readline()}\u4f60") and plain.flush())
    monkeypatch.setattr("sys.stdout", plain)
    handled: dict[int, Any] = {}
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number == signal.SIGHUP else None)
    monkeypatch.setattr(signal, "signal", handled.__setitem__)
    assert chat.main([str(tmp_path), "--compare", "--system", "", *typed]) == 0
    assert plain.buffer.getvalue() == b"Note: assumed\n?\n?" and handled == {signal.SIGTERM: signal.SIG_DFL}
    use = " ".join(["chat --compare --system ''", *typed])
    assert seen[:4] == [use, (tmp_path, None, True), "imports", (tmp_path, device, True)]


# --- export -------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(monkeypatch, tmp_path, capsys):
    """exported(words) -> the exit code and what is printed, with HOME in place of the folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export.worker_environment, "prepare_imports", lambda: None)
    monkeypatch.setattr(export.saved_model, "locate", lambda run, use: (run / "model", None))

    def exported(words: str) -> dict[str, Any]:
        code = answered(export.main, words.split())
        said = capsys.readouterr()
        out, err = (text.replace(str(tmp_path), "HOME").splitlines() for text in (said.out, said.err))
        return {"code": code, "out": out, "err": err}

    return exported


def model_in(run: str, adapter: Any = None, **files: Any) -> Path:
    """A folder with a model, or an adapter on this base, and with these JSON files."""
    folder = Path(run, "model")
    folder.mkdir(parents=True)
    for name, values in {"config": {"architectures": ["GPT2LMHeadModel"]}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    if adapter is not None:
        (folder / export.ADAPTER_FILE).write_text(json.dumps({"base_model_name_or_path": adapter}))
    return folder


def test_how_a_gguf_file_is_made_is_said_or_why_there_is_none(exported, data_regression):
    published: dict[str, Any] = {
        "tokenizer_config": {},
        "tokenizer": {"model": {"vocab": {str(n): n for n in range(258)}}},
    }
    of_bytes: dict[str, Any] = {
        "tokenizer_config": {},
        "tokenizer": {"model": {"vocab": {str(n): n for n in range(257)}}},
    }
    model_in("whole", **published)
    model_in("no vocabulary", tokenizer_config={}, tokenizer={"model": {}})
    model_in("sentencepiece", tokenizer_config={})
    model_in("none")
    model_in("bytes", **of_bytes)
    model_in("adapter", "base", **published)
    model_in("merged", "base", **published).with_name("merged").mkdir()
    stale = model_in("stale", "base", **published).with_name("merged")
    stale.mkdir()
    os.utime(stale, (1, 1))
    model_in("classifier", **published | {"config": {"architectures": ["BertForSequenceClassification"]}})
    folder = model_in("classifying-adapter", **published | {"config": {}})
    (folder / export.ADAPTER_FILE).write_text(json.dumps({"task_type": "SEQ_CLS"}))
    runs = ["whole", "sentencepiece", "none", "bytes", "adapter", "merged", "stale", "classifier"]
    runs.append("classifying-adapter")
    found = {run: exported(f"{run} --gguf") for run in runs}
    found["options of other ways"] = exported("whole --gguf --to x")
    found["for another way, too"] = exported("adapter --merge --public")
    found["no vocabulary"] = {"text": export.gguf(Path("no vocabulary/model"), Path("no vocabulary")).splitlines()}
    data_regression.check(found)


def test_adapters_beside_each_other_are_not_merged_into_one_folder():
    """What lies there would pass for the other's."""
    assert [export._merged_folder(Path(name)).name for name in ("a", "b", "run/model")] == [
        "a-merged", "b-merged", "merged",
    ]  # fmt: skip


def test_an_adapter_is_merged_into_a_folder_that_is_new(exported, monkeypatch, data_regression):
    asked: list[Any] = []
    model_in("whole")
    model_in("adapter", "base")
    (model_in("with-card") / "README.md").touch()
    (Path("with-card") / "model" / "config.json").write_text("{}")
    model_in("unusual", config={"architectures": None})

    def merge(folder, found, target, device):
        asked.append([str(folder), found, str(target), device])
        target.mkdir()
        (target / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
        for name, size in (("a.safetensors", 2**20), ("b.safetensors", 2**20), ("c.json", 2**22)):
            (target / name).write_bytes(b"x" * size)
        return ["a note"], unsure

    in_place_of(monkeypatch, legroom.checkpoint, "exported", merge=merge)
    monkeypatch.setattr(export.worker_environment, "quiet_libraries", contextlib.nullcontext)
    monkeypatch.setattr("legroom.machine.host.gpus", lambda: gpus)
    unsure, gpus = False, []
    found: dict[str, Any] = {
        "whole": exported("whole --merge"),
        "with a card": exported("with-card --merge"),
        "without architectures": exported("unusual --merge"),
        "adapter": exported("adapter --merge"),
        "once more": exported("adapter --merge"),
    }
    unsure, gpus = True, ["one"]
    found["elsewhere"] = exported("adapter --merge --to other")
    found["on the CPU"] = exported("adapter --merge --to third --device cpu")
    data_regression.check(known(found | {"asked": asked}))


class Api:
    """The hub, which keeps what it is asked."""

    seen: list[Any] = []
    error: Exception | None = None

    def create_repo(self, name, **settings):
        if self.error is not None:
            raise self.error
        self.seen.append(["creates", name, settings])
        return SimpleNamespace(repo_id=f"someone/{name}")

    def upload_folder(self, **settings):
        self.seen.append(["uploads", {key: str(value) for key, value in settings.items()}])


def test_what_is_sent_to_the_hub_is_said_before(exported, monkeypatch, data_regression):
    import huggingface_hub

    Api.seen.clear()
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    token: str | None = "secret"
    folder = model_in("whole")
    (folder / "inner").mkdir()
    (folder / "inner" / "weights").write_bytes(b"x" * 2**22)
    Path("local").mkdir()
    model_in("adapter-on-a-folder", "local")
    found: dict[str, Any] = {
        "offline": exported("whole --hub name"),
        "a name that is none": exported("whole --hub a/b/c"),
    }
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    found["private"] = exported("whole --hub name")
    found["public"] = exported("adapter --hub name --public")
    found["a base that is here alone"] = exported("adapter-on-a-folder --hub name")
    monkeypatch.setattr(Api, "error", OSError("\n  \nit exists.\nmore"))
    found["exists"] = exported("whole --hub name")
    monkeypatch.setattr(Api, "error", OSError())
    found["no reason"] = exported("whole --hub name")
    token = None
    found["no token"] = exported("whole --hub name")
    data_regression.check(known(found | {"seen": Api.seen}))


def test_a_folder_without_a_model_is_answered_with_the_same_command_for_another(monkeypatch, capsys):
    def locate(run, use):
        raise Refusal(f"{run.name}: {use}")

    monkeypatch.setattr(export.worker_environment, "prepare_imports", lambda: None)
    monkeypatch.setattr(export.saved_model, "locate", locate)
    assert answered(export.main, ["--merge", "a run", "--to", "b c"]) == 2
    assert capsys.readouterr().err == "refused: a run: export --merge --to 'b c'\n"


# --- report and calibrate -----------------------------------------------------------------------------------------


def test_a_report_says_where_its_files_are(monkeypatch, tmp_path, capsys, data_regression):
    monkeypatch.chdir(tmp_path)
    opened, asked = [], []
    opens = True

    def make(folders, target, baseline):
        asked.append([list(map(str, folders)), str(target), baseline])
        if isinstance(error, Exception):
            raise error
        return "made", [Path("table.md"), Path("index.html")]

    monkeypatch.setattr(report.report, "make", make)
    monkeypatch.setattr(report.screen_table, "screen_text", lambda made: f"THE TABLE of {made}")
    monkeypatch.setattr(report.webbrowser, "open", lambda address: opened.append(address) or opens)
    error: Exception | None = None
    found: dict[str, Any] = {}

    def did(name: str, words: str) -> None:
        code = answered(report.main, words.split())
        said = capsys.readouterr()
        found[name] = {"code": code, "out": said.out.splitlines(), "err": said.err.splitlines()}

    did("one", "a")
    did("several", "a b --baseline optim=adamw")
    did("elsewhere", "a b --into c")
    did("opened", f"{tmp_path}/a --open")
    opens = False
    did("no browser", "a --open")
    monkeypatch.setattr(report.os.path, "relpath", lambda path: f"../../../..{path}" if path == Path("/a") else path)
    did("far away", "/a")
    error = OSError(13, "Permission denied", "a/table.md")
    did("unwritable", "a")
    error = OSError("odd")
    did("odd", "a")
    addresses = [address.replace(tmp_path.as_uri(), "HERE") for address in opened]
    asked = [[text.replace(str(tmp_path), "HERE") for text in (*folders, target)] for folders, target, _ in asked]
    data_regression.check(found | {"opened": addresses, "asked": asked})


def test_a_gpu_is_measured_where_there_is_one(monkeypatch, capsys):
    from legroom.foresight.calibration import gpu_benchmarks
    from legroom.foresight.speed import calibrated

    monkeypatch.setattr("legroom.machine.host.gpus", list)
    assert answered(calibrate.main, []) == 2
    assert capsys.readouterr().err.startswith("refused: there is no GPU that torch could use here.")
    monkeypatch.setattr("legroom.machine.host.gpus", lambda: ["one"])
    clock = iter([10.0, 12.0, 13.6])
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: next(clock))
    rates = SimpleNamespace(device="A GPU")
    monkeypatch.setattr(gpu_benchmarks, "measure", lambda show: show("copies") or rates)
    monkeypatch.setattr(calibrated, "write", lambda written: f"the file of {written.device}")
    assert calibrate.main([]) == 0
    assert capsys.readouterr().out == "    2 s  copies\n    4 s  A GPU: written to the file of A GPU\n"
