"""A Siamese network within budgets: one tower runs on both images of a pair.

A contrastive loss (Hadsell, Chopra, LeCun 2006) brings pairs of one class together. The script
trains the network plainly and within budgets on generated images, and prints the peak memory, the
time of a step, the loss, and whether all parameters have the same bits afterwards.
"""

import argparse
import itertools
import time

import reprise
import torch
from torch import nn
from torch.nn import functional as F


def make_tower():
    torch.manual_seed(1)
    blocks = itertools.chain.from_iterable(
        (
            *(nn.Conv2d(first, last, 3, padding=1), nn.BatchNorm2d(last), nn.ReLU()),
            *(nn.Conv2d(last, last, 3, padding=1), nn.BatchNorm2d(last), nn.ReLU()),
            nn.MaxPool2d(2),
        )
        for first, last in [(3, 16), (16, 32), (32, 32)]
    )
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 4 * 4, 32))


def make_pairs(count, classes=4):
    """Returns two batches of images, each a pattern and noise, and 1 for each pair of one class."""
    patterns = torch.randn(classes, 3, 32, 32)
    a, b = torch.randint(classes, (count,)), torch.randint(classes, (count,))
    left, right = (patterns[c] + 0.5 * torch.randn(count, 3, 32, 32) for c in (a, b))
    return left, right, (a == b).float()


def contrast(outputs, same):
    apart = F.pairwise_distance(*outputs)
    return (same * apart**2 + (1 - same) * (2 - apart).clamp_min(0) ** 2).mean()


def train(tower, model, pairs, steps):
    """Returns the parameters, the last loss, the peak of the last step, and seconds a step."""
    left, right, same = pairs
    optimizer = torch.optim.SGD(tower.parameters(), lr=0.02)
    seconds = []
    for _ in range(steps):
        optimizer.zero_grad()
        reprise.reset_peak()
        begin = time.perf_counter()
        loss = contrast(model(left, right), same)
        loss.backward()
        seconds.append(time.perf_counter() - begin)
        peak, last = reprise.peak_bytes(), loss.item()
        del loss  # It would be live during the next step's forward, and not during its backward.
        optimizer.step()
    return [p.detach() for p in tower.parameters()], last, peak, min(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    reprise.install_cpu_allocator()
    torch.manual_seed(0)
    pairs = make_pairs(options.pairs)
    plain = None
    for budget in (None, "90%", "70%", "50%"):
        tower = make_tower()
        if budget is None:
            planned = None
            found = train(tower, lambda a, b, t=tower: (t(a), t(b)), pairs, options.steps)
            plain = found
        else:
            planned = reprise.remat_join(
                {"left": tower, "right": tower},
                pairs[:2],
                module=tower,
                loss=lambda outputs: contrast(outputs, pairs[2]),
                budget=budget,
                output_held=False,
            )
            found = train(tower, planned, pairs, options.steps)
        parameters, loss, peak, seconds = found
        same = loss == plain[1] and all(map(torch.equal, parameters, plain[0]))
        way = f"at {budget}" if budget else "plain"
        text = f"{way:8} {peak / 2**20:8.2f} MiB {seconds * 1e3:8.2f} ms   loss {loss:.4f}"
        if planned is not None:
            report = planned.report()
            foretold = report.predicted_peak_bytes == report.measured_peak_bytes
            text += f", {'same' if same else 'other'} bits"
            text += f", {'peak as predicted' if foretold else 'another peak than predicted'}"
            same = same and foretold and report.measured_peak_bytes <= report.budget_bytes
        print(text)
        if not same:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
