"""Changes that a captured step must notice: random state, replaced tensors, hidden state.

The step does what the function does, or it says why not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from small_steps import assert_same, data, gradients, net, step_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def test_a_plan_after_steps_is_still_valid_for_its_problem() -> None:
    model = net()
    x, y = data(512)
    captured = reprise.capture(step_of(model), x, y)
    captured.plan(budget="90%")
    for _ in range(4):
        model.zero_grad()
        captured(x, y)
        plan = captured.planned.plan
        assert plan is not None
        assert reprise.verify(captured.graph, plan) == []
        assert captured.report().predicted_peak_bytes == captured.report().measured_peak_bytes


def seeded(model: Any) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        torch.manual_seed(7)
        return step_of(model)(x, y)

    return step


def checkpointed(model: Any) -> Callable[..., Any]:
    return step_of(lambda x: checkpoint(model, x, use_reentrant=False))


def own_generator(model: Any) -> Callable[..., Any]:
    generator = torch.Generator().manual_seed(3)
    return step_of(lambda x: model(x + torch.rand(x.shape, generator=generator)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (seeded, "random generator is set inside"),
        (checkpointed, "random generator is set inside"),
        (own_generator, "a generator of its own"),
    ],
)
def test_random_numbers_that_cannot_be_replayed_are_refused(kind: Any, message: str) -> None:
    with pytest.raises(reprise.InputError, match=message):
        reprise.capture(kind(net(0.2)), *data())


def test_checkpoint_without_random_numbers_is_recorded() -> None:
    model = net()
    x, y = data()
    captured = reprise.capture(checkpointed(model), x, y)
    loss = captured(x, y)
    replayed = gradients(model)
    model.zero_grad()
    assert torch.equal(loss, checkpointed(model)(x, y))
    assert_same(replayed, gradients(model))


def replace_all(model: Any) -> None:
    for p in model.parameters():
        p.data = p.data * 0.5


def flatten_all(model: Any) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters()) * 0.5
    nn.utils.vector_to_parameters(vector, model.parameters())


@pytest.mark.parametrize("replace", [replace_all, flatten_all])
@pytest.mark.parametrize("frozen", [False, True])
def test_data_of_parameters_may_be_replaced(replace: Any, frozen: bool) -> None:
    model, teacher = net(), net()
    teacher.requires_grad_(False)

    def step(x: Any, y: Any) -> Any:
        loss: Any = F.cross_entropy(model(x) + teacher(x), y)
        loss.backward()
        return loss

    x, y = data()
    captured = reprise.capture(step, x, y)
    replace(teacher if frozen else model)
    model.zero_grad()
    loss = captured(x, y)
    replayed = gradients(model)
    model.zero_grad()
    assert torch.equal(loss, step(x, y))
    assert_same(replayed, gradients(model))


def freeze(model: Any) -> None:
    model[0].weight.requires_grad_(False)


def thaw(model: Any) -> None:
    model[0].weight.requires_grad_(True)


def double(model: Any) -> None:
    model.double()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (thaw, freeze, "requires_grad was True and is False"),
        (freeze, thaw, "requires_grad was False and is True"),
        (thaw, double, "is Double"),
    ],
)
def test_other_parameters_are_refused_or_captured_again(
    before: Any, after: Any, message: str
) -> None:
    x, y = data()
    model = net()
    before(model)
    captured = reprise.capture(step_of(model), x, y)
    again = reprise.capture(step_of(model), x, y, on_miss="recapture")
    after(model)
    with pytest.raises(reprise.InputError, match=message):
        captured(x, y)
    if after is double:
        return
    again(x, y)
    for p in model.parameters():
        assert (p.grad is not None) == p.requires_grad


def test_another_layout_of_weights_is_refused() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))
    x, y = torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,))
    captured = reprise.capture(step_of(model), x, y)
    model.to(memory_format=torch.channels_last)
    with pytest.raises(reprise.InputError, match="strides"):
        captured(x, y)


def test_arrays_of_results_keep_what_they_showed() -> None:
    model = net()
    captured = reprise.capture(step_of(model), *data())
    captured.plan(budget="100%")
    kept, shown = [], []
    for _ in range(5):
        model.zero_grad()
        loss = captured(*data())
        kept.append(loss.numpy())
        shown.append(float(loss))
    assert [float(k) for k in kept] == shown


def test_state_in_an_attribute_is_refused_and_a_cache_is_not() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 10)
            self.last: Any = None
            self.ones: Any = None
            self.remembers = True

        def forward(self, x: Any) -> Any:
            if self.ones is None:
                self.ones = torch.ones(10)
            out = self.linear(x) * self.ones
            if self.remembers:
                out = out if self.last is None else out + self.last
                self.last = out.detach().mean(0)
            return out

    x, y = data()
    with pytest.raises(reprise.InputError, match="keeps state"):
        reprise.capture(step_of(Remembers()), x, y)
    model = Remembers()
    model.remembers = False
    captured = reprise.capture(step_of(model), x, y)
    assert torch.equal(captured(x, y), step_of(model)(x, y))
    with pytest.raises(reprise.InputError, match="gives another result when it runs again"):
        reprise.remat([Remembers(), nn.Linear(10, 10)], x, budget="90%")


def test_modules_that_the_function_does_not_show_are_watched() -> None:
    holder = {"model": net(0.5)}
    trainer = {"loss": lambda x, y: F.cross_entropy(holder["model"](x), y)}

    def step(x: Any, y: Any) -> Any:
        loss: Any = trainer["loss"](x, y)
        loss.backward()
        return loss

    x, y = data()
    captured = reprise.capture(step, x, y)
    captured(x, y)
    holder["model"].eval()
    with pytest.raises(reprise.InputError, match=r"training was True and is False"):
        captured(x, y)


def test_literals_made_by_torch_tensor() -> None:
    model = net()

    def step(x: Any, y: Any) -> Any:
        weight = torch.tensor([1.0, 2.0] * 5)
        loss: Any = F.cross_entropy(model(x), y, weight=weight) * x.new_tensor(0.5)
        loss.backward()
        return loss

    x, y = data()
    captured = reprise.capture(step, x, y)
    loss = captured(x, y)
    replayed = gradients(model)
    model.zero_grad()
    assert torch.equal(loss, step(x, y))
    assert_same(replayed, gradients(model))


def test_small_tensors_packed_by_hooks_are_refused() -> None:
    model = net()

    def pack(tensor: Any) -> Any:
        return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor

    def unpack(tensor: Any) -> Any:
        return tensor.float() if tensor.is_floating_point() else tensor

    def step(x: Any, y: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss: Any = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with pytest.raises(reprise.InputError, match="saved_tensors_hooks"):
        reprise.capture(step, *data())


def test_batch_norm_without_weights_in_lower_precision() -> None:
    torch.manual_seed(3)
    layers: list[Any] = []
    for _ in range(4):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, affine=False), nn.GELU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    plain = copy.deepcopy(model)
    x, y = torch.randn(8, 8, 16, 16), torch.randint(0, 10, (8,))

    def step_in_bfloat16(net: Any) -> Callable[..., Any]:
        def step(x: Any, y: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss: Any = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        return step

    captured = reprise.capture(step_in_bfloat16(model), x, y)
    captured.plan(budget="90%", time_limit=2)
    assert torch.equal(captured(x, y), step_in_bfloat16(plain)(x, y))
    assert_same(gradients(model), gradients(plain))


@pytest.mark.parametrize("budget", ["95%", "85%"])
def test_complex_products(budget: str) -> None:
    torch.manual_seed(5)
    factors = nn.ParameterList(
        nn.Parameter(torch.randn(13, dtype=torch.cfloat) + 2) for _ in range(6)
    )

    def step(x: Any, y: Any) -> Any:
        h = x * factors[0]
        for p in factors[1:]:
            h = torch.sigmoid((h / p).abs()) * (h / p)
        loss: Any = F.cross_entropy(h.abs().mean(1), y)
        loss.backward()
        return loss

    x, y = torch.randn(24, 37, 13), torch.randint(0, 13, (24,))
    captured = reprise.capture(step, x, y)
    captured.plan(budget=budget, time_limit=2)
    captured(x, y)
    replayed = gradients(factors)
    factors.zero_grad()
    step(x, y)
    for a, b in zip(replayed, gradients(factors), strict=True):
        assert torch.equal(torch.view_as_real(a), torch.view_as_real(b))


def test_parameters_in_one_storage_are_replaced_together_or_not_at_all() -> None:
    model = net()
    flatten_all(model)
    x, y = data()
    captured = reprise.capture(step_of(model), x, y)
    assert torch.equal(captured(x, y), step_of(model)(x, y))
    model[3].bias.data = model[3].bias.data + 1
    with pytest.raises(reprise.InputError, match="shared memory at capture"):
        captured(x, y)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_that_draws_nothing_before_a_dropout(reentrant: bool) -> None:
    front, model = nn.Sequential(nn.Linear(32, 32), nn.ReLU()), net(0.2)

    def step(x: Any, y: Any) -> Any:
        x = x + front[0].bias
        hidden: Any = checkpoint(front, x, use_reentrant=reentrant)
        return step_of(model)(hidden, y)

    x, y = data()
    captured = reprise.capture(step, x, y)
    torch.manual_seed(4)
    loss = captured(x, y)
    replayed = gradients(front)
    front.zero_grad()
    torch.manual_seed(4)
    assert torch.equal(loss, step(x, y))
    assert_same(replayed, gradients(front))


def test_within_an_outer_autocast() -> None:
    model = net()
    x, y = data()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = reprise.capture(step_of(model), x, y)
        for p in model.parameters():
            p.data = p.data * 0.5
        loss = captured(x, y)
        replayed = gradients(model)
        model.zero_grad()
        torch.clear_autocast_cache()
        assert torch.equal(loss, step_of(model)(x, y))
        assert_same(replayed, gradients(model))


def test_a_loss_made_at_each_call_is_no_hidden_module() -> None:
    model = net()
    runs = 0

    def step(x: Any, y: Any) -> Any:
        nonlocal runs
        runs += 1
        loss: Any = nn.CrossEntropyLoss()(model(x), y)
        loss.backward()
        return loss

    reprise.capture(step, *data(), unguarded=["runs"])
    assert runs == 2


def test_a_model_in_place_of_a_step_is_refused() -> None:
    model = net()
    x, y = data()
    with pytest.raises(reprise.InputError, match=r"calls\s+loss.backward"):
        reprise.capture(model, x)
    with pytest.raises(reprise.InputError, match="makes no gradients"):
        reprise.capture(lambda x, y: F.cross_entropy(model(x), y), x, y)

    def evaluate(x: Any) -> Any:
        with torch.no_grad():
            return model(x)

    captured = reprise.capture(evaluate, x)
    assert torch.equal(captured(x), evaluate(x))


@pytest.mark.parametrize("first", [True, False])
def test_data_replaced_inside_the_step_is_refused(first: bool) -> None:
    model = net()
    weight = model[0].weight
    before, place = weight.detach().clone(), weight.data_ptr()

    def shrink() -> None:
        weight.data = weight.data * 0.9

    def step(x: Any, y: Any) -> Any:
        if first:
            shrink()
        loss = step_of(model)(x, y)
        if not first:
            shrink()
        return loss

    with pytest.raises(reprise.InputError, match="replaces the data of a parameter"):
        reprise.capture(step, *data())
    assert weight.data_ptr() == place and torch.equal(weight, before)
