"""A training run that is saved, and goes on as if it had not been interrupted. Run it twice.

Usage: python saved_state.py [STATE] [--steps 5]
"""

import argparse
import os

import reprise
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", nargs="?", default="state.safetensors")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    x, y = torch.randn(128, 64), torch.randint(0, 10, (128,))

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    step = reprise.capture(train, x, y)
    step.plan(budget="90%")
    first = 0
    if os.path.exists(options.state):
        done = reprise.load_state(
            options.state, model=model, optimizer=optimizer, others={"schedule": schedule}
        )
        first = done.step
        print(f"goes on after step {first}")
    for number in range(first + 1, first + options.steps + 1):
        optimizer.zero_grad()
        loss = step(x, y)
        optimizer.step()
        schedule.step()
        print(f"step {number}: loss {loss.item():.4f}")
    reprise.save_state(
        options.state,
        model=model,
        optimizer=optimizer,
        others={"schedule": schedule},
        step=first + options.steps,
        plan=step,
    )
    print(f"saved {options.state}")


if __name__ == "__main__":
    main()
