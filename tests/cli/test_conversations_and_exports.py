"""What `chat`, `export`, `report` and `calibrate` do with a model that is played and folders that are made up."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import legroom.checkpoint
import legroom.models
from legroom.cli import calibrate, chat, export
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


def test_adapters_beside_each_other_are_not_merged_into_one_folder():
    """What lies there would pass for the other's."""
    assert [export._merged_folder(Path(name)).name for name in ("a", "b", "run/model")] == [
        "a-merged", "b-merged", "merged",
    ]  # fmt: skip


def test_a_folder_without_a_model_is_answered_with_the_same_command_for_another(monkeypatch, capsys):
    def locate(run, use):
        raise Refusal(f"{run.name}: {use}")

    monkeypatch.setattr(export.worker_environment, "prepare_imports", lambda: None)
    monkeypatch.setattr(export.saved_model, "locate", locate)
    assert answered(export.main, ["--merge", "a run", "--to", "b c"]) == 2
    assert capsys.readouterr().err == "refused: a run: export --merge --to 'b c'\n"


# --- report and calibrate -----------------------------------------------------------------------------------------


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
