"""A module that has its own `training_step` and `configure_optimizers`, as Lightning's: a GAN with two optimizers.

python examples/lightning_like.py
"""

import torch
from torch import nn

from legroom import StepEstimate, estimate_step


class Gan(nn.Module):
    """What a LightningModule with `automatic_optimization = False` looks like."""

    def __init__(self, width: int, pixels: int):
        super().__init__()
        self.width = width
        self.generator = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, pixels), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(pixels, 4 * width), nn.GELU(), nn.Linear(4 * width, 1))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimizer for each of the two."""
        return [torch.optim.Adam(part.parameters(), lr=2e-4) for part in (self.generator, self.critic)]

    def training_step(self, real: torch.Tensor, optimizers: list[torch.optim.Optimizer]) -> None:
        """One step of each. real: (B, pixels)."""
        of_generator, of_critic = optimizers
        fake = self.generator(torch.randn(len(real), self.width, device=real.device))
        loss = (
            nn.functional.softplus(self.critic(fake.detach())).mean()
            + nn.functional.softplus(-self.critic(real)).mean()
        )
        loss.backward()
        of_critic.step()
        of_critic.zero_grad()
        nn.functional.softplus(-self.critic(fake)).mean().backward()
        of_generator.step()
        for optimizer in optimizers:
            optimizer.zero_grad()


def step(model: Gan, optimizers: list, real: torch.Tensor) -> None:
    """What Lightning's Trainer calls for each batch."""
    model.training_step(real, optimizers)


def main(width: int = 512, pixels: int = 3 * 128 * 128, batch: int = 256) -> StepEstimate:
    """Estimate the step of both networks together; modules that exist are copied without their data."""
    model = Gan(width, pixels)
    found = estimate_step(step, model, model.configure_optimizers(), torch.zeros(batch, pixels), gpu="gtx1080ti_11gb")
    print(found)
    return found


if __name__ == "__main__":
    main()
