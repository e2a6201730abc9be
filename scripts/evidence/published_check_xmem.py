"""Four iterations of one of xMem's runs: `published_check.py` runs this in an environment of the published versions.

Arguments of a run: MODEL BATCH TOKENS OPTIMIZER ZERO_GRAD_MODE.

Measured: what torch reserved at most. docs/reference/README.md describes the training loop.
"""

from typing import Any

import torch
import transformers
from published_check_forks import answer_each
from published_models import ARCHITECTURES, SDPA_4_51

ITERATIONS = 4
BEFORE_FORWARD, BEFORE_BACKWARD, AFTER_STEP = 0, 1, 2  # when gradients are dropped


def build(name: str) -> Any:
    """The model with random weights in fp32, made on the CPU and moved, as one that was loaded."""
    architecture = ARCHITECTURES[name]
    config = transformers.AutoConfig.for_model(architecture.model_type, **architecture.sizes)
    attention = architecture.attention
    if attention == SDPA_4_51:
        attention = "sdpa"
    model = getattr(transformers, architecture.auto_class).from_config(config, attn_implementation=attention)
    return model.to("cuda").train()


def measure(name: str, batch: str, tokens: str, optimizer_name: str, mode: str) -> dict[str, int]:
    zeroed = int(mode)
    model = build(name)
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
    for _ in range(ITERATIONS):
        ids = torch.randint(0, 1000, (int(batch), int(tokens))).to("cuda")
        mask = torch.ones(int(batch), int(tokens), dtype=torch.long).to("cuda")
        labels = ids.cpu().clone().to("cuda")
        if zeroed == BEFORE_FORWARD:
            optimizer.zero_grad()
        outputs = model(input_ids=ids, attention_mask=mask, labels=labels)
        if zeroed == BEFORE_BACKWARD:
            optimizer.zero_grad()
        outputs.loss.backward()
        optimizer.step()
        if zeroed == AFTER_STEP:
            optimizer.zero_grad()
    return {"reserved": torch.cuda.max_memory_reserved()}


if __name__ == "__main__":
    answer_each(measure)
