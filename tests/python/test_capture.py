"""Captured steps do what the function does, to the last bit, within the budget."""

from __future__ import annotations

import copy
import functools
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import (  # noqa: E402
    GptLMHeadModel,
    LanguageOutput,
    ResNet,
    assert_same_bits,
    perceptron,
    simple_step,
    state_of,
)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def images() -> tuple[Any, Any]:
    return torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,))


def trained(model: nn.Module, step: Any, batches: list[Any], rate: float = 0.05) -> Any:
    """Returns the losses of some steps with an optimizer, and the state after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    torch.manual_seed(11)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(step(*batch).detach().clone())
        optimizer.step()
    return torch.stack(losses), state_of(model)


@pytest.mark.parametrize("budget", [None, "80%", "50%"])
def test_training_a_resnet_is_plain_training(budget: str | None) -> None:
    torch.manual_seed(1)
    plain = ResNet()
    model = copy.deepcopy(plain)
    batches = [images() for _ in range(3)]

    def step_of(net: nn.Module) -> Any:
        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        return step

    before = state_of(model)
    step = reprise.capture(step_of(model), *batches[0])
    assert_same_bits(state_of(model), before)  # capturing leaves no trace
    step.plan(budget=budget)
    losses, state = trained(model, step, batches)
    plain_losses, plain_state = trained(plain, step_of(plain), batches)
    assert torch.equal(losses, plain_losses)
    assert_same_bits(state, plain_state)
    report = step.report()
    assert report.steps == 3
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    if budget is not None:
        assert report.budget_bytes is not None
        assert report.measured_peak_bytes <= report.budget_bytes


def test_a_transformers_style_model() -> None:
    """The model has keyword inputs, a dataclass as output, tied weights and dropout."""
    torch.manual_seed(2)
    plain = GptLMHeadModel()
    model = copy.deepcopy(plain)
    ids = torch.randint(0, 97, (32, 24))

    def step_of(net: nn.Module) -> Any:
        def step(*, input_ids: Any, labels: Any, output_hidden_states: bool) -> Any:
            output = net(
                input_ids=input_ids, labels=labels, output_hidden_states=output_hidden_states
            )
            output.loss.backward()
            return output

        return step

    batch = {"input_ids": ids, "labels": ids.clone(), "output_hidden_states": True}
    step = reprise.capture(step_of(model), **batch)
    result = step.plan(budget="50%")
    assert result.plan is not None
    torch.manual_seed(3)
    output = step(**batch)
    mine = state_of(model)
    torch.manual_seed(3)
    expected = step_of(plain)(**batch)
    assert isinstance(output, LanguageOutput)
    assert output.loss is not None
    assert output.hidden_states is not None
    assert list(output) == ["loss", "logits", "hidden_states"]
    assert torch.equal(output.loss, expected.loss)
    assert torch.equal(output.logits, expected.logits)
    assert len(output.hidden_states) == len(expected.hidden_states)
    assert all(map(torch.equal, output.hidden_states, expected.hidden_states))
    assert_same_bits(mine, state_of(plain))
    assert not output.loss.requires_grad
    with pytest.raises(reprise.InputError, match=r"structure|numbers"):
        step(**(batch | {"output_hidden_states": False}))


def test_gradients_accumulate() -> None:
    torch.manual_seed(4)
    plain = perceptron(dropout=0.0)
    model = copy.deepcopy(plain)
    batches = [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(3)]

    def step_of(net: nn.Module) -> Any:
        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(net(x), y) / 3
            loss.backward()
            return loss

        return step

    step = reprise.capture(step_of(model), *batches[0])
    for batch in batches:
        step(*batch)
        step_of(plain)(*batch)
    assert_same_bits(state_of(model), state_of(plain))


def test_a_python_autograd_function_and_autocast() -> None:
    class Scale(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 1.5

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * 1.5 + 0.0 * ctx.saved_tensors[0]

    torch.manual_seed(5)
    plain = perceptron(dropout=0.0)
    model = copy.deepcopy(plain)
    x = torch.randn(256, 64)

    def step_of(net: nn.Module) -> Any:
        def step(x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = Scale.apply(net(x)).float().square().mean()
            loss.backward()
            return loss

        return step

    step = reprise.capture(step_of(model), x)
    step.plan(budget="99%")
    assert torch.equal(step(x), step_of(plain)(x))
    assert_same_bits(state_of(model), state_of(plain))


def test_other_circumstances_are_refused_or_captured_again() -> None:
    model = perceptron()
    x = torch.randn(256, 64)
    step = reprise.capture(simple_step(model), x)
    for wrong in (torch.randn(8, 64), x.double(), x.clone().requires_grad_()):
        with pytest.raises(reprise.InputError, match="input 0"):
            step(wrong)
    model.eval()
    with pytest.raises(reprise.InputError, match=r"training was True and is False"):
        step(x)
    model.train()
    step(x)
    model[0] = nn.Linear(64, 64)
    with pytest.raises(reprise.InputError, match=r"model\.0 was"):
        step(x)

    flexible = reprise.capture(simple_step(model), x, on_miss="recapture")
    flexible.plan(budget="95%")
    for batch in (x, torch.randn(192, 64), x):
        plain = copy.deepcopy(model)
        torch.manual_seed(6)
        loss = flexible(batch)
        torch.manual_seed(6)
        assert torch.equal(loss, simple_step(plain)(batch))
        model.zero_grad()
    model[6] = nn.Linear(64, 3)
    assert torch.isfinite(flexible(x))


def test_modules_are_found_where_a_function_shows_them() -> None:
    """Another train flag is noticed, by whatever way the step reaches its model."""
    x = torch.randn(256, 64)

    class Trainer:
        def __init__(self) -> None:
            self.model = perceptron()

        def step(self, x: Any) -> Any:
            return simple_step(self.model)(x)

    trainer = Trainer()
    model = perceptron()
    steps: list[tuple[Any, nn.Module]] = [
        (trainer.step, trainer.model),
        (lambda x: trainer.step(x), trainer.model),
        (simple_step(model), model),
        (lambda x, net=model: simple_step(net)(x), model),
        (functools.partial(lambda net, x: simple_step(net)(x), model), model),
    ]
    for function, net in steps:
        step = reprise.capture(function, x)
        net.eval()
        with pytest.raises(reprise.InputError, match=r"training was True and is False"):
            step(x)
        net.train()


def test_what_cannot_be_replayed_is_refused_by_name() -> None:
    x = torch.randn(256, 64)

    def branches(x: Any) -> Any:
        return x * 2 if x.sum().item() > 0 else x

    with pytest.raises(reprise.InputError, match=r"item|_local_scalar_dense"):
        reprise.capture(branches, x)
    with pytest.raises(reprise.InputError, match="at least one input"):
        reprise.capture(lambda: None)
    with pytest.raises(reprise.InputError, match=r"object of type .*object"):
        reprise.capture(lambda x: object(), x)
    with pytest.raises(ZeroDivisionError):
        reprise.capture(lambda x: x / (1 // 0), x)
    with pytest.raises(reprise.InputError, match="on_miss"):
        reprise.capture(lambda x: x, x, on_miss="guess")


def test_what_is_held_is_not_written_over() -> None:
    """Results and gradients of earlier steps lie in the block that later steps use."""
    model = perceptron()
    step = reprise.capture(simple_step(model), torch.randn(256, 64))
    held: list[Any] = []
    copies: list[Any] = []
    for _ in range(4):
        model.zero_grad()
        held += [step(torch.randn(256, 64)), *(p.grad for p in model.parameters())]
        copies += [value.clone() for value in held[len(copies) :]]
    assert all(map(torch.equal, held, copies))
    assert step.report().served > 0


def test_nothing_is_left_behind() -> None:
    x = torch.randn(256, 64)
    reprise.install_cpu_allocator()
    before = reprise.live_bytes()
    model = perceptron()
    step = reprise.capture(simple_step(model), x)
    step.plan(budget="95%")
    for _ in range(2):
        step(x)
    assert reprise.live_bytes() > before
    del step, model
    gc.collect()
    assert reprise.live_bytes() == before


def test_reports_show_themselves() -> None:
    x = torch.randn(256, 64)
    step = reprise.capture(simple_step(perceptron()), x, name="one step")
    step(x)
    assert "one step" in repr(step)
    assert "measured" in str(step.report())
    assert "<table>" in step._repr_html_()
