"""A vision transformer from transformers, fine-tuned: which GPU holds a batch of 64?

python examples/vision_transformer.py
"""

import torch
from transformers import ViTConfig, ViTForImageClassification

from legroom import StepEstimate, estimate_step


def step(model: ViTForImageClassification, optimizer: torch.optim.Optimizer, batch: dict) -> torch.Tensor:
    """The body of the training loop; it logs its loss, which reads a number from the GPU."""
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.4f}", end="\r")
    return loss.detach()


def main(size: int = 64, **sizes: int) -> dict[str, StepEstimate]:
    """Estimate the step on several GPUs. sizes: of ViTConfig, in place of ViT-B/16's."""
    config = ViTConfig(num_labels=1000, **sizes)

    def make() -> tuple:
        model = ViTForImageClassification(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        images = torch.empty(size, config.num_channels, config.image_size, config.image_size)
        return model, optimizer, {"pixel_values": images, "labels": torch.zeros(size, dtype=torch.long)}

    found = {gpu: estimate_step(step, make=make, gpu=gpu) for gpu in ("rtx4060_8gb", "l4_24gb", "h100_80gb")}
    for estimate in found.values():
        print(f"{estimate}\n")
    return found


if __name__ == "__main__":
    main()
