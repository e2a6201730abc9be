"""A plain PyTorch loop: an image classifier without any library beside torch. Would it fit, and with which batch?

python examples/plain_loop.py
"""

import torch
from torch import nn

from legroom import StepEstimate, estimate_step


class Block(nn.Module):
    """Two convolutions with a shortcut, as in a ResNet."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, width, H, W)."""
        return torch.relu(x + self.layers(x))


def classifier(width: int, blocks: int, classes: int = 1000) -> nn.Module:
    """A small convolutional network for images of any size."""
    return nn.Sequential(
        nn.Conv2d(3, width, 7, stride=2, padding=3),
        nn.MaxPool2d(3, 2),
        *(Block(width) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple) -> torch.Tensor:
    """The body of the training loop."""
    images, labels = batch
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def main(width: int = 256, blocks: int = 8, side: int = 224, batches: tuple = (16, 64, 256)) -> list[StepEstimate]:
    """Estimate the step for several batch sizes on one GPU."""
    found = []
    for size in batches:

        def make(size: int = size) -> tuple:
            model = classifier(width, blocks)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return model, optimizer, (torch.empty(size, 3, side, side), torch.empty(size, dtype=torch.long))

        found.append(estimate_step(step, make=make, gpu="rtx3060_12gb"))
        print(f"batch {size}: {found[-1]}\n")
    return found


if __name__ == "__main__":
    main()
