"""The app in a real browser: ten questions that people ask, each answered or refused in one sentence.

Marked `browser`: `make test-browser`.
"""

from __future__ import annotations

import re
import threading
import urllib.parse

import pytest
from browser import SIZES, launched, opened_page

from legroom.cli.app.estimates import Estimates
from legroom.cli.app.form import Form
from legroom.cli.app.server import Server
from legroom.options import known_models

pytestmark = pytest.mark.browser

HUB = "https://huggingface.co/"
MISTRAL = f"{HUB}mistralai/Mistral-7B-v0.3"
LARGE = {"precision": "bf16", "batch.per_device": "1"}
# What is asked, the model that is named or None where it is refused, and what is said.
QUESTIONS = {
    "QLoRA 70B on two 24 GB": (
        {"model": "llama_70b", "gpu": "rtx4090_24gb", "gpus": "2", "mode": "fsdp", "adapter": "qlora", **LARGE},
        "llama_70b",
        "It does not fit",
    ),
    "full 7B on 8 A100 40": (
        {"model": "llama2_7b", "gpu": "a100_40gb", "gpus": "8", "mode": "fsdp", **LARGE},
        "llama2_7b",
        "It fits",
    ),
    "BERT on T4": ({"model": "bert_base", "gpu": "t4_16gb"}, "bert_base", "It fits"),
    "Mixtral LoRA on A100 80": (
        {"model": "Mixtral 8x7B", "gpu": "a100_80gb", "adapter": "lora", **LARGE},
        "mixtral_8x7b",
        "It does not fit",
    ),
    "Qwen3 8B": ({"model": "Qwen/Qwen3-8B", "gpu": "h100_80gb", "adapter": "lora", **LARGE}, "qwen3_8b", "It fits"),
    "Gemma 2 9B": ({"model": "Gemma 2 9B", "gpu": "l40s_48gb", "adapter": "qlora", **LARGE}, "gemma2_9b", "It fits"),
    "Phi-3": ({"model": "Phi-3"}, None, "phi3_mini, phi3_medium"),
    "Mistral by its link": (
        {
            "model": MISTRAL,
            "gpu": "rtx4080_16gb",
            "adapter": "qlora",
            **LARGE,
        },
        "mistral_7b",
        "It fits",
    ),
    "bad id": ({"model": "nobody/nothing-13b"}, None, "a model of like sizes ("),
    "bad number": ({"model": "bert_base", "batch.per_device": "0"}, None, "must be a whole number from 1"),
}


@pytest.fixture(scope="module")
def browser():
    with launched() as made:
        yield made


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app")
    estimates = Estimates(folder / "estimates")
    server = Server("127.0.0.1", 0, Form(folder / "pasted"), estimates)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    estimates.close()
    server.server_close()


def _hold_advice(page):
    """The search for what would make it fit has tests of its own, and takes a minute."""
    page.route("**/estimate", lambda route: None if route.request.post_data_json.get("advise") else route.continue_())


def _asked(page, address, question):
    page.goto("about:blank")
    page.goto(f"{address}#{urllib.parse.urlencode(question)}")
    page.wait_for_selector(".headline", timeout=180_000)
    return page.inner_text(".headline"), page.inner_text(".verdict p")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_answered_or_refused_in_one_sentence(browser, address, name, tmp_path):
    question, model, said = QUESTIONS[name]
    page = opened_page(browser, "about:blank", offline=False)
    _hold_advice(page)
    headline, text = _asked(page, address, question)
    page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
    if model is None:
        offered = page.locator(".card.verdict button.action").count()
        assert headline == ("Which model is meant?" if offered else "This cannot be trained as chosen")
        assert said in text
        assert page.text_content(".brief") == f"refused {text}", "what a phone shows above the form"
        assert not re.search(r"[.!?] (?!Choose)\S", text), "one sentence, and what to choose instead"
    else:
        hub_ids = [known_models.known().get(model, ("", ""))[1], question["model"].removeprefix(HUB)]
        assert said in headline and text.startswith((model, *filter(None, hub_ids)))
        typed = page.inner_text("pre.command").split()
        assert f"model={model}" in typed or any(f"model.pretrained={hub_id}" in typed for hub_id in hub_ids)
    assert page.errors == []
    page.context.close()


def test_a_limit_is_drawn_in_the_bar_and_named_at_every_width(browser, address, tmp_path):
    for width, scheme in SIZES:
        page = opened_page(browser, "about:blank", width, scheme, offline=False)
        _hold_advice(page)
        question = {"model": "bert_large", "gpu": "t4_16gb", "launch.memory_limit_gib": "10", "batch.per_device": "8"}
        _, text = _asked(page, address, question)
        page.screenshot(path=tmp_path / f"limit-{width}-{scheme}.png", full_page=True)
        assert "a limit of 10 GiB beside the context allows" in text and page.locator(".bar .capacity").count() == 2
        assert page.locator(".bar .capacity").last.get_attribute("title").startswith("the limit: ")
        assert "launch.memory_limit_gib=10" in page.inner_text("pre.command")
        assert page.evaluate("document.documentElement.scrollWidth") <= width and page.errors == []
        page.context.close()
