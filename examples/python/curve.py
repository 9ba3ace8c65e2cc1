"""The time/memory curve of a model, as a picture: curve.svg.

Usage: python curve.py [curve.svg]
"""

import sys

import reprise
import torch
from torch import nn


def main() -> None:
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(10)]
    curve = reprise.frontier(nn.Sequential(*blocks), torch.randn(2048, 512), time_limit=10)
    for point in curve.points[:: max(1, len(curve.points) // 8)]:
        budget = reprise.format_bytes(point.budget_bytes)
        print(f"{budget:>12}  {reprise.format_duration(point.time_ns)}")
    curve.svg(marks=("60%",)).save(sys.argv[1] if len(sys.argv) > 1 else "curve.svg")


if __name__ == "__main__":
    main()
