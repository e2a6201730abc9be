"""One step of a published fine-tuning: `published_check.py` runs this in an environment of the published versions.

Arguments of a run: FOLDER_OF_CONFIG full|lora TOKENS plain|checkpointed.

Measured: what torch allocated at most in the step. Half of the tokens have labels; the model's outputs are kept
over the step, as the published program does.
"""

from typing import Any

import torch
from published_check_forks import answer_each
from transformers import AutoConfig, AutoModelForCausalLM


def build(folder: str, method: str, checkpointed: bool) -> Any:
    """The model in bf16 on the device, with random weights; of LoRA's with rank 8 on all linear layers."""
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    model.config.use_cache = False
    if checkpointed:
        model.gradient_checkpointing_enable()
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
        if checkpointed:
            model.enable_input_require_grads()
    return model.train()


def measure(folder: str, method: str, tokens: str, checkpointing: str) -> dict[str, int]:
    model = build(folder, method, checkpointing == "checkpointed")
    ids = torch.randint(0, 1000, (1, int(tokens))).cuda()
    labels = ids.clone()
    labels[:, : int(tokens) // 2] = -100
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False)
    torch.cuda.reset_peak_memory_stats()
    outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, use_cache=False)
    outputs.loss.backward()
    optimizer.step()
    return {"allocated": torch.cuda.max_memory_allocated()}


if __name__ == "__main__":
    answer_each(measure)
