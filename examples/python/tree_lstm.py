"""A TreeLSTM learns to compute expressions: a network of another shape at each step, in one budget.

Each step draws an expression, such as max(a, min(b, c)), and a batch of digits for its letters. The
network follows the expression by recursion. Its answer is compared with the right one.

Usage: python tree_lstm.py [--budget-percent 50] [--steps 200] [--width 64] [--batch 256]
"""

from __future__ import annotations

import argparse
import dataclasses
import random

import reprise
import torch
from torch import nn

DIGITS = 5
OPERATORS = (torch.maximum, torch.minimum)


@dataclasses.dataclass
class Node:
    """An operator with two operands. A leaf is a tensor with a digit for each row of the batch."""

    operator: int
    left: Node | torch.Tensor
    right: Node | torch.Tensor


def draw(chance: random.Random, leaves: int, batch: int) -> Node | torch.Tensor:
    """Returns a random expression with so many leaves."""
    if leaves == 1:
        return torch.randint(DIGITS, (batch,))
    first = chance.randrange(1, leaves)
    return Node(
        chance.randrange(len(OPERATORS)),
        draw(chance, first, batch),
        draw(chance, leaves - first, batch),
    )


def answer(tree: Node | torch.Tensor) -> torch.Tensor:
    """Returns what the expression is, for each row of the batch."""
    if isinstance(tree, torch.Tensor):
        return tree
    return OPERATORS[tree.operator](answer(tree.left), answer(tree.right))


class TreeLstm(nn.Module):
    """A binary TreeLSTM (Tai, Socher and Manning 2015) whose operators have biases of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.digits = nn.Embedding(DIGITS, 2 * width)
        self.operators = nn.Parameter(torch.zeros(len(OPERATORS), 5 * width))
        self.gates = nn.Linear(2 * width, 5 * width)
        self.head = nn.Linear(width, DIGITS)

    def follow(self, tree: Node | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the hidden state and the cell of an expression."""
        if isinstance(tree, torch.Tensor):
            hidden, cell = self.digits(tree).chunk(2, 1)
            return hidden, cell
        (left, left_cell), (right, right_cell) = self.follow(tree.left), self.follow(tree.right)
        gates = self.gates(torch.cat([left, right], 1)) + self.operators[tree.operator]
        enter, keep_left, keep_right, leave, new = gates.chunk(5, 1)
        cell = enter.sigmoid() * new.tanh()
        cell = cell + keep_left.sigmoid() * left_cell + keep_right.sigmoid() * right_cell
        return leave.sigmoid() * cell.tanh(), cell

    def forward(self, tree: Node | torch.Tensor) -> torch.Tensor:
        return self.head(self.follow(tree)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-percent", type=int, default=50)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--leaves", type=int, default=8, help="at most; at least 2")
    options = parser.parse_args()

    reprise.install_cpu_allocator()
    torch.manual_seed(0)
    chance = random.Random(0)
    model = TreeLstm(options.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def next_tree(leaves: int = 0) -> Node | torch.Tensor:
        return draw(chance, leaves or chance.randrange(2, options.leaves + 1), options.batch)

    def step(tree: Node | torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tree), answer(tree))
        loss.backward()
        optimizer.step()
        return loss.detach()

    # Plain training's peak, with a largest expression.
    step(next_tree(options.leaves))
    reprise.reset_peak()
    step(next_tree(options.leaves))
    budget = reprise.peak_bytes() * options.budget_percent // 100
    print(f"plain training: {reprise.peak_bytes()} B; the budget: {budget} B")

    online = reprise.online(budget=budget)
    evictions = 0
    for number in range(1, options.steps + 1):
        tree = next_tree()
        with online:
            loss = step(tree)
        evictions += online.report().evictions
        if number % 50 == 0:
            print(f"step {number}: loss {loss.item():.3f}, {evictions} evictions so far")

    right = total = 0
    with torch.no_grad():
        for _ in range(50):
            tree = next_tree()
            right += int((model(tree).argmax(1) == answer(tree)).sum())
            total += options.batch
    print(f"right answers on new expressions: {100 * right / total:.1f} %")


if __name__ == "__main__":
    main()
