"""`train_step()` takes the best mode that works, says why, and has plain training's bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import reprise
import torch
from reprise._capture.followed import FollowedStep
from reprise._modes.modes import Works, choose
from torch import nn

F: Any = nn.functional
Step = Callable[..., Any]
MODES = ("auto", "follow", "chain", "online", "graph")

pytestmark = pytest.mark.skipif(
    tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 13),
    reason="online mode, on which most of these steps fall back, needs PyTorch 2.13",
)


@pytest.fixture(autouse=True)
def _counted() -> None:
    torch.set_num_threads(1)
    reprise.install_cpu_allocator()
    torch.manual_seed(3)


def network() -> nn.Sequential:
    blocks = [
        nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.GELU())
        for _ in range(6)
    ]
    return nn.Sequential(*blocks, nn.Linear(64, 5))


def batches(steps: int, rows: int = 512) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(rows, 64), torch.randint(0, 5, (rows,))) for _ in range(steps)]


def simple(model: nn.Module) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss: Any = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def branching(model: nn.Module) -> Step:
    """A step with a branch that depends on data, so that it has two outcomes."""

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss: Any = F.cross_entropy(model(x), y)
        if x[0, 0] > 0:
            loss = loss * 2 + model(x * 2).square().mean()
        loss.backward()
        return loss

    return step


def with_a_float(model: nn.Module) -> Step:
    """A step that no replay can repeat alone: it computes with a number from a tensor."""

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss: Any = F.cross_entropy(model(x * (1 / x.abs().max().item())), y)
        loss.backward()
        return loss

    return step


def clearing(model: nn.Module) -> Step:
    """A step that frees the gradients of the call before."""
    inner = simple(model)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        model.zero_grad()
        return inner(x, y)

    return step


def state_of(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, np.ndarray]:
    """Returns all that a step changes, in memory that no allocator counts."""
    state = {name: t.detach().numpy().copy() for name, t in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            state[f"{name}.grad"] = parameter.grad.numpy().copy()
        if optimizer is not None:
            for key, value in optimizer.state[parameter].items():
                state[f"{name}.{key}"] = torch.as_tensor(value).numpy().copy()
    state["random"] = torch.get_rng_state().numpy().copy()
    return state


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name


def assert_trains_like(
    plain: nn.Module,
    plain_step: Step,
    model: nn.Module,
    step: reprise.TrainStep,
    data: list[tuple[torch.Tensor, torch.Tensor]],
    clears: bool = True,
) -> None:
    """Trains both. After each call bits and budget are right, and the loop frees gradients."""
    for number, (x, y) in enumerate(data):
        torch.manual_seed(number)
        expected = plain_step(x, y).detach()
        wanted = state_of(plain)
        torch.manual_seed(number)
        reprise.reset_peak()
        loss = step(x, y)
        peak = reprise.peak_bytes()
        assert not loss.requires_grad and torch.equal(loss, expected)
        assert_same(state_of(model), wanted)
        budget = step.report().budget_bytes
        # A share is of the first call's peak, so that call has no budget yet.
        assert budget is None or peak <= budget
        if clears:
            plain.zero_grad()
            model.zero_grad()


def left(step: reprise.TrainStep) -> int:
    """Returns the number of calls of a followed step that had no plan."""
    report = step.report()
    assert isinstance(report, reprise.StepReport), str(step)
    return report.left


def test_a_simple_step_is_followed_and_planned() -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(4)
    before = state_of(model)
    step = reprise.train_step(simple(model), *data[0], budget="70%")
    assert_same(state_of(model), before)
    assert step.mode == "follow"
    assert [tried.mode for tried in step.tried] == ["follow"]
    assert_trains_like(plain, simple(plain), model, step, data)
    report = step.report()
    assert isinstance(report, reprise.StepReport)
    assert report.measured_peak_bytes == report.predicted_peak_bytes and report.left == 1
    assert step.calls == {"follow": 4}
    assert "beside a plan" in str(step) and "4 in follow mode" in str(step)
    assert "follow" in repr(step) and "beside a plan" in step._repr_html_()


def test_a_simple_step_is_recorded_and_planned_where_graph_mode_is_asked_for() -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(3)
    before = state_of(model)
    step = reprise.train_step(clearing(model), *data[0], budget="70%", mode="graph")
    assert_same(state_of(model), before)
    assert step.mode == "graph"
    assert [tried.mode for tried in step.tried] == ["graph"]
    assert_trains_like(plain, clearing(plain), model, step, data, clears=False)
    report = step.report()
    assert report.budget_bytes is not None and report.measured_peak_bytes <= report.budget_bytes
    assert step.calls == {"graph": 3}
    assert "a plan fits" in str(step) and "3 in graph mode" in str(step)
    assert "graph" in repr(step) and "a plan fits" in step._repr_html_()


@pytest.mark.parametrize("budget", ["75%", "4 MiB"])
def test_a_step_that_frees_the_gradients_of_the_call_before(budget: str) -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(4)
    step = reprise.train_step(clearing(model), *data[0], budget=budget)
    assert_trains_like(plain, clearing(plain), model, step, data, clears=False)
    assert step.report().budget_bytes is not None
    assert step.calls == {"follow": 4}


@pytest.mark.parametrize("mode", ["auto", "graph"])
def test_both_ways_of_a_branch_are_recorded(mode: str) -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(8)
    for number, (x, _) in enumerate(data):
        x[0, 0] = 1.0 if number % 2 == 0 else -1.0
    step = reprise.train_step(branching(model), *data[0], budget="90%", mode=mode)
    assert step.mode == ("follow" if mode == "auto" else "guarded graph")
    assert_trains_like(plain, branching(plain), model, step, data)
    assert step.calls == {step.mode: 8}
    if mode == "auto":
        assert left(step) == 3  # the first one, and the other way twice
        assert "test_train_step.py" in step.last_miss
    else:
        assert "compared at each call" in step.tried[-1].reason


def test_a_step_that_computes_with_a_number_from_a_tensor() -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(4)
    step = reprise.train_step(with_a_float(model), *data[0], budget="75%")
    assert_trains_like(plain, with_a_float(plain), model, step, data)
    assert step.calls == {"follow": 4} and left(step) == 1


def test_a_step_runs_online_if_that_is_asked_for() -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(3)
    before = state_of(model)
    step = reprise.train_step(with_a_float(model), *data[0], budget="75%", mode="online")
    assert_same(state_of(model), before)
    assert step.mode == "online"
    assert [(tried.mode, tried.works) for tried in step.tried] == [("online", True)]
    assert_trains_like(plain, with_a_float(plain), model, step, data)
    report = step.report()
    assert isinstance(report, reprise.OnlineReport)
    assert report.evictions > 0
    assert report.budget_bytes is not None and report.measured_peak_bytes <= report.budget_bytes
    assert step.calls == {"online": 3}


def test_stages_run_as_a_chain() -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(3)
    before = state_of(model)
    step = reprise.train_step(
        with_a_float(model), *data[0], budget="75%", stages=model, mode="chain"
    )
    assert_same(state_of(model), before)
    assert step.mode == "chain"
    assert "forward" not in model.__dict__
    assert_trains_like(plain, with_a_float(plain), model, step, data)
    report = step.report()
    assert isinstance(report, reprise.StepReport)
    assert report.budget_bytes is not None and report.measured_peak_bytes <= report.budget_bytes
    assert step.calls == {"chain": 3}


def test_a_list_of_stages_stands_for_a_module() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def forward(self, x: torch.Tensor) -> Any:
            return self.body(x)

    plain = Wrapped()
    model = copy.deepcopy(plain)
    data = batches(2)
    with pytest.raises(reprise.InputError, match="needs module="):
        reprise.train_step(simple(model), *data[0], mode="chain", stages=list(model.body))
    step = reprise.train_step(
        simple(model), *data[0], mode="chain", stages=list(model.body), module=model, budget="80%"
    )
    assert step.mode == "chain"
    assert_trains_like(plain, simple(plain), model, step, data)


def test_other_shapes_are_planned_where_they_need_it() -> None:
    plain = network()
    model = copy.deepcopy(plain)
    large, other, small = batches(5), batches(4, rows=480), batches(4, rows=200)
    step = reprise.train_step(simple(model), *large[0], budget="80%")
    assert_trains_like(plain, simple(plain), model, step, [*large[:2], other[0], large[2]])
    assert left(step) == 2  # the first call, and the other shape
    assert_trains_like(plain, simple(plain), model, step, [*other[1:], *large[3:]])
    assert left(step) == 2
    assert_trains_like(plain, simple(plain), model, step, small)
    assert left(step) == 6 and step.last_miss == "these inputs need no plan"
    assert step.calls == {"follow": 13}


@pytest.mark.parametrize("mode", ["auto", "graph"])
def test_what_python_says_may_change(mode: str) -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(4)
    step = reprise.train_step(simple(model), *data[0], budget="2 GiB", mode=mode)
    assert_trains_like(plain, simple(plain), model, step, data[:2])
    for module in (plain, model):
        module[0][2].p = 0.3  # type: ignore[index]
    assert_trains_like(plain, simple(plain), model, step, data[2:])
    if mode == "graph":
        assert step.calls == {"graph": 4}
        assert "was 0.1 and is 0.3" in step.last_miss
    else:
        assert left(step) == 1  # The plan uses the number of the call.


def test_gradients_that_are_added_up_and_read() -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(4)

    def clipping(net: Any) -> Any:
        def function(x: Any, y: Any) -> Any:
            loss: Any = F.cross_entropy(net(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            return loss

        return function

    step = reprise.train_step(clipping(model), *data[0], budget="2 GiB")
    # Gradients are added up, and clipped together at each step.
    assert_trains_like(plain, clipping(plain), model, step, data, clears=False)
    assert step.calls == {"follow": 4}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam])
def test_an_optimizer_of_the_step(kind: Any) -> None:
    """NAdam's step is not one that a recording can hold."""
    options = {"lr": 0.01} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(4)
    optimizers = [kind(module.parameters(), **options) for module in (plain, model)]
    before = state_of(model)
    step = reprise.train_step(simple(model), *data[0], optimizer=optimizers[1], budget="2 GiB")
    assert_same(state_of(model), before)
    assert not optimizers[1].state
    assert step.mode == ("online" if kind is torch.optim.NAdam else "follow")
    for number, (x, y) in enumerate(data):
        torch.manual_seed(number)
        expected = simple(plain)(x, y).detach()
        optimizers[0].step()
        optimizers[0].zero_grad()
        wanted = state_of(plain, optimizers[0])
        torch.manual_seed(number)
        assert torch.equal(step(x, y), expected)
        assert_same(state_of(model, optimizers[1]), wanted)
    if step.mode == "follow":
        assert left(step) == 1
    else:
        assert step.tried[0].mode == "follow" and "NAdam" in step.tried[0].reason


@pytest.mark.parametrize("mode", ["auto", "online"])
def test_gradients_before_a_step_with_its_optimizer(mode: str) -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(4)

    def adding(net: nn.Module) -> Step:
        def function(x: torch.Tensor, y: torch.Tensor) -> Any:
            loss: Any = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        return function

    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (plain, model)]
    options: Any = {"optimizer": optimizers[1], "budget": "2 GiB", "mode": mode}
    step = reprise.train_step(adding(model), *data[0], **options)
    for number, (x, y) in enumerate(data):
        for net, train in ((plain, adding(plain)), (model, step)):
            torch.manual_seed(number)
            if number == 1:  # Gradients of another batch, which the update takes, too.
                adding(net)(*data[0])
            train(x, y)
        optimizers[0].step()
        optimizers[0].zero_grad()
        torch.manual_seed(9)
        assert_same(state_of(model, optimizers[1]), state_of(plain, optimizers[0]))
    if mode == "auto":
        assert step.calls == {"follow": 4} and left(step) == 2


@pytest.mark.parametrize("budget", ["2 GiB", "90%"])
@pytest.mark.parametrize("mode", ["auto", "online"])
def test_a_step_that_updates_its_parameters(mode: str, budget: str) -> None:
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(4)

    def updating(module: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        inner = simple(module)

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            loss = inner(x, y)
            optimizer.step()
            return loss

        return step

    optimizers = [torch.optim.Adam(module.parameters()) for module in (plain, model)]
    plain_step = updating(plain, optimizers[0])
    torch.manual_seed(7)
    plain_step(*data[3])
    first = updating(model, optimizers[1])
    torch.manual_seed(7)
    first(*data[3])  # The optimizer has state when the step is tried.
    before = state_of(model, optimizers[1])
    step = reprise.train_step(first, *data[0], budget=budget, mode=mode)
    assert_same(state_of(model, optimizers[1]), before)
    assert_trains_like(plain, plain_step, model, step, data)
    assert_same(state_of(model, optimizers[1]), state_of(plain, optimizers[0]))


def test_no_mode_fits() -> None:
    model = network()
    (x, y), *_ = batches(1)
    before = state_of(model)
    budget = reprise.live_bytes() + 200_000
    step = reprise.train_step(simple(model), x, y, budget=budget, stages=model)
    with pytest.raises(reprise.BudgetError, match="cannot be trained in this budget") as raised:
        step(x, y)
    for mode in ("- follow: no", "- chain: no", "- online: no"):
        assert mode in str(raised.value)
    assert raised.value.requested > raised.value.budget > 0
    assert_same(state_of(model), before)
    with pytest.raises(reprise.BudgetError):
        reprise.train_step(simple(model), x, y, budget=reprise.live_bytes() + 1, mode="online")


@pytest.mark.parametrize("after", ["chain", "online"])
def test_a_mode_that_fails_at_a_later_call_makes_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    model = network()
    (x, y), *_ = batches(1)
    stages = model if after == "chain" else None
    step = reprise.train_step(simple(model), x, y, budget="100%", stages=stages)

    def call() -> Any:
        torch.manual_seed(3)
        model.load_state_dict(before)
        model.zero_grad()
        return step(x, y)

    before = copy.deepcopy(model.state_dict())
    expected = call()

    def fails(*_: Any, **__: Any) -> Any:
        raise reprise.BudgetError("there is no room", 2, 1, 3)

    assert torch.equal(call(), expected)
    budget = step.report().budget_bytes
    monkeypatch.setattr(FollowedStep, "_tensors", fails)
    for _ in range(2):
        assert torch.equal(call(), expected)
        report = step.report()
        assert budget is not None and report.budget_bytes == budget >= report.measured_peak_bytes
    assert step.calls == {"follow": 2, after: 2}
    assert step.mode == after
    assert "- follow: no: at a later call: there is no room" in str(step)


def test_a_mode_that_failed_holds_no_memory_beside_the_next_one() -> None:
    held = reprise.live_bytes()

    def make(mode: str) -> Works:
        if mode == "graph":
            kept = torch.ones(1 << 20)
            raise reprise.InputError(f"no {kept.numel()}")
        assert reprise.live_bytes() == held
        return Works(reprise.online(), mode, "the next one")

    works, tried = choose(("graph", "online"), make)
    assert works.mode == "online" and tried[0].reason == f"no {1 << 20}"


def test_an_error_of_the_step_is_that_of_the_step() -> None:
    model = network()
    (x, y), *_ = batches(1)
    before = state_of(model)
    for mode in MODES:
        options: Any = {"mode": mode, "budget": "2 GiB", "stages": model}
        with pytest.raises(RuntimeError, match="shape"):
            reprise.train_step(simple(model), x[:, :7], y, **options)(x[:, :7], y)
        assert_same(state_of(model), before)

    breaks = False

    def broken(x: torch.Tensor) -> torch.Tensor:
        simple(model)(x, y)
        if breaks:
            raise KeyError("mine")
        return x

    for mode in ("auto", "online", "graph"):
        breaks = False
        step = reprise.train_step(broken, x, mode=mode, budget="2 GiB")
        for _ in range(2):
            step(x)
            model.zero_grad()
        before, breaks = state_of(model), True
        with pytest.raises(KeyError, match="mine"):
            # In graph mode the function runs when it is recorded.
            reprise.train_step(broken, x, mode=mode) if mode == "graph" else step(x)
        assert_same(state_of(model), before)


def test_a_mode_of_ones_own() -> None:
    model = network()
    (x, y), *_ = batches(1)
    step = reprise.train_step(simple(model), x, y, mode="online", budget="2 GiB")
    assert step.mode == "online" and step(x, y).isfinite()
    with pytest.raises(reprise.InputError, match="cannot be captured"):
        reprise.train_step(with_a_float(model), x, y, mode="graph")
    unlimited = reprise.train_step(with_a_float(model), x, y)
    assert unlimited.mode == "follow" and unlimited(x, y).isfinite()


def test_arguments() -> None:
    model = network()
    (x, y), *_ = batches(1)
    with pytest.raises(reprise.InputError, match="mode is one of"):
        reprise.train_step(simple(model), x, y, mode="best")
    with pytest.raises(reprise.InputError, match="needs stages="):
        reprise.train_step(simple(model), x, y, mode="chain")
    with pytest.raises(reprise.InputError, match="outcomes"):
        reprise.train_step(simple(model), x, y, outcomes=0)
    with pytest.raises(reprise.InputError, match="many"):
        reprise.train_step(simple(model), x, y, budget="many")


def test_objects_of_the_users_own_are_returned() -> None:
    class Result:
        def __init__(self, loss: torch.Tensor) -> None:
            self.loss = loss

    model = network()
    (x, y), *_ = batches(1)

    def step(x: torch.Tensor, y: torch.Tensor) -> Result:
        return Result(simple(model)(x, y))

    taken = reprise.train_step(step, x, y, budget="2 GiB")
    for _ in range(3):
        result = taken(x, y)
        assert isinstance(result, Result) and result.loss.isfinite()
        model.zero_grad()
    assert left(taken) == 1


@pytest.mark.parametrize("after", ["chain", "online"])
def test_a_first_call_that_does_not_fit_is_right_in_the_next_mode(after: str) -> None:
    """Gradients, buffers, the random state and lists of Python are as if it had not begun."""
    plain = network()
    model = copy.deepcopy(plain)
    data = batches(3)
    losses: list[float] = []
    room = iter([False])

    def logs(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = simple(model)(x, y)
        losses.append(float(loss.detach()))
        if not next(room, True):
            raise reprise.BudgetError("there is no room", 2, 1, 3)
        return loss

    stages = model if after == "chain" else None
    step = reprise.train_step(logs, *data[0], budget="2 GiB", stages=stages)
    assert_trains_like(plain, simple(plain), model, step, data)
    assert step.calls == {after: 3} and len(losses) == 3
    assert "- follow: no: at the first call: there is no room" in str(step)


def test_a_later_call_that_has_begun_is_not_begun_again() -> None:
    model = network()
    data = batches(3)
    losses: list[float] = []

    def logs(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = simple(model)(x, y)
        losses.append(float(loss.detach()))
        if len(losses) == 3:
            raise reprise.BudgetError("there is no room", 2, 1, 3)
        return loss

    step = reprise.train_step(logs, *data[0], budget="2 GiB")
    for x, y in data[:2]:
        step(x, y)
        model.zero_grad()
    before = state_of(model)
    with pytest.raises(reprise.BudgetError, match=r"^there is no room"):
        step(*data[2])
    assert_same(state_of(model), before)
    assert len(losses) == 3
    step(*data[2])
    assert step.calls == {"follow": 3}


def test_a_first_call_that_has_updated_parameters_is_not_begun_again() -> None:
    model = network()
    (x, y), *_ = batches(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[int] = []

    def updates(x: torch.Tensor, y: torch.Tensor) -> Any:
        simple(model)(x, y)
        optimizer.step()
        calls.append(1)
        raise reprise.BudgetError("there is no room", 2, 1, 3)

    step = reprise.train_step(updates, x, y, budget="2 GiB")
    with pytest.raises(reprise.BudgetError, match=r"^there is no room"):
        step(x, y)
    assert len(calls) == 1
