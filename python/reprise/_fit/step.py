"""A training step as cases for `fit()`: on fake tensors, or captured on its device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .._capture.optimizer import ParameterSteps
from .._step.modules import modules_of, optimizers_of
from .._step.tree import flatten, rebuild
from ..errors import InputError
from .case import STATE_ON_HOST, USED_UP, Case, Cases
from .fake_step import Run, mode_of, record
from .problem import Work, one_part, whole_step, with_updates
from .roofline import Machine, time_ns
from .rows import FitBatch


@dataclass
class _Updates:
    """The costs of an optimizer.

    Attributes:
        whole: Its whole step behind all gradients.
        each: The update of each leaf alone, by the number of its storage; empty if the optimizer
            cannot update one parameter at a time.
        state_bytes: The bytes of its state.
        largest_state_bytes: The bytes of the state of one parameter at most.
    """

    whole: Work
    each: dict[int, Work]
    state_bytes: int
    largest_state_bytes: int


@dataclass
class Question:
    """A step, and the figures of a device.

    Attributes:
        step: The step.
        sample: Its arguments.
        keywords: Its keyword arguments.
        optimizer: The optimizer whose step follows, or None.
        modules: The modules that the step trains, or None for those that it shows.
        fixed_bytes: The bytes that something else holds.
        name: The name of the step.
        operations: The operations a second of the device.
        bandwidth: The bytes a second of its memory.
        overhead_ns: The time of a call beside that.
        link: The bytes a second to the host, or None.
        notes: The parts of the question that have no answer.
        parameters: The number of elements of all parameters, once a batch was looked at.
    """

    step: Callable[..., Any]
    sample: tuple[Any, ...]
    keywords: dict[str, Any]
    optimizer: torch.optim.Optimizer | None
    modules: Sequence[torch.nn.Module] | None
    fixed_bytes: int
    name: str
    operations: float
    bandwidth: float
    overhead_ns: int
    link: float | None
    notes: list[str] = field(default_factory=list)
    parameters: int | None = None

    @property
    def batch(self) -> int | None:
        """The rows of the sample, or None if it has no tensor with a dimension."""
        tensors, _ = flatten((self.sample, self.keywords), "the sample")
        if not tensors:
            raise InputError("the sample has no tensor")
        return int(tensors[0].shape[0]) if tensors[0].dim() else None

    def source_of_times(self, times: str, assumed: bool) -> str:
        """Returns where the times come from, in words."""
        if times == "measured":
            tensors, _ = flatten((self.sample, self.keywords), "the sample")
            return f"measured on {tensors[0].device}"
        figures = f"{self.operations / 1e12:g} Tflop/s and {self.bandwidth / 1e12:g} TB/s"
        each = f", and {self.overhead_ns / 1e3:g} us a call" if self.overhead_ns else ""
        source = "an assumed device of" if assumed else "estimated from"
        return f"{source} {figures}{each}"

    def source_of_sizes(self, times: str) -> str:
        """Returns where the sizes come from, in words."""
        if times == "measured":
            return "measured, workspaces of kernels included"
        return "from fake tensors, without workspaces of kernels"

    def measured(self, batch: int) -> Cases:
        """Captures the step for a batch on its device."""
        from .._capture.capture import capture

        sample, keywords = self._scaled(batch, _repeated)
        modules = None if self.modules is None else list(self.modules)
        captured = capture(
            self.step,
            *sample,
            modules=modules,
            optimizer=self.optimizer,
            name=self.name,
            **keywords,
        )
        profile = captured.profile()
        problem: Any = profile
        if self.fixed_bytes:
            graph = profile.problem
            fixed = graph.fixed_bytes + self.fixed_bytes
            problem = dataclasses.replace(graph, fixed_bytes=fixed)
        plain = captured.plan(budget=None, time_limit=1.0).baseline
        parameters = [p for module in self._known_modules() for p in module.parameters()]
        self.parameters = sum(p.numel() for p in parameters)
        held = {"parameters": _bytes_of(parameters), "fixed": self.fixed_bytes}
        peak = plain.peak_bytes + self.fixed_bytes
        return Cases(FitBatch(batch, peak, plain.time_ns, _named(held)), [Case((), problem)])

    def estimated(self, batch: int) -> Cases:
        """Runs the step for a batch on fake tensors."""
        tensors, _ = flatten((self.sample, self.keywords), "the sample")
        modules = self._known_modules()
        parameters: list[torch.Tensor] = [p for one in modules for p in one.parameters()]
        self.parameters = sum(p.numel() for p in parameters)
        optimizers = optimizers_of(self.step)
        if self.optimizer is not None:
            parameters += [p for g in self.optimizer.param_groups for p in g["params"]]
        for optimizer in optimizers:
            parameters += [p for g in optimizer.param_groups for p in g["params"]]
        mode = mode_of([*parameters, *tensors])
        machine = Machine(self.operations, self.bandwidth, self.overhead_ns)
        cost = functools.partial(time_ns, machine)
        with _left_as_it_was(
            [*parameters, *tensors], [*optimizers, *([self.optimizer] if self.optimizer else [])]
        ):
            with mode:
                sample, keywords = self._scaled(batch, _resized)
            step = functools.partial(self.step, *sample, **keywords)
            inputs, _ = flatten((sample, keywords), "the sample")
            roles: dict[str, list[torch.Tensor]] = {
                "parameter": parameters,
                "buffer": [b for module in modules for b in module.buffers()],
                "sample": inputs,
            }
            if optimizers:  # The first step of an optimizer makes its state.
                record(step, roles, modules, cost, mode)
                roles["state"] = [t for optimizer in optimizers for t in _state(optimizer)]
                for one in parameters:
                    one.grad = None
            run = record(step, roles, modules, cost, mode)
            updates = self._updates(run, parameters, cost, mode)
        return self._cases(batch, run, updates)

    def _known_modules(self) -> list[torch.nn.Module]:
        return list(self.modules) if self.modules is not None else modules_of(self.step)

    def _scaled(self, batch: int, change: Callable[[torch.Tensor, int], torch.Tensor]) -> Any:
        """Returns the arguments and keywords for another number of rows."""
        tensors, tree = flatten((self.sample, self.keywords), "the sample")
        own = self.batch
        changed = [
            change(one, batch) if one.dim() and one.shape[0] == own and batch != own else one
            for one in tensors
        ]
        return rebuild(tree, changed)

    def _updates(self, run: Run, parameters: list[torch.Tensor], cost: Any, mode: Any) -> Any:
        """Returns the costs of the optimizer whose step follows, or None if there is none."""
        optimizer = self.optimizer
        if optimizer is None:
            return None
        record(optimizer.step, {}, [], cost, mode)  # The first step makes the state.
        leaves = {id(p): p for p in parameters if p.grad is not None}
        state = _state(optimizer)
        gradients = [p.grad for p in leaves.values() if p.grad is not None]
        roles = {"parameter": list(leaves.values()), "gradient": gradients, "state": state}
        whole = _work(record(optimizer.step, roles, [], cost, mode))
        sizes = [_bytes_of(_tensors_in(optimizer.state[p])) for p in leaves.values()]
        each: dict[int, Work] = {}
        try:
            steps = ParameterSteps(optimizer)
        except InputError as error:
            self.notes.append(f"{USED_UP}: {error}")
        else:
            each = _each_update(steps, run, cost, mode)
        return _Updates(whole, each, _bytes_of(state), max(sizes, default=0))

    def _cases(self, batch: int, run: Run, updates: _Updates | None) -> Cases:
        gradients = {
            leaf: run.storages[gradient].bytes
            for leaf, gradient in run.gradients.items()
            if run.storages[gradient].kind != "input"
        }
        state = 0 if updates is None else updates.state_bytes
        work = None if updates is None else updates.whole
        fixed = self.fixed_bytes + state
        inputs = sum(s.bytes for s in run.storages if s.kind == "input")
        sum_bytes = sum(gradients.values())
        in_update = 0 if work is None else inputs + sum_bytes + work.workspace_bytes
        held = {
            "parameters": run.input_bytes("parameter"),
            "buffers": run.input_bytes("buffer"),
            "sample": run.input_bytes("sample"),
            "optimizer's state": state + run.input_bytes("state"),
            "gradients": sum_bytes,
            "fixed": self.fixed_bytes,
        }
        time = sum(call.ns for call in run.calls) + (0 if work is None else work.ns)
        plain = FitBatch(
            batch,
            fixed + max(run.peak_bytes, in_update),
            time,
            _named(held),
        )
        whole = [Case((), whole_step(run, self.name, fixed, work))]
        if updates is not None and updates.each:
            problem = with_updates(run, self.name, fixed, updates.each)
            whole.append(Case((USED_UP,), problem))
        if updates is not None and self.link is not None:
            moved = int(2e9 * state / self.link)
            behind = Work(
                updates.whole.ns + moved,
                updates.whole.workspace_bytes + updates.largest_state_bytes,
            )
            problem = whole_step(run, self.name, self.fixed_bytes, behind)
            whole.append(Case((STATE_ON_HOST,), problem))
        sums = {
            leaf: Work(max(1, self.overhead_ns + int(3e9 * bytes / self.bandwidth)))
            for leaf, bytes in gradients.items()
        }
        part = Case(
            (),
            one_part(run, self.name, fixed + sum_bytes, sums),
            extra_ns=0 if work is None else work.ns,
            floor_bytes=fixed + in_update,
        )
        return Cases(plain, whole, part if gradients else None)


def _named(held: dict[str, int]) -> dict[str, int]:
    return {name: bytes for name, bytes in held.items() if bytes}


def _each_update(steps: ParameterSteps, run: Run, cost: Any, mode: Any) -> dict[int, Work]:
    """Returns the cost of updating each leaf alone. Equal leaves are looked at once."""
    known: dict[Any, Work] = {}
    each: dict[int, Work] = {}
    leaves = run.leaves
    for number, parameter in enumerate(steps.parameters()):
        if parameter.grad is None or id(parameter) not in leaves:
            continue
        key = (tuple(parameter.shape), parameter.dtype, steps.memory_key(number))
        if key not in known:
            state = list(_tensors_in(steps.optimizer.state[parameter]))
            roles = {"parameter": [parameter], "gradient": [parameter.grad], "state": state}
            step = functools.partial(steps.step, number)
            known[key] = _work(record(step, roles, [], cost, mode))
        each[leaves[id(parameter)]] = known[key]
    return each


def _work(run: Run) -> Work:
    inputs = sum(stored.bytes for stored in run.storages if stored.kind == "input")
    return Work(sum(call.ns for call in run.calls), max(0, run.peak_bytes - inputs))


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    return (one for one in values.values() if isinstance(one, torch.Tensor))


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for values in optimizer.state.values() for one in _tensors_in(values)]


def _bytes_of(tensors: Any) -> int:
    from .._compile.joint import storage_bytes

    return sum(storage_bytes(one) for one in tensors)


def _resized(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    resized = tensor.detach().new_empty((rows, *tensor.shape[1:]))
    return resized.requires_grad_(tensor.requires_grad)


def _repeated(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    chosen = torch.arange(rows, device=tensor.device) % tensor.shape[0]
    return tensor.detach().index_select(0, chosen).requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _left_as_it_was(
    leaves: list[torch.Tensor], optimizers: list[torch.optim.Optimizer]
) -> Iterator[None]:
    """Takes gradients and the optimizers' state away for the scope, and puts them back."""
    gradients = [(leaf, leaf.grad) for leaf in leaves if leaf.is_leaf]
    states = [(optimizer, dict(optimizer.state)) for optimizer in optimizers]
    random = torch.get_rng_state()
    for leaf, _ in gradients:
        leaf.grad = None
    for optimizer in optimizers:
        optimizer.state.clear()
    try:
        yield
    finally:
        for leaf, gradient in gradients:
            leaf.grad = gradient
        for optimizer, state in states:
            optimizer.state.clear()
            optimizer.state.update(state)
        torch.set_rng_state(random)
