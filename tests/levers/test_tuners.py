"""adapter=peft: what peft's other tuners train is what peft trains with the same settings."""

from __future__ import annotations

import pytest
from conftest import compose, small

pytest.importorskip("peft")

LLAMA = ["model=llama_tiny", "model.width=64", "data=source", "data.samples=8", "train.learning_rate=0.01"]
SETTINGS = {
    "OFT": "{peft_type: OFT, oft_block_size: 16}",
    "IA3": "{peft_type: IA3, target_modules: [k_proj, v_proj, down_proj], feedforward_modules: [down_proj]}",
    "LOHA": "{peft_type: LOHA, r: 4}",
    "HRA": "{peft_type: HRA, r: 4}",
}


@pytest.mark.slow_for("trainer-LOHA", "accelerate-LOHA", "trainer-HRA", "accelerate-HRA", "trainer-IA3")
@pytest.mark.parametrize("tuner", SETTINGS)
@pytest.mark.parametrize("recipe", ["trainer", "accelerate"])
def test_a_tuner_trains_and_is_saved_as_peft_opens_it(train, recipe, tuner):
    """The saved adapter is opened again and compared before the run ends."""
    words = [*LLAMA, f"recipe={recipe}", "adapter=peft", f"adapter.peft={SETTINGS[tuner]}", "save.final=true"]
    run = train(*words, "train.max_steps=3")
    assert run.record.training.losses[-1] != run.record.training.losses[0]
    assert run.record.model.trained_parameters < 0.5 * run.record.memory.parameter_count
    assert (run.folder / "model/adapter_config.json").is_file()


def test_lora_by_its_own_settings_is_lora(train):
    ours = train(*LLAMA, "adapter=lora", "adapter.rank=4", "adapter.alpha=8").record
    theirs = train(*LLAMA, "adapter=peft", "adapter.peft={peft_type: LORA, r: 4, lora_alpha: 8}").record
    assert theirs.training.losses == ours.training.losses
    assert theirs.memory.peak_tensor_bytes == ours.memory.peak_tensor_bytes


def test_an_estimate_counts_what_is_trained(predicted):
    words = small("model=llama_tiny", "gpu=l4_24gb", "device=auto", "precision=bf16")
    lora = predicted(*words, "adapter=lora", "adapter.rank=4")
    same = predicted(*words, "adapter=peft", "adapter.peft={peft_type: LORA, r: 4, lora_alpha: 32}")
    assert same.memory == lora.memory


@pytest.mark.parametrize(
    "typed,said",
    [
        ("{peft_type: OFTT}", "peft has no peft_type OFTT. Did you mean OFT"),
        ("{peft_type: OFT, block: 4}", "OFTConfig has no setting block"),
        ("{peft_type: ADALORA}", "Type adapter=lora"),
        ("{peft_type: PREFIX_TUNING, num_virtual_tokens: 4}", "trains tokens before the text"),
        ("{peft_type: OFT, target_modules: [nowhere]}", "for this model"),
    ],
)
def test_settings_that_peft_does_not_take_are_refused_in_words(train, typed, said):
    refused = train(*LLAMA, "adapter=peft", f"adapter.peft={typed}", status="refused").record
    assert refused.error.message.startswith("adapter.peft: ") and said in refused.error.message


@pytest.mark.parametrize(
    "words,said",
    [
        (["adapter=peft"], "Type it as 'adapter.peft={peft_type: OFT"),
        (["adapter=peft", "adapter.peft={r: 4}"], "Type it as"),
        (["adapter=lora", "adapter.peft={peft_type: OFT}"], "it belongs to adapter=peft"),
    ],
)
def test_settings_without_a_tuner_are_refused(words, said):
    problems = compose("device=cpu", "model=llama_tiny", *words).problems
    assert any(said in line for line in problems), problems
