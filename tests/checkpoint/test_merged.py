"""save.merge: AutoModel loads the trained model, and it answers as the model with its adapter did."""

from __future__ import annotations

import pytest
import torch
import transformers
from conftest import bare_model, compose, small

from legroom.options import validate
from legroom.records import run_folder

pytest.importorskip("peft", reason="peft is not installed: pip install legroom[peft]")
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install legroom[8bit]")


@pytest.mark.slow_for(
    "model=bert_tiny adapter=lora adapter.dora=true",
    "model=bert_tiny model.width=64 adapter=qlora adapter.bits=8",
    "model=llama_tiny adapter=qlora adapter.dora=true",
)
@pytest.mark.parametrize(
    "words",
    [
        ["model=llama_tiny", "adapter=lora"],
        ["model=bert_tiny", "adapter=lora", "adapter.dora=true"],
        ["model=gpt2_tiny", "adapter=qlora", "adapter.targets=[c_attn,c_fc]"],
        ["model=bert_tiny", "model.width=64", "adapter=qlora", "adapter.bits=8"],
        ["model=llama_tiny", "adapter=qlora", "adapter.dora=true"],
    ],
    ids=" ".join,
)
def test_the_merged_model_answers_as_the_adapter_did(train, words):
    asked = [*words, "train.max_steps=3", "train.learning_rate=0.05", "save.final=true", "save.merge=true"]
    run = train(*asked, "recipe=accelerate")
    folder = run.folder / run_folder.MODEL_FOLDER
    cfg = compose(*small("recipe=accelerate", f"model.pretrained={folder}")).cfg
    cfg.data.eval_samples = run.record.config["data"]["eval_samples"]
    _, rows = bare_model(cfg)
    kind = (
        transformers.AutoModelForCausalLM if "bert" not in words[0] else transformers.AutoModelForSequenceClassification
    )
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()) and not hasattr(model.config, "quantization_config")
    assert not (folder / "adapter_config.json").exists()
    batch = {key: torch.stack([row[key] for row in rows.eval]) for key in rows.eval[0]}
    with torch.no_grad():
        loss = model.eval()(**batch).loss.item()
    # On a CPU an evaluation in 8 bits rounds activations, too.
    assert loss == pytest.approx(run.record.evaluation.loss, rel=1e-2 if "adapter.bits=8" in words else 1e-5)
    warned = validate.warnings(compose(*small(*asked)).cfg)
    assert any("dequantised" in line for line in warned) == ("adapter=qlora" in words)


@pytest.mark.parametrize(
    "words,said",
    [
        (["save.final=true"], "adapter=none"),
        (["adapter=lora"], "save.final=true"),
    ],
)
def test_it_is_refused_in_words(words, said):
    (problem,) = compose("device=cpu", "save.merge=true", *words).problems
    assert said in problem
