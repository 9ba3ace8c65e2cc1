"""Trials for `doctor()`: one training step, plain and planned, compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from .._capture.capture import capture
from .._capture.explanation import StepExplanation
from .._chain.remat import remat
from .._step.modules import modules_of
from .._step.report import StepReport
from .._step.stages import as_arguments
from .._step.tree import flatten
from .._torch import _runtime
from ..errors import BudgetError, Error
from .diagnosis import Trial

Step = Callable[[], torch.Tensor]
Bits = dict[str, bytes]

# The budget where the caller names none. If no plan fits it, the smallest possible budget is taken.
USUAL_BUDGET = "70%"


def small_model() -> tuple[nn.Sequential, torch.Tensor]:
    """Returns a small model and a sample: convolutions, batch norms, in-place ops and dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(8 if i else 3, 8, 3, padding=1),
                    nn.BatchNorm2d(8),
                    nn.ReLU(inplace=True),
                    nn.Dropout(0.2),
                )
                for i in range(4)
            ),
            nn.Flatten(),
            nn.Linear(8 * 16 * 16, 10),
        )
        return model, torch.randn(8, 3, 16, 16)


def mean_square(output: Any) -> torch.Tensor:
    """Returns the sum of the mean squares of all tensors of an output that have a gradient."""
    tensors, _ = flatten(output, "what the model returns")
    terms = [t.float().square().mean() for t in tensors if t.requires_grad]
    return torch.stack(terms).sum()


def raw(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a tensor in host memory that no allocator of tensors counts."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


class _World:
    """All that a step changes: gradients, buffers and the random state."""

    def __init__(self, modules: Sequence[nn.Module], inputs: list[torch.Tensor]) -> None:
        self.parameters: dict[str, torch.Tensor] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        for number, module in enumerate(modules):
            prefix = f"{number}." if len(modules) > 1 else ""
            self.parameters |= {prefix + n: p for n, p in module.named_parameters()}
            self.buffers |= {prefix + n: b for n, b in module.named_buffers()}
        leaves = {f"input {i}": t for i, t in enumerate(inputs) if t.is_leaf and t.requires_grad}
        self.leaves = self.parameters | leaves
        self.gradients = {n: p.grad for n, p in self.leaves.items()}
        self.before = {n: raw(b) for n, b in self.buffers.items()}
        self.random = torch.get_rng_state()

    def without_gradients(self) -> None:
        """Drops all gradients."""
        for leaf in self.leaves.values():
            leaf.grad = None

    def restore(self) -> None:
        """Drops all gradients, and puts buffers and the random state back."""
        self.without_gradients()
        with torch.no_grad():
            for name, buffer in self.buffers.items():
                flat = torch.frombuffer(bytearray(self.before[name]), dtype=torch.uint8)
                # Writing to .data hides the write from autograd, which need not know of it.
                buffer.data.copy_(flat.view(buffer.dtype).view(buffer.shape))
        torch.set_rng_state(self.random)

    def put_back(self) -> None:
        """Puts everything back as it was, gradients included."""
        self.restore()
        for name, leaf in self.leaves.items():
            leaf.grad = self.gradients[name]

    def now(self, loss: torch.Tensor) -> Bits:
        """Returns the bytes of the loss and of all that a step changes, by name."""
        bits = {"loss": raw(loss), "random state": raw(torch.get_rng_state())}
        bits |= {
            f"gradient of {n}": raw(p.grad) for n, p in self.leaves.items() if p.grad is not None
        }
        return bits | {f"buffer {n}": raw(b) for n, b in self.buffers.items()}


def different(a: Bits, b: Bits) -> tuple[str, ...]:
    """Returns the names of all that is not equal to the bit."""
    return tuple(sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name)))


def _one(result: Any) -> torch.Tensor:
    """Returns the first tensor of what a step returns, or 0 if it returns none."""
    tensors, _ = flatten(result, "what the step returns")
    return tensors[0] if tensors else torch.zeros(())


class Planned(NamedTuple):
    """A step of Reprise.

    Attributes:
        plan: Plans the step for a budget.
        step: Runs the step and returns the loss.
        report: Returns the peaks and the budget of the last step.
        explain: Says what a captured step depends on. Chain mode has no such answer.
    """

    plan: Callable[[int | str], Any]
    step: Step
    report: Callable[[], StepReport]
    explain: Callable[[], StepExplanation | None] = lambda: None


class _Comparison:
    """Plain training's bits and peak, with which trials are compared."""

    def __init__(self, world: _World, plain: Step, device: torch.device) -> None:
        self.world = world
        on_cpu = device.type == "cpu"
        first = self._bits(plain)  # The first step also makes what is made only once.
        _runtime.reset_peak()
        self.expected = self._bits(plain)
        self.plain_peak = _runtime.peak_bytes() if on_cpu else None
        self.repeats = first == self.expected

    def _bits(self, step: Step) -> Bits:
        """Runs a step from the state before, and returns what it leaves."""
        self.world.restore()
        loss = step()
        bits = self.world.now(loss)
        del loss
        self.world.restore()
        return bits

    def trial(self, mode: str, make: Callable[[], Planned], budget: int | str | None) -> Trial:
        """Plans and runs a step, and compares it with plain training."""
        try:
            planned = make()
            try:
                planned.plan(USUAL_BUDGET if budget is None else budget)
            except BudgetError as error:
                if budget is not None or error.requested == 0:
                    raise
                planned.plan(error.requested)
            bits = self._bits(planned.step)
        except Error as error:
            self.world.restore()
            return Trial(mode, error=str(error), repeats=self.repeats)
        report = planned.report()
        return Trial(
            mode,
            different=different(self.expected, bits),
            repeats=self.repeats,
            plain_peak_bytes=self.plain_peak,
            budget_bytes=report.budget_bytes,
            predicted_peak_bytes=report.predicted_peak_bytes,
            measured_peak_bytes=report.measured_peak_bytes,
            explanation=planned.explain(),
        )


def _is_chain(model: Any) -> bool:
    return isinstance(model, (nn.Sequential, nn.ModuleList, list, tuple))


def _call(model: Any, arguments: tuple[Any, ...]) -> Any:
    """Calls a model, or the stages of a list one after the other."""
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
        return model(*arguments)
    stages: Iterator[Any] = iter(model)
    value = next(stages)(*arguments)
    for stage in stages:
        value = stage(value)
    return value


def _chain_step(model: Any, sample: Any, loss: Callable[[Any], torch.Tensor]) -> Planned:
    """Returns a step in chain mode."""
    arguments = as_arguments(sample)
    planned = remat(model, sample, loss=loss, output_held=False)

    def plan(budget: int | str) -> None:
        planned.set_budget(budget)
        planned.plan_for(*arguments)

    def run() -> torch.Tensor:
        value = loss(planned(*arguments))
        torch.autograd.backward(value)
        return value.detach()

    return Planned(plan, run, planned.report)


def _graph_step(
    step: Callable[..., Any], arguments: tuple[Any, ...], modules: list[nn.Module]
) -> Planned:
    """Returns a step in graph mode."""
    captured = capture(step, *arguments, modules=modules)
    return Planned(
        lambda budget: captured.plan(budget=budget, time_limit=3.0),
        lambda: _one(captured(*arguments)),
        captured.report,
        captured.explain,
    )


def try_steps(
    model: Any,
    sample: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    step: Callable[..., Any] | None,
    modules: Sequence[nn.Module] | None,
    budget: int | str | None,
) -> list[Trial]:
    """Tries one training step in the modes that are possible. The arguments are `doctor()`'s."""
    arguments = as_arguments(sample)
    loss_of = loss or mean_square

    def step_of_model(*inputs: Any) -> torch.Tensor:
        value = loss_of(_call(model, inputs))
        torch.autograd.backward(value)
        return value

    whole = step or step_of_model
    trained = list(modules) if modules is not None else modules_of(step or model)
    tensors, _ = flatten(arguments, "the sample")
    _runtime.install_cpu_allocator()
    world = _World(trained, tensors)
    try:
        device = tensors[0].device if tensors else torch.device("cpu")
        compared = _Comparison(world, lambda: _one(whole(*arguments)).detach(), device)
        trials = []
        if step is None and _is_chain(model):
            trials.append(
                compared.trial("chain", lambda: _chain_step(model, sample, loss_of), budget)
            )
        trials.append(
            compared.trial("graph", lambda: _graph_step(whole, arguments, trained), budget)
        )
        return trials
    finally:
        world.put_back()
