"""Advice to PyTorch's own partitioner: the predicted peak, the same bits, exact knapsacks."""

from __future__ import annotations

import copy
import itertools
import os
import random
from typing import Any

import pytest
import reprise
import torch
from test_compile import MODELS, WithLoss, bytes_of, perceptron, refused, train
from torch import nn
from torch._functorch import config as functorch
from torch._inductor.custom_graph_pass import CustomKnapsackSolver


class Attention(nn.Module):
    """One attention, whose inputs are views of one storage: PyTorch would save the views."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(3)])
        self.layers = nn.ModuleList([nn.Linear(32, 96) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            parts = layer(norm(x)).view(4, 32, 3, 2, 16).unbind(2)
            q, k, v = (part.transpose(1, 2) for part in parts)
            seen = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + seen.transpose(1, 2).reshape(4, 32, 32)
        return x


def attention() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Attention(), (torch.randn(4, 32, 32),)


NETWORKS = {**MODELS, "attention": attention}


def advised(
    name: str, budget: str | int | None, **options: Any
) -> tuple[list[Any], list[Any], int, int, reprise.AdvisedGraph]:
    """Returns what plain and advised training leave, the bytes of both steps, and the advice."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    plain = WithLoss(copy.deepcopy(model))
    expected, _ = train(plain, plain, inputs)
    planned = WithLoss(model)
    step = torch.compile(planned, backend="aot_eager")
    seen: list[reprise.AdvisedGraph] = []
    options = {"time_limit": 1.0, "threads": 1, "observer": seen.append, **options}
    with reprise.compile_advice(budget=budget, **options):
        found, peak = train(step, planned, inputs)
    (graph,) = seen
    return expected, found, peak, graph.plan.peak_bytes - bytes_of(planned, inputs), graph


@pytest.mark.parametrize("name", NETWORKS)
def test_bits_are_plain_training_s_and_the_peak_is_predicted(name: str) -> None:
    reprise.install_cpu_allocator()
    expected, found, peak, predicted, graph = advised(name, "70%")
    assert all(map(torch.equal, found, expected))
    # Empty tensors and numbers that PyTorch keeps beside the graph are all that may differ.
    assert abs(peak - predicted) <= 512
    assert reprise.verify(graph.problem, graph.plan) == []
    assert graph.plan.peak_bytes <= graph.plan.budget_bytes < graph.plan.baseline.peak_bytes
    assert graph.again
    assert not set(graph.again) & set(graph.saved)
    drawn = {op.id for op in graph.problem.ops if op.random}
    assert len(drawn) == (6 if name == "gpt" else 0)
    assert not drawn & set(graph.again)


def test_nothing_runs_again_where_no_budget_asks_for_it() -> None:
    reprise.install_cpu_allocator()
    _, _, peak, predicted, graph = advised("gpt", None)
    assert abs(peak - predicted) <= 512
    assert graph.again == ()
    runs = [action.id for action in graph.plan.actions if action.kind == "run"]
    assert sorted(runs) == sorted(op.id for op in graph.problem.ops)


@pytest.mark.skipif(
    not os.environ.get("REPRISE_TEST_FULL"), reason="compiles C++; REPRISE_TEST_FULL=1 runs it"
)
def test_inductor_follows_the_advice() -> None:
    torch._dynamo.reset()
    model, inputs = perceptron()
    expected = WithLoss(copy.deepcopy(model))
    expected(*inputs).backward()
    planned = WithLoss(model)
    seen: list[reprise.AdvisedGraph] = []
    with reprise.compile_advice(budget="70%", observer=seen.append, time_limit=2.0):
        torch.compile(planned)(*inputs).backward()
    assert len(seen) == 1 and seen[0].again
    for one, other in zip(planned.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


def test_a_pass_of_the_user_s_runs_first_and_the_knob_is_not_looked_at() -> None:
    torch._dynamo.reset()
    seen: list[Any] = []
    model, inputs = perceptron()

    def own(module: Any, _: Any) -> Any:
        seen.append(module)
        return module

    planned = WithLoss(model)
    step = torch.compile(planned, backend="aot_eager")
    with (
        functorch.patch(joint_custom_pass=own, activation_memory_budget=0.0),
        reprise.compile_advice(budget="70%", observer=seen.append, time_limit=1.0),
    ):
        reprise.install_cpu_allocator()
        _, peak = train(step, planned, inputs)
    module, graph = seen
    assert isinstance(module, torch.fx.GraphModule)
    assert abs(peak - (graph.plan.peak_bytes - bytes_of(planned, inputs))) <= 512


def test_outside_of_the_context_pytorch_decides() -> None:
    torch._dynamo.reset()
    seen: list[reprise.AdvisedGraph] = []
    model, inputs = perceptron()
    step = torch.compile(WithLoss(model), backend="aot_eager")
    with reprise.compile_advice(budget="70%", observer=seen.append):
        pass
    step(*inputs).backward()
    assert seen == []
    assert functorch.joint_custom_pass is None


def test_a_budget_that_is_too_small_is_refused_with_a_peak_that_was_found() -> None:
    torch._dynamo.reset()
    model, inputs = perceptron()
    step = torch.compile(WithLoss(model), backend="aot_eager")
    with reprise.compile_advice(budget=1000, time_limit=1.0, threads=1):
        error = refused(lambda: step(*inputs))
    assert isinstance(error, reprise.BudgetError)
    assert error.budget == 1000
    assert f"the smallest budget is {reprise.format_bytes(error.requested)}" in str(error)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"times": "guessed"}, "'measured' or 'estimated', not 'guessed'"),
        ({"budget": 0.5}, 'write "50%"'),
        ({"fixed_bytes": -1}, '"fixed_bytes" is a number of bytes'),
        ({"time_limit": "soon"}, "soon"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], text: str) -> None:
    with pytest.raises(reprise.InputError, match=text), reprise.compile_advice(**options):
        pass


def test_the_knapsack_is_exact() -> None:
    from reprise._compile.knapsack import best_subset

    numbers = random.Random(7)
    for _ in range(300):
        count = numbers.randint(0, 9)
        weights = [numbers.choice([0, 1, 2, 3, 5, 8, 13]) for _ in range(count)]
        values = [numbers.randint(0, 6) for _ in range(count)]
        capacity = numbers.randint(0, 40)
        found = best_subset(weights, values, capacity)
        assert len(set(found)) == len(found)
        assert sum(weights[at] for at in found) <= capacity
        best = max(
            sum(values[at] for at in chosen)
            for size in range(count + 1)
            for chosen in itertools.combinations(range(count), size)
            if sum(weights[at] for at in chosen) <= capacity
        )
        assert sum(values[at] for at in found) == best, (weights, values, capacity)


def test_a_knapsack_with_more_states_than_it_keeps_still_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from reprise._compile import knapsack as _knapsack

    monkeypatch.setattr(_knapsack, "_STATES", 4)
    numbers = random.Random(3)
    weights = [numbers.randint(1, 1000) for _ in range(30)]
    values = [weight + numbers.randint(0, 50) for weight in weights]
    found = _knapsack.best_subset(weights, values, 5000)
    assert sum(weights[at] for at in found) <= 5000
    assert sum(values[at] for at in found) > 4500


class Counting(CustomKnapsackSolver):
    """Notes the shares that the solver keeps, and the limits that it was given."""

    def __init__(self) -> None:
        self.solver = reprise.knapsack()
        self.asked: list[tuple[float, float]] = []

    def __call__(
        self, memory: list[float], graph: Any, limit: float, info: Any, nodes: list[Any]
    ) -> tuple[list[int], list[int]]:
        kept, again = self.solver(memory, graph, limit, info, nodes)
        assert sorted([*kept, *again]) == list(range(len(memory)))
        self.asked.append((sum(memory[at] for at in kept), limit))
        return kept, again

    def uuid(self) -> None:
        return None


def test_pytorch_s_knob_takes_the_solver() -> None:
    saved = {}
    for share in (0.5, 0.2):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, inputs = MODELS["gpt"]()
        plain = WithLoss(copy.deepcopy(model))
        expected, _ = train(plain, plain, inputs)
        planned = WithLoss(model)
        solver = Counting()
        with functorch.patch(
            activation_memory_budget=share, activation_memory_budget_solver=solver
        ):
            found, _ = train(torch.compile(planned, backend="aot_eager"), planned, inputs)
        assert all(map(torch.equal, found, expected))
        assert solver.asked and all(kept <= limit + 1e-9 for kept, limit in solver.asked)
        saved[share] = solver.asked[0][0]
    assert saved[0.2] < saved[0.5]
