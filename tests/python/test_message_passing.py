"""Message passing within a budget: each way to gather and scatter keeps plain training's bits."""

from __future__ import annotations

import copy
import importlib.util
import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from conftest import SOURCE  # noqa: E402
from small_steps import assert_same, gradients  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

NODES, EDGES, WIDTH = 60, 3000, 16

Gather = Callable[[Any, Any], Any]
Scatter = Callable[[Any, Any, Any], Any]


def gathered(x: Any, edges: Any) -> Any:
    return x.gather(0, edges.unsqueeze(1).expand(-1, x.shape[1]))


def scatter_added(x: Any, edges: Any, messages: Any) -> Any:
    at = edges.unsqueeze(1).expand_as(messages)
    return torch.zeros_like(x).scatter_add(0, at, messages)


def scatter_reduced(x: Any, edges: Any, messages: Any) -> Any:
    at = edges.unsqueeze(1).expand_as(messages)
    return torch.zeros_like(x).scatter_reduce(0, at, messages, "amax", include_self=False)


WAYS: dict[str, tuple[Gather, Scatter]] = {
    "index_select and index_add": (
        lambda x, edges: x.index_select(0, edges),
        lambda x, edges, messages: torch.zeros_like(x).index_add(0, edges, messages),
    ),
    "gather and scatter_add": (gathered, scatter_added),
    "indices": (
        lambda x, edges: x[edges],
        lambda x, edges, messages: torch.zeros_like(x).index_put(
            (edges,), messages, accumulate=True
        ),
    ),
    "the largest message": (gathered, scatter_reduced),
}


class Network(nn.Module):
    def __init__(self, gather: Gather, scatter: Scatter) -> None:
        super().__init__()
        self.gather, self.scatter = gather, scatter
        self.rounds = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(6)])

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        for one in self.rounds:
            messages = F.gelu(self.gather(one(x), source) + self.gather(x, target))
            x = x + F.relu(self.scatter(x, target, messages) / EDGES * NODES)
        return x


@pytest.mark.parametrize("way", WAYS)
def test_bits_at_two_fifths_of_the_peak(way: str) -> None:
    reprise.install_cpu_allocator()  # counts the bytes of the plain step, too
    torch.manual_seed(3)
    model = Network(*WAYS[way])
    x, y = torch.randn(NODES, WIDTH), torch.randint(WIDTH, (NODES,))
    source, target = torch.randint(NODES, (EDGES,)), torch.randint(NODES, (EDGES,))

    def step_of(model: Any) -> Callable[..., Any]:
        def step(x: Any, source: Any, target: Any, y: Any) -> Any:
            loss: Any = F.cross_entropy(model(x, source, target), y)
            loss.backward()
            return loss

        return step

    plain = copy.deepcopy(model)
    reprise.reset_peak()
    expected = step_of(plain)(x, source, target, y).detach()
    peak = reprise.peak_bytes()
    step = reprise.capture(step_of(model), x, source, target, y)
    step.plan(budget=peak * 2 // 5, time_limit=2)
    for _ in range(2):  # the second run lies in an arena
        model.zero_grad()
        loss = step(x, source, target, y)
        assert torch.equal(loss, expected)
        assert_same(gradients(model), gradients(plain))
        report = step.report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes <= peak * 2 // 5
        del loss

    other = torch.randint(NODES, (EDGES,))  # another graph of the same size is no other step
    plain.zero_grad()
    model.zero_grad()
    step_of(plain)(x, source, other, y)
    step(x, source, other, y)
    assert_same(gradients(model), gradients(plain))


def test_the_example_finds_the_communities(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example itself compares the bits."""
    place = SOURCE / "examples" / "python" / "message_passing.py"
    spec = importlib.util.spec_from_file_location("message_passing", place)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    options = "--nodes 240 --communities 3 --degree 30 --width 16 --rounds 2 --steps 150"
    monkeypatch.setattr("sys.argv", ["message_passing.py", *options.split(), "--budgets", "70%"])
    example.main()
    plain, planned = capsys.readouterr().out.splitlines()
    shares = [float(re.search(r"\(([\d.]+)\)", line)[1]) for line in (plain, planned)]  # type: ignore[index]
    assert shares[1] < 0.5 * shares[0]
    right = float(re.search(r"([\d.]+) % right", planned)[1])  # type: ignore[index]
    assert right > 80  # chance has 33
