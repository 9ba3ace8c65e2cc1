"""A capture within a budget: the same recording, inside the budget from its first byte."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import reprise
import torch
from conftest import output_of_program
from torch import nn

F = nn.functional

pytestmark = pytest.mark.skipif(
    tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 13),
    reason="online mode needs PyTorch 2.13",
)


@pytest.fixture(autouse=True)
def _counted() -> None:
    reprise.install_cpu_allocator()
    torch.manual_seed(3)


def network(width: int, depth: int = 12) -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Sequential(
                nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(0.1)
            )
            for _ in range(depth)
        )
    )


def step_of(model: nn.Module) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def bits(model: nn.Module, loss: Any) -> list[bytes]:
    tensors = [loss, *(p.grad for p in model.parameters()), *model.buffers()]
    return [t.detach().numpy().tobytes() for t in tensors if t is not None]


def plain_bits(model: nn.Module, step: Callable[[], Any]) -> list[bytes]:
    """Returns the bits of a plain step. Another one may then begin as it has begun."""
    state = {n: t.clone() for n, t in model.state_dict().items()}
    torch.manual_seed(5)
    expected = bits(model, step())
    model.load_state_dict(state)
    model.zero_grad()
    torch.manual_seed(5)
    return expected


def test_a_capture_within_a_budget_is_the_same_and_never_above_it() -> None:
    model, x, y = network(64), torch.randn(2048, 64), torch.randint(64, (2048,))
    step = step_of(model)
    plain = reprise.capture(step, x, y)
    plain.plan()
    peak = plain.planned.baseline.peak_bytes
    ids = [op.id for op in plain.graph.ops]
    del plain
    budget = reprise.live_bytes() + (peak - reprise.live_bytes()) * 2 // 5
    captured = reprise.capture(step, x, y, budget=budget)
    assert [op.id for op in captured.graph.ops] == ids
    captured.plan(time_limit=2)
    assert captured.planned.budget_bytes == budget
    expected = plain_bits(model, lambda: step(x, y))
    assert bits(model, captured(x, y)) == expected
    assert captured.report().measured_peak_bytes <= budget


class Tied(nn.Module):
    """A model that uses one matrix twice, so that autograd sums gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 64)
        self.body = network(64, 6)

    def forward(self, x: Any) -> Any:
        hidden = self.words(x)
        return F.linear(hidden + self.body(hidden), self.words.weight)


def test_sums_of_gradients_agree_with_the_function() -> None:
    model, x, y = Tied(), torch.randint(64, (2048,)), torch.randint(64, (2048,))
    step = step_of(model)
    budget = reprise.live_bytes() + (12 << 20)
    captured = reprise.capture(step, x, y, budget=budget, lockstep="always")
    captured.plan(time_limit=2)
    for _ in range(3):
        state = {n: t.clone() for n, t in model.state_dict().items()}
        model.zero_grad()
        torch.manual_seed(5)
        expected = bits(model, step(x, y))
        model.load_state_dict(state)
        del state
        model.zero_grad()
        torch.manual_seed(5)
        assert bits(model, captured(x, y)) == expected
    assert captured.report().measured_peak_bytes <= budget


@torch.library.custom_op("reprise_capture_within::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def test_a_capture_within_a_budget_has_plain_trainings_graph_without_fake_kernels() -> None:
    model, x, y = Tied(), torch.randint(64, (2048,)), torch.randint(64, (2048,))

    def step(x: Any, y: Any) -> float:
        scores = model(x)
        loss = F.cross_entropy(scores + half(scores.detach()), y)
        loss.backward()
        number = loss.item()
        assert isinstance(number, float)
        return number

    ids = [op.id for op in reprise.capture(step, x, y).graph.ops]
    captured = reprise.capture(step, x, y, budget=reprise.live_bytes() + (12 << 20))
    assert [op.id for op in captured.graph.ops] == ids
    state = {n: t.clone() for n, t in model.state_dict().items()}
    torch.manual_seed(5)
    number = step(x, y)
    expected = bits(model, None)
    model.load_state_dict(state)
    del state
    model.zero_grad()
    torch.manual_seed(5)
    assert captured(x, y) == number
    assert bits(model, None) == expected


def test_a_step_that_computes_with_its_numbers_is_captured_in_online_mode() -> None:
    model, x, y = network(64), torch.randn(2048, 64), torch.randint(64, (2048,))

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        if (loss > 1).item():
            loss = loss * 2
        loss.backward()
        return loss

    budget = reprise.live_bytes() + (14 << 20)
    captured = reprise.capture(step, x, y, budget=budget)
    expected = plain_bits(model, lambda: step(x, y))
    assert bits(model, captured(x, y)) == expected
    assert captured.report().measured_peak_bytes <= budget


def test_bad_budgets_leave_everything_as_it_was() -> None:
    model, x, y = network(64, 3), torch.randn(2048, 64), torch.randint(64, (2048,))
    before = bits(model, torch.zeros(()))
    with pytest.raises(reprise.InputError, match="a capture is a number of bytes"):
        reprise.capture(step_of(model), x, y, budget="60%")
    with pytest.raises(reprise.BudgetError, match="the last operation that began is aten::"):
        reprise.capture(step_of(model), x, y, budget=reprise.live_bytes() + 100_000)
    assert bits(model, torch.zeros(())) == before
    assert all(p.grad is None for p in model.parameters())


PROGRAM = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import reprise, torch
from test_capture_within import bits, network, step_of

reprise.install_cpu_allocator()
torch.set_num_threads(1)

def train(rows, budget):
    torch.manual_seed(7)
    model, x, y = network(128, 24), torch.randn(rows, 128), torch.randint(128, (rows,))
    step = step_of(model)
    if budget:
        step = reprise.capture(step, x, y, budget=reprise.live_bytes() + budget)
        step.plan(time_limit=3)
    found = []
    for _ in range(3):
        model.zero_grad()
        torch.manual_seed(8)
        found.append(bits(model, step(x, y)))
    return found

# A smaller twin fits, and its bits are those of plain training.
assert train(1024, 0) == train(1024, 20 << 20)
with open("/proc/self/status") as lines:
    data = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
most = data + (80 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
try:
    train(8192, 0)  # It takes more than 300 MiB.
except (MemoryError, RuntimeError):
    print("plain training does not fit")
losses = train(8192, 44 << 20)
assert len(losses) == 3
print("captured and trained")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts a process's data")
def test_a_step_that_does_not_fit_the_process_is_captured_and_trains(tmp_path: Any) -> None:
    output = output_of_program(PROGRAM, tmp_path)
    assert output == "plain training does not fit\ncaptured and trained\n"
