"""A few steps of a run of PEFT's method comparison: `published_check.py` runs this in an environment of its versions.

Arguments of a run: RESULT.json CHECKPOINT LENGTH...

RESULT.json: a published result, which holds the settings of its run. CHECKPOINT: a folder with config.json of the model
that it names; a file of zeros for its weights is put beside it. Each LENGTH is a step whose longest row has so many
tokens, which are random. The training is that of method_comparison/MetaMathQA/run.py in huggingface/peft.

Measured: what torch reserved at most (reserved) and what was allocated after the last step (held), in bytes.
"""

import json
from pathlib import Path
from typing import Any

import torch
from peft import AdaLoraConfig, AdamssConfig, PeftConfig, get_peft_model
from peft.optimizers import create_lorafa_optimizer
from published_check_checkpoint import WEIGHTS, make_checkpoint
from published_check_forks import answer_each
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup, set_seed

LOSS_TOKENS = 768  # of the rows on which a loss is computed before the training


def build(checkpoint: Path, run: dict[str, Any]) -> tuple[Any, PeftConfig | None]:
    """The model, and the settings of its adapter; None for a full fine-tuning."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, device_map="cuda", dtype=torch.bfloat16)
    if run["peft_config"] is None:
        return model, None
    config = PeftConfig.from_peft_type(**run["peft_config"])
    to_fp32 = run["train_config"]["autocast_adapter_dtype"]
    return get_peft_model(model, config, autocast_adapter_dtype=to_fp32), config


def optimizer_of(model: Any, settings: dict[str, Any]) -> torch.optim.Optimizer:
    if settings["optimizer_type"] == "lora-fa":
        return create_lorafa_optimizer(model, **settings["optimizer_kwargs"])
    return getattr(torch.optim, settings["optimizer_type"])(model.parameters(), **settings["optimizer_kwargs"])


def batch_of(model: Any, rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """The first row is the longest; the others are padded, so that attention has a mask, as in the published runs."""
    ids = torch.randint(0, model.config.vocab_size, (rows, tokens))
    mask = torch.ones_like(ids)
    mask[1:, tokens - tokens // 8 :] = 0
    labels = ids.clone()
    labels[mask == 0] = -100
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: values.to("cuda") for name, values in batch.items()}


def compute_loss_before(model: Any, rows: int) -> None:
    """The loss on texts of an encyclopedia, by the model without its adapter."""
    model.eval()
    with torch.inference_mode():
        batch = batch_of(model, rows, LOSS_TOKENS)
        if hasattr(model, "disable_adapter"):
            with model.disable_adapter():
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        else:
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        for row, ids in zip(logits, batch["input_ids"], strict=True):
            torch.nn.functional.cross_entropy(row[:-1], ids[1:], reduction="none")
    model.train()


def measure(result: str, folder: str, *lengths: str) -> dict[str, int]:
    checkpoint = Path(folder)
    if not (checkpoint / WEIGHTS).exists():
        make_checkpoint(checkpoint)
    run = json.loads(Path(result).read_text())["run_info"]
    settings = run["train_config"]
    rows = settings["batch_size"]
    set_seed(settings["seed"])
    torch.nn.Linear(1, 1).to("cuda")  # as the published program begins: what is reserved by then is not counted
    before = torch.cuda.max_memory_reserved()

    model, config = build(checkpoint, run)
    optimizer = optimizer_of(model, settings)
    scheduler = get_cosine_schedule_with_warmup(optimizer, settings["max_steps"] // 10, settings["max_steps"])
    compute_loss_before(model, rows)
    held = 0
    for step, length in enumerate(lengths, start=1):
        batch = batch_of(model, rows, int(length))
        tokens = batch["attention_mask"].sum().item()
        optimizer.zero_grad()
        outputs = model(**batch, num_items_in_batch=tokens)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["grad_norm_clip"])
        optimizer.step()
        scheduler.step()
        if isinstance(config, (AdaLoraConfig, AdamssConfig)):
            model.base_model.update_and_allocate(step)
        loss.item()
        held = torch.cuda.memory_allocated() - before
        torch.cuda.empty_cache()  # after ten steps in the published runs, before the longest batch of the next ten
    return {"reserved": torch.cuda.max_memory_reserved() - before, "held": held}


if __name__ == "__main__":
    answer_each(measure)
