"""Evaluation after training, one piece of code for both recipes: loss, and accuracy or perplexity."""

from __future__ import annotations

import math
import time

from recipes.records.record import Evaluation
from recipes.training.step import labels_in


def evaluate(cfg, args, loop, rows) -> Evaluation:
    """Mean loss over the evaluation split; accuracy for classification, perplexity for language modelling.

    With `eval.precision` the whole model is cast for the evaluation and back after it, so the weights
    come back rounded: save before.
    """
    import torch

    from recipes.data import data_loader
    from recipes.ranks import collectives

    accelerator = loop.accelerator
    model = accelerator.unwrap_model(loop.model, keep_fp32_wrapper=True, keep_torch_compile=False)
    trained_dtype = model.dtype
    call = loop.model if cfg.parallelism.name == "zero" else model  # DeepSpeed's engine holds the autocast
    if cfg.eval.precision:
        model.to({"fp16": torch.float16, "bf16": torch.bfloat16}[cfg.eval.precision])
        call = getattr(model, "_original_forward", model)  # without the autocast that training put around it
    loader = data_loader.batch_loader(rows, rows.eval, args, cfg.eval.batch, shuffle=False)
    start = time.perf_counter()
    loss_sum = torch.zeros((), dtype=torch.float64, device=accelerator.device)
    count = correct = samples = 0
    model.eval()
    try:
        with torch.no_grad():
            for batch in loader:
                output = call(**batch)
                if batch.rows == 0:  # FSDP needs every rank in every forward pass, also where no rows are left
                    continue
                labels = labels_in(batch["labels"])
                loss_sum = loss_sum + output.loss.double() * labels
                count = count + labels
                samples += batch.rows
                if rows.task == "classification":
                    correct = correct + (output.logits.argmax(-1) == batch["labels"]).sum()
    finally:
        model.train()
        if cfg.eval.precision:
            model.to(trained_dtype)
    if collectives.is_distributed():
        loss_sum, count, correct, samples = collectives.all_reduce_sum(
            [loss_sum, count, correct, samples], accelerator.device
        )
    loss, samples = float(loss_sum / count), int(samples)
    result = Evaluation(samples=samples, loss=loss, seconds=time.perf_counter() - start)
    if rows.task == "classification":
        result.accuracy = int(correct) / samples
    else:
        result.perplexity = math.exp(loss) if loss < 700 else math.inf  # exp overflows past 709
    return result
