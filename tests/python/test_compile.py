"""The backend of torch.compile: the same bits as plain training, and the peak of the plan."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import reprise
import torch
from conftest import SOURCE
from models import GptBlock, GptConfig
from torch import nn
from torch.utils.checkpoint import checkpoint


class WithLoss(nn.Module):
    """A model with a loss, so that nothing happens between its forward and its backward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return (self.model(*inputs) ** 2).mean()


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = GptConfig(width=32, layers=3, positions=32)
        self.embedding = nn.Embedding(97, 32)
        self.blocks = nn.ModuleList([GptBlock(config) for _ in range(3)])
        self.head = nn.Linear(32, 97)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Written(nn.Module):
    """Layers with split, chunked views, written-out activations and a checkpoint of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 128) for _ in range(4)])

    def layer(self, x: torch.Tensor, linear: nn.Module) -> torch.Tensor:
        gate, value = linear(x).chunk(2, dim=-1)
        return x + value * torch.sigmoid(gate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, linear in enumerate(self.layers):
            if index == 2:
                x = checkpoint(self.layer, x, linear, use_reentrant=False)
            else:
                x = self.layer(x, linear)
        return x


def convolutions() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers: list[nn.Module] = []
    for inputs in (3, 16, 16, 16):
        layers += [nn.Conv2d(inputs, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 64, 10)), (torch.randn(32, 3, 8, 8),)


def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = [part for _ in range(8) for part in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(*layers), (torch.randn(1024, 64),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "convolutions": convolutions,
    "perceptron": perceptron,
    "gpt": lambda: (Gpt(), (torch.randint(0, 97, (4, 32)),)),
    "written": lambda: (Written(), (torch.randn(128, 64),)),
}


def train(step: Any, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[list[Any], int]:
    """Returns all that three steps leave behind, and the bytes of the last one above its begin."""
    torch.manual_seed(1)
    left: list[Any] = []
    peak = 0
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        before = reprise.live_bytes()
        reprise.reset_peak()
        loss = step(*inputs)
        loss.backward()
        peak = reprise.peak_bytes() - before
        left.append(loss.detach().clone())
        left += [one.grad.clone() for one in model.parameters() if one.grad is not None]
        left += [one.clone() for one in model.buffers()]
        del loss
    return [*left, torch.get_rng_state()], peak


def compiled(model: nn.Module, **options: Any) -> tuple[Any, list[reprise.CompiledGraph]]:
    torch._dynamo.reset()
    seen: list[reprise.CompiledGraph] = []
    options = {"time_limit": 1.0, "threads": 1, "observer": seen.append, **options}
    return torch.compile(model, backend=reprise.backend, options=options), seen


def bytes_of(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    held = [*model.parameters(), *model.buffers(), *inputs]
    return sum(-(-one.numel() * one.element_size() // 64) * 64 for one in held)


@pytest.mark.parametrize("budget", ["100%", "75%", "62%"])
@pytest.mark.parametrize("name", MODELS)
def test_bits_are_those_of_plain_training_and_the_peak_is_the_plan_s(
    name: str, budget: str
) -> None:
    reprise.install_cpu_allocator()
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    plain = WithLoss(copy.deepcopy(model))
    expected, plain_peak = train(plain, plain, inputs)
    planned = WithLoss(model)
    step, seen = compiled(planned, budget=budget)
    found, peak = train(step, planned, inputs)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    (graph,) = seen
    plan = graph.result.plan
    assert plan is not None
    assert reprise.verify(graph.problem, plan) == []
    # Empty tensors and numbers that PyTorch keeps beside the graph are all that may differ.
    assert abs(peak - (plan.peak_bytes - bytes_of(planned, inputs))) <= 512
    if budget != "100%":
        assert peak < plain_peak


def test_ops_run_again_where_the_plan_says_so() -> None:
    model, inputs = perceptron()
    step, seen = compiled(WithLoss(model), budget="52%")
    step(*inputs).backward()
    plan = seen[0].result.plan
    assert plan is not None
    runs = [action.id for action in plan.actions if action.kind == "run"]
    assert max(runs.count(one) for one in runs) >= 2


def test_times_can_be_estimated() -> None:
    model, inputs = convolutions()
    step, seen = compiled(WithLoss(model), budget="70%", times="estimated")
    step(*inputs).backward()
    assert all(
        variant.ns > 0
        for op in seen[0].problem.ops
        for variant in op.variants[:1]
        if op.id != "caller"
    )


def test_inductor_compiles_the_halves_within_the_budget() -> None:
    reprise.install_cpu_allocator()
    model, inputs = perceptron()
    expected = WithLoss(copy.deepcopy(model))
    expected(*inputs).backward()
    planned = WithLoss(model)
    step, seen = compiled(planned, budget="70%", compiler="inductor", margin="measured")
    _, peak = train(step, planned, inputs)
    (graph,) = seen
    assert graph.measured_peak_bytes is not None
    budget = budget_of(graph, "70%")
    assert graph.measured_peak_bytes <= budget
    assert abs(peak - (graph.measured_peak_bytes - bytes_of(planned, inputs))) <= 512
    planned.zero_grad(set_to_none=True)
    step(*inputs).backward()
    for one, other in zip(planned.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


def budget_of(graph: reprise.CompiledGraph, share: str) -> int:
    answer = reprise.plan(graph.problem, budget=share, time_limit=1.0, threads=1)
    assert answer.budget_bytes is not None
    return answer.budget_bytes


def test_a_measured_peak_is_that_of_the_step() -> None:
    reprise.install_cpu_allocator()
    model, inputs = MODELS["gpt"]()
    planned = WithLoss(model)
    state = torch.get_rng_state()
    step, seen = compiled(planned, budget="75%", margin="measured")
    with torch.random.fork_rng():
        step(*inputs).backward()
    assert torch.equal(torch.get_rng_state(), state)
    _, peak = train(step, planned, inputs)
    measured = seen[0].measured_peak_bytes
    assert measured is not None
    assert abs(peak - (measured - bytes_of(planned, inputs))) <= 512


@pytest.mark.parametrize(
    ("shares_above", "asked"),
    [
        ([0.1, 0.0], [0, 0.1]),  # The margin is what the first plan took more.
        ([0.1, 0.05, -0.01], [0, 0.1, 0.15]),
        ([-0.1, 0.01], [0, -0.1]),  # What is free goes to the next plan. The first one fits.
        ([-0.01], [0]),  # So little is not worth another compilation.
        ([0.1, 0.05, 0.05, 0.05], [0, 0.1, 0.15, 0.2]),  # Nothing fits.
    ],
)
def test_a_margin_is_what_plans_took_more_than_the_budget(
    monkeypatch: pytest.MonkeyPatch, shares_above: list[float], asked: list[float]
) -> None:
    from reprise._compile import backend

    budget = 2_000_000
    given: list[int] = []
    peaks = iter([budget + int(share * budget) for share in shares_above])
    monkeypatch.setattr(backend, "measured_peak", lambda *_: next(peaks))

    def plan(problem: Any, *, budget: int, **options: Any) -> reprise.PlanResult:
        given.append(budget)
        return reprise.plan(problem, budget=budget, **options)

    monkeypatch.setattr(backend, "plan", plan)
    model, inputs = perceptron()
    planned = WithLoss(model)
    step, seen = compiled(planned, budget=budget, margin="measured")
    if min(shares_above) > 0:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
            step(*inputs)
        error = caught.value.inner_exception
        assert isinstance(error, reprise.BudgetError)
        assert "plans with growing margins did not fit" in str(error)
        assert error.requested == budget + int(0.05 * budget)
    else:
        step(*inputs).backward()
        assert seen[0].measured_peak_bytes == budget + int(
            max(share for share in shares_above if share <= 0) * budget
        )
    assert given == [budget - int(share * budget) for share in asked]


@pytest.mark.parametrize("above", [-1, 1])
def test_a_measured_peak_decides_where_no_plan_fits(
    monkeypatch: pytest.MonkeyPatch, above: int
) -> None:
    from reprise._compile import backend

    model, inputs = perceptron()
    step, _ = compiled(WithLoss(model), budget=1)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        step(*inputs)
    refused = caught.value.inner_exception
    assert isinstance(refused, reprise.BudgetError)
    budget = refused.requested - 10_000
    monkeypatch.setattr(backend, "measured_peak", lambda *_: budget + above)
    step, seen = compiled(WithLoss(model), budget=budget, margin="measured")
    if above < 0:
        step(*inputs).backward()
        assert seen[0].result.budget_bytes == refused.requested
        assert seen[0].measured_peak_bytes == budget + above
        return
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        step(*inputs)
    error = caught.value.inner_exception
    assert isinstance(error, reprise.BudgetError)
    assert "no plan is predicted to take less" in str(error)
    assert error.requested == budget + above


def test_a_margin_of_bytes_is_left_free() -> None:
    model, inputs = perceptron()
    step, seen = compiled(WithLoss(model), budget=2_500_000, margin="200 kB")
    step(*inputs).backward()
    assert seen[0].result.budget_bytes == 2_300_000
    step, _ = compiled(WithLoss(model), budget=2_500_000, margin=2_400_000)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="with a margin of"):
        step(*inputs)
    step, _ = compiled(WithLoss(model), margin=-1)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match='the option "margin"'):
        step(*inputs)


def test_random_numbers_are_drawn_once() -> None:
    model, inputs = MODELS["gpt"]()
    step, seen = compiled(WithLoss(model), budget="70%")
    step(*inputs).backward()
    plan = seen[0].result.plan
    assert plan is not None
    runs = [action.id for action in plan.actions if action.kind == "run"]
    drawn = [op.id for op in seen[0].problem.ops if op.random]
    assert len(drawn) == 6
    assert all(runs.count(one) == 1 for one in drawn)


def test_autocast_and_inference() -> None:
    model, inputs = perceptron()
    plain = WithLoss(copy.deepcopy(model))
    planned = WithLoss(model)
    step, _ = compiled(planned, budget="80%")
    with torch.autocast("cpu", torch.bfloat16):
        expected, loss = plain(*inputs), step(*inputs)
    expected.backward()
    loss.backward()
    assert torch.equal(loss, expected)
    for one, other in zip(planned.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad)
    with torch.no_grad():
        assert torch.equal(step(*inputs), plain(*inputs))


def refused(call: Callable[[], Any]) -> BaseException:
    """Returns the exception of reprise that is behind a failed compilation."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as failed:
        call()
    found: BaseException | None = failed.value.inner_exception
    assert found is not None
    return found


def test_a_budget_that_no_plan_fits_is_refused_with_the_smallest_one() -> None:
    model, inputs = perceptron()
    step, _ = compiled(WithLoss(model), budget=1000)
    error = refused(lambda: step(*inputs))
    assert isinstance(error, reprise.BudgetError)
    assert "the smallest budget is" in str(error)
    assert error.budget == 1000
    assert f"({error.requested} B)" in str(error)
    again, seen = compiled(WithLoss(model), budget=error.requested)
    again(*inputs).backward()
    assert seen[0].result.plan is not None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bugdet": 1}, 'no option "bugdet"; it has budget, compiler'),
        ({"compiler": "tvm"}, "\"compiler\" is 'aot_eager' or 'inductor', not 'tvm'"),
        ({"times": "guessed"}, "\"times\" is 'measured' or 'estimated'"),
        ({"budget": 0.5}, 'write "50%"'),
        ({"fixed_bytes": None}, '"fixed_bytes" is a number of bytes'),
        ({"fixed_bytes": "2 apples"}, "apples"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    step, _ = compiled(nn.Linear(2, 2), **options)
    error = refused(lambda: step(torch.randn(2, 2)))
    assert isinstance(error, reprise.InputError)
    assert text in str(error)


def test_sizes_that_are_not_known_are_refused() -> None:
    torch._dynamo.reset()
    step = torch.compile(
        WithLoss(nn.Linear(4, 4)), backend=reprise.backend, options={"budget": "90%"}, dynamic=True
    )
    error = refused(lambda: step(torch.randn(7, 4)))
    assert isinstance(error, reprise.InputError)
    assert "dynamic=False" in str(error)


def test_an_installed_package_answers_to_its_name() -> None:
    text = (pathlib.Path(SOURCE) / "pyproject.toml").read_text()
    assert 'torch_dynamo_backends"]\nreprise = "reprise._compile.backend:backend"' in text
