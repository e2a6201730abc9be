"""A script that asks the hub for a model that is not in the cache is told what to fetch."""

from __future__ import annotations

from legroom.script_check import check, process

OFFLINE = (
    "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files. "
    "meta-llama/Llama-3.1-8B-Instruct is not the path to a directory containing a file named config.json."
)


def test_what_to_fetch_and_what_to_ask_instead_is_said():
    why = check.why_not(process.Outcome(status=process.FAILED, error=f"OSError: {OFFLINE}"))
    assert "hf download meta-llama/Llama-3.1-8B-Instruct --exclude '*.safetensors'" in why
    assert "--network" in why and "recipe=estimate model=llama_8b" in why


def test_an_unknown_model_and_other_errors():
    unknown = check.why_not(
        process.Outcome(status=process.FAILED, error=OFFLINE.replace("meta-llama/Llama-3.1", "a/b"))
    )
    assert "hf download MODEL" in unknown and "model=" not in unknown
    assert "hf download" not in check.why_not(process.Outcome(status=process.FAILED, error="ValueError: no rows"))
