"""A fine-tuning with peft and transformers' Trainer, as their documentation has it: for scripts/evidence/frameworks.py.

python framework_trainer.py --method full|LoRA|QLoRA --model FOLDER [TrainingArguments ...]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

TOKENS = 512


@dataclass
class Options:
    method: str
    model: str


def main() -> None:
    # The types of both dataclasses are those of their fields.
    options, arguments = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses()  # type: ignore
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    quantization = None
    if options.method == "QLoRA":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    model = AutoModelForCausalLM.from_pretrained(options.model, quantization_config=quantization)
    if quantization is not None:
        model = prepare_model_for_kbit_training(model)
    if options.method != "full":
        model = get_peft_model(
            model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    rows = load_dataset("longer", split="train")
    rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=TOKENS), remove_columns=["text"])
    Trainer(model, arguments, DataCollatorForLanguageModeling(tokenizer, mlm=False), rows).train()


if __name__ == "__main__":
    main()
