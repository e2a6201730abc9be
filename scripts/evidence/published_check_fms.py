"""Steps of a run of fms-acceleration's benchmarks: `published_check.py` runs this in an environment of its versions.

Arguments of a run: MODEL full|lora|prepared|qlora BATCH TOKENS.

The training is transformers' Trainer with scripts/benchmarks/defaults.yaml of foundation-model-stack/fms-acceleration:
weights in bf16 under autocast, checkpointing, AdamW, rows of random tokens that are all equally long. `prepared`: QLoRA
as TRL's SFTTrainer prepares it. `qlora`: as the plugin of that repository does, without casts to fp32.

Measured: what torch allocated at most in the training.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from peft.tuners.tuners_utils import BaseTunerLayer
from published_check_checkpoint import make_checkpoint
from published_check_forks import answer_each
from published_models import ARCHITECTURES

STEPS = 2  # the second is the first with the optimizer's states
QUANTIZATION = transformers.BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_use_double_quant=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_compute_dtype=torch.bfloat16,
)


class RandomRows(torch.utils.data.Dataset):
    """Rows without padding. The first half of each has no labels, as prompts have none."""

    def __init__(self, count: int, tokens: int, vocabulary: int):
        self.ids = torch.randint(0, vocabulary, (count, tokens))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        ids = self.ids[place]
        labels = ids.clone()
        labels[: len(labels) // 2] = -100
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def load(name: str, method: str) -> Any:
    """The model on the device; attention by torch's own flash kernels, for want of the package flash-attn."""
    architecture = ARCHITECTURES[name]
    config = transformers.AutoConfig.for_model(architecture.model_type, **architecture.sizes)
    config.use_cache = False
    auto_class = getattr(transformers, architecture.auto_class)
    if method in ("full", "lora"):
        with torch.device("cuda"):
            return auto_class.from_config(config, torch_dtype=torch.bfloat16, attn_implementation="sdpa")
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        make_checkpoint(Path(folder))
        return auto_class.from_pretrained(
            folder, torch_dtype=torch.bfloat16, attn_implementation="sdpa", quantization_config=QUANTIZATION
        )


def cast_as_trl(model: Any) -> None:
    """The types that SFTTrainer gives the weights of a QLoRA model under bf16."""
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            module.to(torch.bfloat16)  # pyright: ignore[reportAttributeAccessIssue]  (it is a module, too)
        elif "norm" in name:
            module.to(torch.float32)
        elif any(part in name for part in ("lm_head", "embed_tokens", "wte", "wpe")) and hasattr(module, "weight"):
            module.to(torch.bfloat16)


def with_adapter(model: Any, method: str) -> Any:
    """The model with LoRA's matrices, of rank 16."""
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    settings = LoraConfig(r=16, lora_alpha=16, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM")
    if method == "prepared":
        model = prepare_model_for_kbit_training(model)
    else:
        model.enable_input_require_grads()
    model = get_peft_model(model, settings)
    if method == "prepared":
        cast_as_trl(model)
    return model


def measure(name: str, method: str, batch: str, tokens: str) -> dict[str, int]:
    model = load(name, method)
    vocabulary = model.config.vocab_size
    if method != "full":
        model = with_adapter(model, method)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=int(batch),
            max_steps=STEPS,
            gradient_checkpointing=True,
            bf16=True,
            weight_decay=0.01,
            adam_epsilon=1e-4,
            save_strategy="no",
            report_to="none",
        )
        rows = RandomRows(STEPS * int(batch), int(tokens), vocabulary)
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        torch.cuda.reset_peak_memory_stats()
        trainer.train()
    return {"allocated": torch.cuda.max_memory_allocated()}


if __name__ == "__main__":
    answer_each(measure)
