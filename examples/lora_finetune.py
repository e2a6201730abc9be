"""LoRA with peft on a Llama of any size, from its configuration alone: no weight is downloaded or made.

python examples/lora_finetune.py
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from legroom import StepEstimate, estimate_step

LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    """The body of the training loop, with bf16 weights."""
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def main(batch: int = 1, tokens: int = 1024, gpu: str = "rtx4090_24gb", **sizes: int) -> StepEstimate:
    """Estimate a LoRA step. sizes: of LlamaConfig, in place of those of Llama 3 8B."""

    def make() -> tuple:
        config = LlamaConfig(**(LLAMA_8B | sizes), dtype=torch.bfloat16, use_cache=False)
        base = LlamaForCausalLM(config).to(torch.bfloat16)
        base.gradient_checkpointing_enable({"use_reentrant": False})
        model = get_peft_model(base, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
        model.train()
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return model, torch.optim.AdamW(weights, lr=1e-4), torch.zeros(batch, tokens, dtype=torch.long)

    found = estimate_step(step, make=make, gpu=gpu)
    print(found)
    return found


if __name__ == "__main__":
    main()
