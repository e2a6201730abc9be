"""The ids and the lengths of rows against those of the model: what the rows have counts, not what they might have."""

from __future__ import annotations

import pytest
import tiny
from chat import CHATML, save_tokenizer, talk, write

TALKS = [talk("q" * n, f"answer {n}") for n in range(1, 9)]


def told(tmp_path, template, vocab):
    tokenizer = save_tokenizer(tmp_path / "tokenizer", template)
    path = write(tmp_path / "talks.jsonl", TALKS)
    words = ["model=llama_tiny", "data=chat", f"data.path={path}", f"data.tokenizer={tokenizer}"]
    return [*words, "data.eval_fraction=0.25", f"model.vocab={vocab}", "data.samples=null", "data.seq_len=64"]


def test_a_tokenizer_may_have_unused_tokens(train, tmp_path):
    """As Gemma 3 1B, whose tokenizer has a token for images."""
    assert train(*told(tmp_path, None, 258)).record.status == "ok"


def test_ids_behind_the_vocabulary_are_refused(train, tmp_path):
    error = train(*told(tmp_path, CHATML, 258), status="refused").record.error
    assert "the data has token ids up to 258, and the model a vocabulary of 258" in error.message


@pytest.mark.parametrize("family, status", [("llama", "ok"), ("gpt2", "refused")])
def test_rows_longer_than_rotary_positions_are_a_warning(train, tmp_path, family, status):
    model = tiny.tiny_model(family, "language_modelling")
    most = model.config.max_position_embeddings
    model.save_pretrained(tmp_path / "model")
    words = [f"model.pretrained={tmp_path / 'model'}", f"data.seq_len={most + 8}", "eval.enabled=false"]
    run = train(*words, "batch.per_device=1", "data.samples=2", "train.max_steps=1", status=status)
    said = f"data.seq_len={most + 8} is longer than the {most} positions"
    if status == "ok":
        assert any(said in line for line in run.record.warnings)
    else:
        assert said in run.record.error.message
