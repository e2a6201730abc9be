"""tests/tools/walk_models.py: a dozen of the architectures that it walks, and its page."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import walk_models
from walk_models import NOT_MADE, REFUSED, TRAINED, Result


@pytest.fixture(scope="module")
def walk(tmp_path_factory, fork_server):
    return walk_models.Walk(tmp_path_factory.mktemp("walk"), fork_server)


@pytest.mark.slow_for(
    "bart-classification-sdpa",
    "deberta-v2-classification-eager",
    "gemma2-language_modelling-eager",
    "llama-language_modelling-sdpa",
    "mamba-language_modelling-eager",
    "mixtral-language_modelling-sdpa",
)
@pytest.mark.parametrize(
    "kind,task,attention",
    [
        ("llama", "language_modelling", "sdpa"),
        ("gemma2", "language_modelling", "eager"),
        ("mamba", "language_modelling", "eager"),
        pytest.param("deepseek_v3", "language_modelling", "sdpa", marks=pytest.mark.slow),
        ("mixtral", "language_modelling", "sdpa"),
        pytest.param("gemma3", "language_modelling", "sdpa", marks=pytest.mark.slow),
        pytest.param("roberta", "classification", "sdpa", marks=pytest.mark.slow),
        ("deberta-v2", "classification", "eager"),
        ("bart", "classification", "sdpa"),
        pytest.param("xlnet", "classification", "eager", marks=pytest.mark.slow),
    ],
)
def test_an_architecture_is_trained_estimated_saved_and_loaded(walk, kind, task, attention):
    result = walk.visit(kind, task)
    assert (result.status, result.attention) == (TRAINED, attention), result.why


@pytest.mark.slow_for("perceiver-classification-inputs", "xlm-language_modelling-encoder")
@pytest.mark.parametrize(
    "kind,task,said",
    [
        ("xlm", "language_modelling", "encoder"),
        ("whisper", "language_modelling", "audio"),
        ("perceiver", "classification", "inputs"),
    ],
)
def test_an_architecture_is_refused_in_one_line(walk, kind, task, said):
    result = walk.visit(kind, task)
    assert result.status == REFUSED and said in result.why and "\n" not in result.why


def test_every_architecture_of_the_two_mappings_is_visited():
    kinds = walk_models.architectures()
    assert len(kinds) == len(set(kinds)) > 200
    assert ("llama", "language_modelling") in kinds and ("albert", "classification") in kinds


def test_the_page_counts_and_lists_results():
    page = walk_models.page(
        [
            Result("llama", "language_modelling", TRAINED, "LlamaForCausalLM", attention="sdpa"),
            Result(
                "bert", "language_modelling", REFUSED, "BertLMHeadModel", "/x/bert-language_modelling is an | encoder"
            ),
            Result("gemma3n", "classification", NOT_MADE, why="ImportError: timm"),
        ]
    )
    lines = page.splitlines()
    assert next(line for line in lines if line.startswith("| trained |")).endswith("| 1 | 0 |")
    assert next(line for line in lines if line.startswith("| not made |")).endswith("| 0 | 1 |")
    assert "| llama | LlamaForCausalLM | trained | sdpa |  |" in lines
    assert any("| bert | BertLMHeadModel | refused |" in line and "\\|" in line for line in lines)


def test_a_walk_over_some_leaves_a_page_of_all_as_it_is(tmp_path, monkeypatch, capsys):
    kinds = [("llama", "language_modelling"), ("bert", "language_modelling")]
    monkeypatch.setattr(walk_models, "architectures", lambda: kinds)
    server = SimpleNamespace(ForkServer=lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(walk_models, "fork_client", server)
    monkeypatch.setattr(walk_models, "Walk", lambda *_: SimpleNamespace(visit=lambda *one: Result(*one, TRAINED, "A")))
    page = tmp_path / "models.md"
    page.write_text("of all")
    assert walk_models.run(["llama"], tmp_path / "results", page, 1) == 0
    assert page.read_text() == "of all" and "stays as it is" in capsys.readouterr().out
    assert walk_models.run([], tmp_path / "results", page, 2) == 0 and "| bert |" in page.read_text()
    page.unlink()
    assert walk_models.run(["llama"], tmp_path / "results", page, 1) == 0 and "| bert |" in page.read_text()
