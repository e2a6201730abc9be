"""The command `chat`: a trained model answers, beside its base too; what cannot talk is refused in a line."""

from __future__ import annotations

import io
import json
import shutil

import pytest

from legroom.cli import chat

TEXT = ("model=gpt2_tiny", "model.vocab=257", "data=source", "data.samples=8", "save.final=true")


@pytest.fixture
def talk(monkeypatch, capsys):
    """talk(folder, *arguments, lines=()) -> (exit code, what was printed, what was printed to stderr)."""

    def talk(folder, *arguments: str, lines=("What is 7?",)):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = chat.main([str(folder), "--device", "cpu", "--tokens", "4", *arguments])
        return code, *capsys.readouterr()

    return talk


@pytest.fixture(scope="module")
def base(train):
    """A model that continues texts: its tokenizer has no chat template."""
    return train(*TEXT).folder


@pytest.fixture(scope="module", params=["adapter=lora", "adapter=qlora"])
def tuned(train, base, request, tmp_path_factory):
    """An adapter on that model, trained on conversations until it only says one word."""
    pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
    talks = tmp_path_factory.mktemp("talks") / "talks.jsonl"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "zzzz"}]
    talks.write_text(json.dumps({"messages": messages}) + "\n" + json.dumps({"messages": messages}) + "\n")
    words = [f"model.pretrained={base}/model", "data=chat", f"data.path={talks}", "data.eval_fraction=0"]
    words += [request.param, "save.final=true", "train.max_steps=30", "train.learning_rate=0.05"]
    return train(*words, "measure.ledger=false").folder


def test_an_adapter_answers_as_it_was_trained_beside_its_base(talk, tuned, base):
    code, out, _ = talk(tuned, "--compare", lines=("a", "/new", "a"))
    first, second = out.split("[trained]\n")[1:]
    assert code == 0 and out.startswith(f"[{base}/model]")
    assert first.splitlines()[0] == "zzzz" == second.splitlines()[0], "it learned one answer"
    assert "zzzz" not in out.split("[trained]")[0], "the base did not"
    assert talk(tuned / "model", lines=("a",))[1].strip() == "zzzz"  # the run's record is found beside it


def test_a_model_without_a_template_continues_the_text_and_has_nothing_to_compare(talk, base):
    code, out, _ = talk(base, lines=("def ",))
    assert code == 0 and out
    for arguments, word in ((["--compare"], "pretrained"), (["--system", "Be kind."], "template")):
        code, _, err = talk(base, *arguments)
        assert code == 2 and word in err and err.count("refused: ") == 1


def test_what_cannot_talk_is_refused(talk, train, tmp_path):
    dummy = train("model=gpt2_tiny", "save.final=true").folder
    classifier = train("model=bert_tiny", "save.final=true", "train.max_steps=1").folder
    unsaved = train("model=gpt2_tiny", "train.max_steps=1").folder
    for folder, word in (
        (dummy, "data=dummy"),
        (classifier, "classifies"),
        (unsaved, "save.final=true"),
        (tmp_path, "no run"),
        (tmp_path / "missing", "no folder"),
    ):
        code, _, err = talk(folder)
        assert code == 2 and word in err and err.count("refused: ") == 1, (folder, err)


def test_a_run_that_left_a_checkpoint_says_how_to_save_its_model(talk, tmp_path):
    (tmp_path / "checkpoints/step-00000002").mkdir(parents=True)
    code, _, err = talk(tmp_path)
    assert code == 2 and "resume=latest" in err and err.count("refused: ") == 1
    (tmp_path / "result.json").write_text("{")
    code, _, err = talk(tmp_path)
    assert code == 2 and "result.json" in err and err.count("refused: ") == 1


@pytest.mark.parametrize("words", [["--tokens", "0"], ["--temperature", "-1"], ["--temperature", "nan"]])
def test_numbers_that_make_no_answer_are_refused(talk, tmp_path, words, capsys):
    with pytest.raises(SystemExit) as ended:
        chat.main([str(tmp_path), *words])
    assert ended.value.code == 2 and words[0] in capsys.readouterr().err


def test_the_settings_of_the_base_are_not_those_of_the_conversation(talk, base, tmp_path):
    """Beams cannot be shown as they are made; XLNet's -1 is no limit."""
    shutil.copytree(base / "model", tmp_path / "model")
    settings = {"do_sample": True, "temperature": 0.6, "num_beams": 2, "eos_token_id": 0}
    (tmp_path / "model/generation_config.json").write_text(json.dumps(settings))
    code, out, _ = talk(tmp_path / "model", "--temperature", "1")
    assert code == 0 and out
