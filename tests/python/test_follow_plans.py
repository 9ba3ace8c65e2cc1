"""Steps that a plan is found for in follow mode, although their Python does more than compute."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

CALLS = 20
Loop = tuple[nn.Module, Callable[[Any], Any], Callable[[], Any] | None]


def network(*between: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        *(layer for _ in range(8) for layer in (nn.Linear(64, 64), *(b() for b in between)))
    )


def dropout() -> nn.Module:
    return nn.Dropout(0.1)


def norm() -> nn.Module:
    return nn.BatchNorm1d(64)


def square(net: Any, x: Any) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    return loss.detach()


def checkpoints(reentrant: bool, *between: Callable[[], nn.Module]) -> Loop:
    net = network(*between)
    part = len(net) // 4

    def step(x: Any) -> Any:
        hidden = x.clone().requires_grad_(reentrant)
        for begin in range(0, len(net), part):
            hidden = checkpoint(net[begin : begin + part], hidden, use_reentrant=reentrant)
        loss = hidden.square().mean()
        loss.backward()
        return loss.detach()

    return net, step, None


def zeroed(updates_inside: bool) -> Loop:
    net = network(nn.GELU, dropout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = square(net, x)
        if updates_inside:
            optimizer.step()
        return loss

    return net, step, (lambda: None) if updates_inside else optimizer.step


def cumulative() -> Loop:
    net = network(lambda: nn.BatchNorm1d(64, momentum=None), nn.GELU)
    return net, lambda x: square(net, x), None


def written() -> Loop:
    net = network(nn.GELU)

    def step(x: Any) -> Any:
        x.mul_(0.5)
        return square(net, x)

    return net, step, None


def transformed() -> Loop:
    net = network(nn.Tanh)

    def pure(weights: Any, x: Any) -> Any:
        return torch.func.functional_call(net, weights, (x,)).square().mean()

    def step(x: Any) -> Any:
        weights = {name: p.detach() for name, p in net.named_parameters()}
        gradients, loss = torch.func.grad_and_value(pure)(weights, x)
        for name, p in net.named_parameters():
            p.grad = gradients[name]
        return loss

    return net, step, None


def mapped() -> Loop:
    net = network(nn.Tanh)

    def step(x: Any) -> Any:
        loss = torch.func.vmap(lambda row: net(row[None]).square().mean())(x).mean()
        loss.backward()
        return loss.detach()

    return net, step, None


# By name, with the number of calls without a plan. The first call is recorded. Where gradients
# stay, the calls that find some are another way than the first one.
LOOPS: dict[str, tuple[Callable[[], Loop], int]] = {
    "checkpoints": (lambda: checkpoints(False, nn.GELU), 1),
    "checkpoints_with_dropout": (lambda: checkpoints(False, nn.GELU, dropout), 1),
    "checkpoints_with_batch_norm": (lambda: checkpoints(False, norm, nn.GELU), 1),
    "reentrant_checkpoints": (lambda: checkpoints(True, nn.GELU), 1),
    "reentrant_checkpoints_with_dropout": (lambda: checkpoints(True, nn.GELU, dropout), 1),
    "reentrant_checkpoints_with_batch_norm": (lambda: checkpoints(True, norm, nn.GELU), 1),
    "zeroed_gradients": (lambda: zeroed(False), 5),
    "zeroed_gradients_and_an_optimizer": (lambda: zeroed(True), 5),
    "cumulative_batch_norm": (cumulative, 1),
    "written_input": (written, 1),
    "transformed": (transformed, 1),
    "mapped": (mapped, 1),
}


def bits(tensor: Any) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def trained(make: Callable[[], Loop], budget: str | None) -> tuple[list[str], list[Any]]:
    """Trains for 20 calls. Returns the bits of all that was made, and the report of each call."""
    gc.collect()
    net, step, after = make()
    run: Any = step
    if budget is not None:
        run = reprise.capture(step, torch.randn(512, 64), follow=True, modules=[net])
        run.plan(budget=budget, time_limit=0.3)
    torch.manual_seed(5)
    made, reports = [], []
    for call in range(CALLS):
        x = torch.randn(512, 64, generator=torch.Generator().manual_seed(call))
        loss = run(x)
        tensors = [loss, x, *net.buffers(), *(p.grad for p in net.parameters())]
        made += [bits(tensor) for tensor in [*tensors, torch.get_rng_state()]]
        del tensors, loss
        if budget is not None:
            reports.append(run.report())
        if after is not None:
            after()
            continue
        with torch.no_grad():
            for p in net.parameters():
                gradient: Any = p.grad
                p.sub_(gradient, alpha=0.1)
                p.grad = gradient = None
    made += [bits(p) for p in net.parameters()]
    return made, reports


@pytest.mark.parametrize("name", LOOPS)
def test_later_calls_follow_a_plan(name: str) -> None:
    make, without = LOOPS[name]
    plain, _ = trained(make, None)
    made, reports = trained(make, "90%")
    assert made == plain
    assert reports[-1].left <= without, reports[-1].last_difference
    for report in reports[without + 1 :]:
        assert report.predicted_peak_bytes == report.measured_peak_bytes <= report.budget_bytes
