"""Stages that do more than to map tensors: remat() notices them, or it refuses them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from small_steps import assert_same  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def square(out: Any) -> Any:
    return out.square().mean()


class Flagged(nn.Module):
    """A stage whose attributes decide what it does. No plan sees attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.count: Any
        self.register_buffer("count", torch.zeros(()))
        self.frozen = False
        self.noise = False
        self.counts = False
        self.writes = False
        self.outputs = 1

    def forward(self, x: Any) -> Any:
        if self.writes:
            x.mul_(0.5)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            y = self.linear(x).tanh()
        if self.noise:
            y = y + torch.rand_like(y)
        if self.counts:
            self.count += 1
            y = y * self.count
        return y if self.outputs == 1 else tuple(y * k for k in range(self.outputs))


def flagged() -> tuple[Any, Any]:
    torch.manual_seed(1)
    middle = Flagged()
    rest = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return middle, nn.Sequential(nn.Linear(32, 32), nn.Tanh(), middle, *rest)


def step(model: Any, run: Any, x: Any, loss: Any = square) -> list[Any]:
    """Returns gradients, buffers, the random state and the loss after one step."""
    torch.manual_seed(2)
    model.zero_grad()
    value = loss(run(x))
    value.backward()
    left = [p.grad for p in model.parameters()]
    return [
        *(torch.tensor(float("nan")) if g is None else g.clone() for g in left),
        *(b.clone() for b in model.buffers()),
        torch.get_rng_state(),
        value.detach(),
    ]


def budget_with_reruns(run: Any, x: Any) -> int:
    """Returns the smallest budget, at which something runs again."""
    with pytest.raises(reprise.BudgetError) as error:
        run.set_budget(1)
        run.plan_for(x)
    return int(error.value.requested)


def same(a: list[Any], b: list[Any]) -> bool:
    def equal(p: Any, q: Any) -> bool:
        return torch.equal(p, q) or bool(p.isnan().all() and q.isnan().all())

    return len(a) == len(b) and all(map(equal, a, b))


@pytest.mark.parametrize("flag", ["noise", "counts", "frozen"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("tight", [False, True])
def test_what_an_attribute_switches_is_noticed(flag: str, before: bool, tight: bool) -> None:
    x = torch.randn(64, 32)
    middle, model = flagged()
    setattr(middle, flag, before)
    # More work takes more memory than was planned. Only the bits count here.
    run = reprise.remat(model, x, loss=square, enforce=False)
    for now in (before, not before, before):
        setattr(middle, flag, now)
        other, plain = copy.deepcopy((middle, model))
        del other
        expected = step(plain, plain, x)
        if tight:
            model.zero_grad()
            run.set_budget(budget_with_reruns(run, x) + 30000)
        try:
            assert same(step(model, run, x), expected)
        except reprise.InputError as error:  # The buffer was written. The next step is right.
            assert flag == "counts" and tight and "writes a buffer" in str(error)
            model.load_state_dict(copy.deepcopy(plain.state_dict()))
            assert same(step(model, run, x), step(plain, plain, x))


def test_another_number_of_outputs_is_measured_again() -> None:
    x = torch.randn(64, 32)
    torch.manual_seed(1)
    last = Flagged()
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), last)

    def loss(out: Any) -> Any:
        return sum(y.square().mean() for y in (out if isinstance(out, tuple) else [out]))

    run = reprise.remat(model, x, loss=loss)
    for outputs in (1, 70, 2):
        last.outputs = outputs
        expected = step(model, model, x, loss)
        assert same(step(model, run, x, loss), expected)


def test_an_input_that_is_written_all_of_a_sudden() -> None:
    x = torch.randn(64, 32)
    middle, _ = flagged()
    model = nn.Sequential(nn.Linear(32, 32), middle, nn.Linear(32, 32))
    run = reprise.remat(model, x, loss=square)
    middle.writes = True
    with pytest.raises(reprise.InputError, match="changes its input in place, other than when"):
        step(model, run, x)
    assert same(step(model, run, x), step(model, model, x))


def test_parameters_that_only_a_function_knows_are_parameters_of_its_stage() -> None:
    first, hidden, last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)
    box = type("Box", (), {"__slots__": ("layer",)})()
    box.layer = hidden
    model = nn.ModuleList([first, hidden, last])
    x = torch.randn(64, 32)

    def through(value: Any) -> Any:
        return box.layer(value).relu()

    def plain(value: Any) -> Any:
        return last(through(first(value)))

    expected = step(model, plain, x)
    model.zero_grad()
    run = reprise.remat([first, through, last], x, loss=square, output_held=False)
    assert all(p.grad is None for p in model.parameters())
    assert same(step(model, run, x), expected)
    run.set_budget(budget_with_reruns(run, x) + 4096)
    assert same(step(model, run, x), expected)
    assert run.report().predicted_peak_bytes == run.report().measured_peak_bytes
    named = list(hidden.parameters())
    loss = square(run(x))
    assert_same(list(torch.autograd.grad(loss, named)), expected[2:4])


def test_a_tensor_with_a_history_from_outside_is_refused() -> None:
    x = torch.randn(8, 32)
    scale = nn.Linear(32, 32)(torch.ones(32))
    with pytest.raises(reprise.InputError, match="made outside it and has a history"):
        reprise.remat([nn.Linear(32, 32), lambda h: h * scale, nn.ReLU()], x)


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inner, x, use_reentrant=True)


def test_a_backward_that_fills_grad_by_itself_is_refused() -> None:
    model = nn.Sequential(nn.Linear(32, 32), Reentrant(), nn.Linear(32, 10))
    x = torch.randn(8, 32)
    square(model(x)).backward()
    before = [p.grad for p in model.parameters()]
    copies = [g.clone() for g in before if g is not None]
    with pytest.raises(reprise.InputError, match="use_reentrant=False"):
        reprise.remat(model, x)
    assert all(p.grad is g for p, g in zip(model.parameters(), before, strict=True))
    assert_same([g for g in before if g is not None], copies)


class Clamped(nn.Module):
    def __init__(self, write: Callable[[Any], None]) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.write = write

    def forward(self, x: Any) -> Any:
        self.write(self.linear.weight)
        return self.linear(x)


def clamp(weight: Any) -> None:
    with torch.no_grad():
        weight.clamp_(-0.01, 0.01)


def clamp_data(weight: Any) -> None:
    weight.data.clamp_(-0.01, 0.01)


@pytest.mark.parametrize("write", [clamp, clamp_data])
def test_parameters_that_a_stage_writes_are_refused(write: Any) -> None:
    model = nn.Sequential(nn.ReLU(), Clamped(write), nn.Linear(32, 10))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(reprise.InputError, match="writes its parameters"):
        reprise.remat(model, torch.randn(8, 32))
    assert_same(list(model.state_dict().values()), list(before.values()))


def test_embeddings_with_max_norm_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(20, 32, max_norm=0.1), nn.Linear(32, 10))
    before: Any = copy.deepcopy(model[0].weight)
    with pytest.raises(reprise.InputError, match="max_norm"):
        reprise.remat(model, torch.randint(0, 20, (8, 4)))
    assert torch.equal(model[0].weight, before)


def test_tensors_that_share_memory_and_are_changed_in_place_are_refused() -> None:
    first, last = nn.Linear(32, 32), nn.Linear(32, 10)

    def both(h: Any) -> Any:
        return h, h

    def residual(pair: Any) -> Any:
        return F.relu(pair[0], inplace=True) + pair[1]

    with pytest.raises(reprise.InputError, match="two tensors of the input share memory"):
        reprise.remat([first, both, residual, last], torch.randn(8, 32))


@pytest.mark.parametrize("loss", [torch.sum, torch.mean])
@pytest.mark.parametrize("rows", [0, 1, 64])
def test_the_gradient_of_a_sum_is_counted_once(loss: Any, rows: int) -> None:
    gc.collect()  # Other tests may have left something to the collector.
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    x = torch.randn(rows, 32)
    run = reprise.remat(model, x, loss=loss, output_held=False)
    expected = step(model, model, x, loss)
    for tight in (False, True):
        model.zero_grad()
        run.set_budget(budget_with_reruns(run, x) if tight else None)
        for _ in range(2):
            assert same(step(model, run, x, loss), expected)
            report = run.report()
            assert report.predicted_peak_bytes == report.measured_peak_bytes


def test_parameters_that_take_their_size_in_the_first_run() -> None:
    model = nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(10))
    x = torch.randn(8, 16)
    run = reprise.remat(model, x, loss=square)
    assert same(step(model, run, x), step(model, model, x))


def test_buffers_that_take_their_size_in_the_first_run() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.LazyBatchNorm1d(), nn.Linear(32, 10))
    x = torch.randn(8, 32)
    with pytest.raises(reprise.InputError, match="run the model once before"):
        reprise.remat(model, x)
    model(x)
    run = reprise.remat(model, x, loss=square)
    other = copy.deepcopy(model)
    assert same(step(model, run, x), step(other, other, x))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda out: float(out.sum()), "loss= must return a tensor"),
        (lambda out: None, "loss= must return a tensor"),
        (lambda out: out.detach().sum(), "that have gradients"),
        (lambda out: out, "tensor of one element"),
    ],
)
def test_losses_that_are_none(loss: Any, message: str) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    with pytest.raises(reprise.InputError, match=message):
        reprise.remat(model, torch.randn(8, 32), loss=loss)


def test_samples_that_are_no_plain_tensors() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    for sample in (
        torch.randn(8, 32).to_sparse(),
        torch.empty(8, 32, device="meta"),
        torch.nested.nested_tensor([torch.randn(2, 32), torch.randn(3, 32)]),
    ):
        with pytest.raises(reprise.InputError, match="the sample input"):
            reprise.remat(model, sample)


def test_forward_gradients_are_refused() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    x = torch.randn(8, 32)
    run = reprise.remat(model, x)
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(reprise.InputError, match="forward gradient"),
    ):
        run(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))


def test_a_planned_model_as_a_stage_of_another() -> None:
    inner = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    x = torch.randn(64, 32)
    stages = nn.Sequential(nn.Linear(32, 32), reprise.remat(inner, x), nn.Linear(32, 32), nn.Tanh())
    model = nn.Sequential(stages[0], inner, stages[2], stages[3])
    run = reprise.remat(stages, x, loss=square, output_held=False)
    expected = step(model, model, x)
    for tight in (False, True):
        model.zero_grad()
        run.set_budget(budget_with_reruns(run, x) if tight else None)
        assert same(step(model, run, x), expected)
        assert run.report().predicted_peak_bytes == run.report().measured_peak_bytes


def test_copies_of_models_whose_functions_use_the_original_are_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(32, 32), nn.Linear(32, 10)

    net = Net()
    x = torch.randn(8, 32)
    run = reprise.remat([net.body, lambda h: net.head(h)], x, module=net)
    other = copy.deepcopy(run)
    with pytest.raises(reprise.InputError, match="the original"):
        other(x)
    assert same(step(net, run, x), step(net, lambda v: net.head(net.body(v)), x))
