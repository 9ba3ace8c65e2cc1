"""capture(optimizer=...): the optimizer's step inside the captured one, with its bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import GptLMHeadModel, ResNet, perceptron, state_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

MakeOptimizer = Callable[[list[nn.Parameter]], Any]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True
    ),
    "maximize": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, dampening=0.1, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "groups": lambda p: torch.optim.AdamW(
        [{"params": p[::2]}, {"params": p[1::2], "lr": 0.02, "weight_decay": 0.0}], lr=0.01
    ),
}


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return value


def step_of(net: nn.Module) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    return step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("budget", [None, "60%"])
def test_training_is_that_of_a_separate_optimizer(name: str, budget: str | None) -> None:
    torch.manual_seed(1)
    plain = ResNet()
    model = copy.deepcopy(plain)
    batches = [(torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))) for _ in range(4)]

    torch.manual_seed(2)
    separate = OPTIMIZERS[name](list(plain.parameters()))
    schedule = torch.optim.lr_scheduler.StepLR(separate, 2)
    losses = []
    for batch in batches:
        losses.append(step_of(plain)(*batch).detach())
        separate.step()
        separate.zero_grad()
        schedule.step()

    torch.manual_seed(2)
    inside = OPTIMIZERS[name](list(model.parameters()))
    schedule = torch.optim.lr_scheduler.StepLR(inside, 2)
    step = reprise.capture(step_of(model), *batches[0], optimizer=inside)
    step.plan(budget=budget)
    for batch, loss in zip(batches, losses, strict=True):
        assert bits(step(*batch)) == bits(loss)
        assert all(p.grad is None for p in model.parameters())
        report = step.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        schedule.step()
    assert bits(state_of(model)) == bits(state_of(plain))
    mine, theirs = inside.state_dict(), separate.state_dict()
    assert {k: bits(v) for k, v in mine["state"].items()} == {
        k: bits(v) for k, v in theirs["state"].items()
    }
    assert mine["param_groups"] == theirs["param_groups"]


def test_tied_weights_have_one_sum() -> None:
    torch.manual_seed(2)
    plain = GptLMHeadModel()
    model = copy.deepcopy(plain)
    ids = torch.randint(0, 97, (8, 24))

    def of(net: nn.Module) -> Any:
        def step(input_ids: Any, labels: Any) -> Any:
            loss = net(input_ids=input_ids, labels=labels).loss
            loss.backward()
            return loss

        return step

    torch.manual_seed(3)
    separate = torch.optim.AdamW(plain.parameters(), lr=0.01)
    for _ in range(3):
        of(plain)(ids, ids.clone())
        separate.step()
        separate.zero_grad()
    torch.manual_seed(3)
    inside = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = reprise.capture(of(model), ids, ids.clone(), optimizer=inside)
    step.plan(budget="60%")
    for _ in range(3):
        step(ids, ids.clone())
    assert bits(state_of(model)) == bits(state_of(plain))


def test_what_cannot_be_done_one_by_one_is_refused() -> None:
    model = perceptron()
    parameters = list(model.parameters())
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))

    def refused(optimizer: Any, match: str) -> None:
        with pytest.raises(reprise.InputError, match=match):
            reprise.capture(step_of(model), x, y, optimizer=optimizer)

    base: Any = torch.optim.SGD

    class Mine(base):
        pass

    refused(torch.optim.LBFGS(parameters), "not by LBFGS")
    refused(Mine(parameters, lr=0.1), "not by Mine")
    refused(torch.optim.SGD(parameters, lr=0.1, foreach=True), "foreach")
    refused(torch.optim.AdamW(parameters, fused=True), "fused")
    refused(torch.optim.SGD(parameters[1:], lr=0.1), "in no group")
    hooked = torch.optim.SGD(parameters, lr=0.1)
    hooked.register_step_post_hook(lambda *_: None)
    refused(hooked, "hooks")

    optimizer = torch.optim.SGD(parameters, lr=0.1)
    step = reprise.capture(step_of(model), x, y, optimizer=optimizer)
    step(x, y)
    parameters[0].grad = torch.zeros_like(parameters[0])
    with pytest.raises(reprise.InputError, match="has a gradient already"):
        step(x, y)
    optimizer.zero_grad()
    step(x, y)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(reprise.InputError, match="capture the step again"):
        step(x, y)


def test_an_update_that_fails_says_what_was_updated() -> None:
    model = perceptron()
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = reprise.capture(step_of(model), x, y, optimizer=optimizer)
    step(x, y)
    optimizer.param_groups[0]["lr"] = "fast"
    with pytest.raises(Exception, match="some parameters were updated already"):
        step(x, y)
    assert all(p.grad is None for p in model.parameters())
    optimizer.param_groups[0]["lr"] = 0.1
    step(x, y)


def test_step_hooks_are_refused_whenever_they_come() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    calls: list[int] = []

    def note(*_: Any) -> None:
        calls.append(1)

    torch.manual_seed(1)
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, next(model.parameters()).shape[1])

    def step(inputs: Any) -> Any:
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    captured = reprise.capture(step, x, optimizer=optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    for register in (optimizer.register_step_post_hook, register_optimizer_step_post_hook):
        handle = register(note)
        with pytest.raises(reprise.InputError, match="step hooks"):
            captured(x)
        handle.remove()
    assert not calls
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    captured(x)
