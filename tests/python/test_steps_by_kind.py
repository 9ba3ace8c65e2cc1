"""`steps.by_kind()`: each mode has the bits of the plain step, and what is refused is named."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import reprise
import torch
from reprise._capture.followed import FollowedStep
from reprise.integrations.steps import by_kind
from torch import nn

MODES: list[Any] = ["follow", "graph", "chain", "online"]


class Layer(nn.Module):
    """A layer with a mask, a dropout and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(24, 96), nn.Linear(96, 24)
        self.norm, self.drop = nn.BatchNorm1d(24), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.drop(self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x)))))
        result: torch.Tensor = x + (hidden if mask is None else hidden * mask)
        return result


class Net(nn.Module):
    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 24)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = (x[:, :1] > 0).float()
        hidden = self.stem(x)
        for layer in self.layers:
            hidden = layer(hidden, mask=mask)
        result: torch.Tensor = self.head(self.norm(hidden))
        return result


def step_of(model: nn.Module) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return step


def batch(rows: int = 64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 8, generator=generator)
    return x, torch.randint(0, 5, (rows,), generator=generator)


def loop(model: nn.Module, run: Callable[..., Any], rows: list[int]) -> list[torch.Tensor]:
    """Trains with accumulation over two calls, and returns all that the loop has changed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    losses = []
    for i, number in enumerate(rows):
        losses.append(run(*batch(number, i)).clone())
        if i % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    state = [t.clone() for t in model.state_dict().values()]
    return [*losses, *gradients, *state, torch.get_rng_state()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def plain_peak(model: nn.Module, rows: int) -> int:
    inputs = batch(rows)
    step_of(model)(*inputs)
    model.zero_grad()
    reprise.reset_peak()
    step_of(model)(*inputs)
    return reprise.peak_bytes()


@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_bits_in_a_budget(mode: Any) -> None:
    reprise.install_cpu_allocator()
    gc.collect()
    plain = Net()
    planned, measured = copy.deepcopy(plain), copy.deepcopy(plain)
    expected = loop(plain, step_of(plain), [512] * 5)
    # The loop's optimizer makes its state, twice the bytes of the parameters.
    budget = plain_peak(measured, 512) * 70 // 100 + 2 * sum(p.nbytes for p in plain.parameters())
    step = by_kind(step_of(planned), budget=budget, mode=mode, time_limit=2)
    assert same(loop(planned, step, [512] * 5), expected)
    report = step.report()
    taken = "follow" if mode == "auto" else mode
    assert (report.mode, report.budget_bytes, report.steps) == (taken, budget, 5)
    assert 0 < report.measured_peak_bytes <= budget


@pytest.mark.parametrize("mode", ["auto", *MODES])
def test_kinds_of_inputs(mode: Any) -> None:
    plain = Net(3)
    planned = copy.deepcopy(plain)
    rows = [16, 24, 16, 32, 24, 16]
    expected = loop(plain, step_of(plain), rows)
    step = by_kind(step_of(planned), budget=2**30, mode=mode, kinds=2, time_limit=1)
    assert same(loop(planned, step, rows), expected)
    assert step.report().kinds == 2  # of three


@pytest.mark.parametrize("mode", MODES)
def test_train_and_eval(mode: Any) -> None:
    model = Net(2)
    step = by_kind(step_of(model), budget=2**30, mode=mode, time_limit=1)
    for training in (True, False, True, False):
        model.train(training)
        twin = copy.deepcopy(model)
        torch.manual_seed(0)
        expected = step_of(twin)(*batch())
        torch.manual_seed(0)
        assert torch.equal(step(*batch()), expected)
        model.zero_grad()
    assert step.report().kinds == 2


def test_the_share_is_of_the_plain_peak() -> None:
    reprise.install_cpu_allocator()
    for mode in MODES:
        gc.collect()
        model = Net()
        peak = plain_peak(model, 512)
        model.zero_grad()
        step = by_kind(step_of(model), budget="80%", mode=mode, time_limit=2)
        for _ in range(2):
            step(*batch(512))
            model.zero_grad()
        budget = step.report().budget_bytes
        assert budget is not None
        # Chain mode counts the layers and what runs behind them.
        assert budget * 10 <= peak * 9, mode
        assert budget * 10 >= peak * (5 if mode == "chain" else 7), mode


def test_the_first_mode_that_the_step_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(2)

    def reads(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        scale = 2.0 if float(loss) > 1e-3 else 1.0  # no whole number
        (loss * scale).backward()
        return loss.detach()

    step = by_kind(reads, budget=2**30, time_limit=1)
    step(*batch())
    assert step.report().mode == "follow" and not step.report().refused

    only = by_kind(reads, budget=2**30, mode="graph", time_limit=1)
    with pytest.raises(reprise.InputError, match=r"not whole|item"):
        only(*batch())

    def fails(*_: Any, **__: Any) -> Any:
        raise reprise.InputError("it cannot be followed")

    monkeypatch.setattr(FollowedStep, "_tensors", fails)
    step = by_kind(reads, budget=2**30, time_limit=1)
    step(*batch())
    report = step.report()
    assert report.mode == "chain"
    assert set(report.refused) == {"follow"}
    assert "it cannot be followed" in report.refused["follow"]

    class Reversed(Net):
        """It runs its layers in another order than they stand in."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.stem(x)
            for layer in reversed(self.layers):
                hidden = layer(hidden)
            result: torch.Tensor = self.head(self.norm(hidden))
            return result

    model = Reversed(2)
    step = by_kind(reads, budget=2**30, time_limit=1)
    step(*batch())
    report = step.report()
    assert report.mode == "online"
    assert "order" in report.refused["chain"]
    layers = list(model.layers)[::-1]
    step = by_kind(reads, budget=2**30, mode="chain", layers=layers, time_limit=1)
    step(*batch())
    assert step.report().mode == "chain"


class Between(Net):
    """It does something to the activations between its layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(x)
        for layer in self.layers:
            hidden = layer(hidden) * 1.5
        result: torch.Tensor = self.head(self.norm(hidden))
        return result


class Collects(Net):
    """It returns what all of its layers made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(x)
        total = hidden
        for layer in self.layers:
            hidden = layer(hidden)
            total = total + hidden
        result: torch.Tensor = self.head(self.norm(total))
        return result


class Shares(Net):
    """Its layers read a tensor that needs a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(x)
        mask = hidden.sigmoid()
        for layer in self.layers:
            hidden = layer(hidden, mask=mask)
        result: torch.Tensor = self.head(self.norm(hidden))
        return result


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Between, "between layers"), (Collects, "its loss changes"), (Shares, "needs a gradient")],
)
def test_layers_that_are_no_chain(kind: Any, reason: str) -> None:
    model = kind(3)
    before = [t.clone() for t in model.state_dict().values()]
    random = torch.get_rng_state()
    step = by_kind(step_of(model), budget=2**30, mode="chain", time_limit=1)
    with pytest.raises(reprise.InputError, match=reason):
        step(*batch())
    assert same(list(model.state_dict().values()), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert all("forward" not in layer.__dict__ for layer in model.layers)
    online = by_kind(step_of(model), budget=2**30, mode="online")
    twin = copy.deepcopy(model)
    assert same(loop(model, online, [16]), loop(twin, step_of(twin), [16]))


def test_a_budget_that_is_too_small_leaves_everything() -> None:
    for mode in ("graph", "chain", "online"):
        model = Net()
        before = [t.clone() for t in model.state_dict().values()]
        step = by_kind(step_of(model), budget="20 KiB", mode=mode, time_limit=1)
        with pytest.raises(reprise.BudgetError):
            step(*batch())
        assert same(list(model.state_dict().values()), before)
        assert all(p.grad is None for p in model.parameters())


def test_an_error_of_the_step_reaches_the_caller() -> None:
    model = Net(2)

    def fails(x: torch.Tensor) -> torch.Tensor:
        model(x)
        raise ZeroDivisionError("mine")

    for mode in MODES:
        with pytest.raises(ZeroDivisionError, match="mine"):
            by_kind(fails, budget=2**30, mode=mode)(batch()[0])
        assert all("forward" not in layer.__dict__ for layer in model.layers)


def test_wrong_arguments() -> None:
    step = step_of(Net(2))
    with pytest.raises(reprise.InputError, match="mode is"):
        by_kind(step, budget="80%", mode="magic")  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="kinds"):
        by_kind(step, budget="80%", kinds=0)
    with pytest.raises(reprise.InputError, match="budget"):
        by_kind(step, budget=[1])  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="has not run"):
        by_kind(step, budget="80%").report()
    only = by_kind(lambda x: x.sum().backward(), budget=2**30, mode="chain")
    with pytest.raises(reprise.InputError, match="layers="):
        only(torch.ones(2, requires_grad=True))
