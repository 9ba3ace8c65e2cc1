"""One training step, plain and planned, compared bit by bit. For doctor()."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _runtime
from ._capture import capture
from ._doctor import USUAL_BUDGET, Trial, smallest_of
from ._remat import as_arguments, remat
from ._torch import StepReport, modules_of
from ._tree import flatten
from .errors import BudgetError, Error

Step = Callable[[], torch.Tensor]
Bits = dict[str, bytes]


def small_model() -> tuple[nn.Sequential, torch.Tensor]:
    """Something of everything: convolution, batch norm, an in-place function, dropout."""
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
    tensors, _ = flatten(output, "what the model returns")
    terms = [t.float().square().mean() for t in tensors if t.requires_grad]
    return torch.stack(terms).sum()


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


class _World:
    """What a step changes: gradients, buffers, random state."""

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
        # Host memory that no allocator of tensors counts.
        self.before = {n: _raw(b) for n, b in self.buffers.items()}
        self.random = torch.get_rng_state()

    def without_gradients(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None

    def restore(self) -> None:
        self.without_gradients()
        with torch.no_grad():
            for name, buffer in self.buffers.items():
                flat = torch.frombuffer(bytearray(self.before[name]), dtype=torch.uint8)
                # .data: autograd need not know.
                buffer.data.copy_(flat.view(buffer.dtype).view(buffer.shape))
        torch.set_rng_state(self.random)

    def put_back(self) -> None:
        """As it all was."""
        self.restore()
        for name, leaf in self.leaves.items():
            leaf.grad = self.gradients[name]

    def now(self, loss: torch.Tensor) -> Bits:
        bits = {"loss": _raw(loss), "random state": _raw(torch.get_rng_state())}
        bits |= {
            f"gradient of {n}": _raw(p.grad) for n, p in self.leaves.items() if p.grad is not None
        }
        return bits | {f"buffer {n}": _raw(b) for n, b in self.buffers.items()}


def _different(a: Bits, b: Bits) -> tuple[str, ...]:
    return tuple(sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name)))


def _one(result: Any) -> torch.Tensor:
    tensors, _ = flatten(result, "what the step returns")
    return tensors[0] if tensors else torch.zeros(())


class Planned(NamedTuple):
    """A step of Reprise: what plans it, what runs it, what it took."""

    plan: Callable[[int | str], Any]
    step: Step
    report: Callable[[], StepReport]


class _Comparison:
    """Plain training's bits and peak, and trials against them."""

    def __init__(self, world: _World, plain: Step, device: torch.device) -> None:
        self.world = world
        on_cpu = device.type == "cpu"
        first = self._bits(plain)  # also warms up what is made once
        _runtime.reset_peak()
        self.expected = self._bits(plain)
        self.plain_peak = _runtime.peak_bytes() if on_cpu else None
        self.repeats = first == self.expected

    def _bits(self, step: Step) -> Bits:
        self.world.restore()
        loss = step()
        bits = self.world.now(loss)
        del loss
        self.world.restore()
        return bits

    def trial(self, mode: str, make: Callable[[], Planned], budget: int | str | None) -> Trial:
        try:
            planned = make()
            try:
                planned.plan(USUAL_BUDGET if budget is None else budget)
            except BudgetError as error:
                smallest = smallest_of(error)
                if budget is not None or smallest is None:
                    raise
                planned.plan(smallest)
            bits = self._bits(planned.step)
        except Error as error:
            self.world.restore()
            return Trial(mode, error=str(error), repeats=self.repeats)
        report = planned.report()
        return Trial(
            mode,
            different=_different(self.expected, bits),
            repeats=self.repeats,
            plain_peak_bytes=self.plain_peak,
            budget_bytes=report.budget_bytes,
            predicted_peak_bytes=report.predicted_peak_bytes,
            measured_peak_bytes=report.measured_peak_bytes,
        )


def _is_chain(model: Any) -> bool:
    return isinstance(model, (nn.Sequential, nn.ModuleList, list, tuple))


def _call(model: Any, arguments: tuple[Any, ...]) -> Any:
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
        return model(*arguments)
    stages: Iterator[Any] = iter(model)
    value = next(stages)(*arguments)
    for stage in stages:
        value = stage(value)
    return value


def try_steps(
    model: Any,
    sample: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    step: Callable[..., Any] | None,
    modules: Sequence[nn.Module] | None,
    budget: int | str | None,
) -> list[Trial]:
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

        def chain() -> Planned:
            planned = remat(model, sample, loss=loss_of, output_held=False)

            def plan(budget: int | str) -> None:
                planned.set_budget(budget)
                planned.plan_for(*arguments)

            def run() -> torch.Tensor:
                value = loss_of(planned(*arguments))
                torch.autograd.backward(value)
                return value.detach()

            return Planned(plan, run, planned.report)

        def graph() -> Planned:
            captured = capture(whole, *arguments, modules=trained)
            return Planned(
                lambda budget: captured.plan(budget=budget, time_limit=3.0),
                lambda: _one(captured(*arguments)),
                captured.report,
            )

        trials = []
        if step is None and _is_chain(model):
            trials.append(compared.trial("chain", chain, budget))
        trials.append(compared.trial("graph", graph, budget))
        return trials
    finally:
        world.put_back()
