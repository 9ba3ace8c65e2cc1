"""Graph mode: any model. The whole training step is recorded, planned and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from ._html import fields_html
from ._model import Graph, Path, Plan, Profile, RunLog
from ._optimizer import ParameterSteps
from ._planning import Budget, Observer, PlanResult, nanoseconds, observe, report_html, result_of
from ._torch import (
    StepReport,
    _runtime,
    budget_for,
    called_modules,
    modules_of,
    optimizers_of,
)
from ._tree import Tree, flatten, rebuild
from .errors import InputError


class Alternative(NamedTuple):
    """A kind of other ways to run parts of a step, with less memory."""

    name: str
    description: str
    exactness: str
    in_graph: bool  # for operations of a captured step: capture()
    in_chain: bool  # for stages: remat() and profile()


def alternatives() -> list[Alternative]:
    """The kinds there are."""
    return [Alternative(*row) for row in _runtime.alternatives()]


class _Recorded:
    """The user's function between lists of tensors, and the structures that it was captured
    with."""

    def __init__(self, step: Callable[..., Any], inputs: Tree) -> None:
        self.step = step
        self.inputs = inputs
        self.outputs: Tree | None = None

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return self._run(tensors, {})

    def part(self, tensors: list[torch.Tensor], share: float) -> list[torch.Tensor]:
        return self._added_up(self._run(tensors, {"share": share}))

    def behind(
        self, body: _Recorded, tensors: list[torch.Tensor], share: float
    ) -> list[torch.Tensor]:
        """The same of what a body returned."""
        assert body.outputs is not None
        results = rebuild(body.outputs, tensors)
        results = results if isinstance(results, (tuple, list)) else (results,)
        outputs, self.outputs = flatten(self.step(*results, share=share), "what the step returns")
        return self._added_up(outputs)

    def _added_up(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.outputs is not None and self.outputs.constants():
            raise InputError(
                "what the parts of a step return is added up: tensors only, not "
                f"{self.outputs.constants()[0]!r}"
            )
        return outputs

    def _run(self, tensors: list[torch.Tensor], more: dict[str, Any]) -> list[torch.Tensor]:
        arguments, keywords = rebuild(self.inputs, tensors)
        keywords = keywords | more
        outputs, self.outputs = flatten(self.step(*arguments, **keywords), "what the step returns")
        return outputs


def outermost(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Without those that are parts of others."""
    parts = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in parts]


class _Parameters(torch.nn.Module):
    """Parameters that are in no module that is known."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()
        self._parameters.update((str(i), p) for i, p in enumerate(parameters))


def with_optimizers(modules: list[torch.nn.Module], step: Any) -> list[torch.nn.Module]:
    """And what else the optimizers have that the step uses: it may drop those gradients, too."""
    known = {id(p) for module in modules for p in module.parameters()}
    rest = [
        p
        for optimizer in optimizers_of(step)
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) not in known
    ]
    return [*modules, _Parameters(rest)] if rest else modules


def plan_options(
    *,
    budget: int | str | None,
    planner: str,
    time_limit: float | str,
    threads: int,
    enforce: bool,
    arena: bool,
    observer: Observer | None,
) -> dict[str, Any]:
    """Of CapturedStep.plan(), as the extension takes them."""
    return {
        "budget": budget,
        "planner": planner,
        "time_limit_ns": nanoseconds(time_limit),
        "threads": threads,
        "enforce": enforce,
        "arena": arena,
        "observer": observe(observer),
    }


class CapturedStep:
    """A training step that was recorded: called like the function, it does what the function does.

    Gradients of all leaf tensors that the step reads are in .grad afterwards; what it returns has
    no history; buffers and random state are as after the function. Numbers of Python (a dropout
    probability, a learning rate) are those of the capture, and hooks are not called. Made by
    capture().
    """

    def __init__(
        self,
        step: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        modules: list[torch.nn.Module],
        on_miss: str,
        alternatives: Sequence[str] | None,
        optimizer: torch.optim.Optimizer | None,
        name: str,
        observer: Observer | None,
    ) -> None:
        if on_miss not in ("refuse", "recapture"):
            raise InputError(f'on_miss is "refuse" or "recapture", not {on_miss!r}')
        self._step = step
        self._modules = modules
        self._recapture = on_miss == "recapture"
        self._alternatives = alternatives
        self._optimizer = None if optimizer is None else ParameterSteps(optimizer)
        self._name = name
        self._observer = observer
        self._plan_options: dict[str, Any] | None = None
        self._capture(*flatten((arguments, keywords), "the sample"))

    def _capture(self, tensors: list[torch.Tensor], tree: Tree) -> None:
        if not tensors:
            raise InputError("a captured step needs at least one input tensor")
        recorded = _Recorded(self._step, tree)
        native = self._record_all(
            recorded,
            tensors,
            {
                "recapture": self._recapture,
                "alternatives": self._alternatives,
                "optimizer": self._optimizer,
                "name": self._name,
                "observer": observe(self._observer),
            },
        )
        # All at once, when nothing can fail any more: what there was stays whole.
        self._device, self._recorded, self._native = tensors[0].device, recorded, native

    def _record_all(
        self, recorded: _Recorded, tensors: list[torch.Tensor], options: dict[str, Any]
    ) -> _runtime.CapturedStep:
        """Captures; again if it runs modules that the function does not show."""
        # A checkpoint that stops early leaves its last operation half-way.
        with called_modules() as called, set_checkpoint_early_stop(False):
            native = self._record(recorded, tensors, options | {"modules": self._modules})
        known = {id(part) for module in self._modules for part in module.modules()}
        hidden = [module for module in called if id(module) not in known]
        if not hidden:
            return native
        del native, called
        self._modules = [*self._modules, *outermost(hidden)]
        with set_checkpoint_early_stop(False):
            return self._record(recorded, tensors, options | {"modules": self._modules})

    def _record(
        self, recorded: _Recorded, tensors: list[torch.Tensor], options: dict[str, Any]
    ) -> _runtime.CapturedStep:
        """Captures, and plans if a plan was asked for before."""
        native = _runtime.CapturedStep(recorded, tensors, **options)
        if self._plan_options is not None:
            native.plan(**self._plan_options)
        return native

    def plan(
        self,
        *,
        budget: Budget = None,
        planner: str = "graph",
        time_limit: float | str = 10.0,
        threads: int = 0,
        enforce: bool = True,
        arena: bool = True,
        observer: Observer | None = None,
    ) -> PlanResult:
        """Plans the step for a budget of all device bytes during it: parameters, gradients,
        optimizer state, inputs and whatever else is live. BudgetError when no plan fits; the plan
        before stays.

        `budget`: bytes, "8 GiB", "60%" of plain training's peak, "auto" (what the device has free),
        or None for no limit. `enforce`: on the CPU a request beyond it raises BudgetError. `arena`:
        all memory of the step in one block at planned places (CPU).
        """
        options = plan_options(
            budget=budget_for(budget, self._device),
            planner=planner,
            time_limit=time_limit,
            threads=threads,
            enforce=enforce,
            arena=arena,
            observer=observer or self._observer,
        )
        result = result_of(self._native.plan(**options))
        self._plan_options = options
        return result

    def use(
        self, plan: Plan, *, budget: Budget = None, enforce: bool = True, arena: bool = True
    ) -> None:
        """Takes a plan from elsewhere, for `graph`. InputError with all violations if it is not
        valid. `budget`: default is the plan's own."""
        limit = plan.budget_bytes if budget is None else budget_for(budget, self._device)
        self._native.use(plan.to_json(), budget=limit, enforce=enforce, arena=arena)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """One training step. Plans for plain training when nothing was planned. After an exception
        gradients (but those that the step itself drops first), buffers and random state are as
        before the step."""
        tensors, tree = flatten((arguments, keywords), "the input")
        if tree != self._recorded.inputs:
            self._miss("its inputs have another structure or other numbers", tensors, tree)
        if not self._native.refresh():
            self._miss("a module has other children, parameters or buffers", tensors, tree)
        outputs = self._native.run(tensors)
        assert self._recorded.outputs is not None
        return rebuild(self._recorded.outputs, outputs)

    def _miss(self, difference: str, tensors: list[torch.Tensor], tree: Tree) -> None:
        if not self._recapture:
            raise InputError(f"the step was captured for something else: {difference}")
        self._capture(tensors, tree)

    @property
    def graph(self) -> Graph:
        """The recorded step as a problem: operations over values."""
        return Graph.from_json(self._native.graph())

    @property
    def planned(self) -> PlanResult:
        """The plan in force. InputError when nothing was planned yet."""
        return result_of(self._native.planned())

    def profile(self) -> Profile:
        """What was measured, and how."""
        return Profile.from_json(self._native.profile())

    def save_report(self, path: Path) -> None:
        """The plan in force as a page to look at: see report_html()."""
        plan = self.planned.plan
        assert plan is not None
        report_html(self.profile(), plan, run_log=self.run_log(), path=path)

    def log_steps(self, steps: int = 5) -> None:
        """Measures the next so many steps run by run, for run_log() and the report."""
        self._native.log_steps(steps)

    def run_log(self) -> RunLog | None:
        """What the runs of the plan in force took in those steps; None before the first."""
        text = self._native.run_log()
        return None if text is None else RunLog.from_json(text)

    def report(self) -> StepReport:
        """What the last step took."""
        return StepReport(**self._native.report())

    def __repr__(self) -> str:
        return f"CapturedStep({self._name!r}, {self.report()})"

    def _repr_html_(self) -> str:
        return fields_html(self.report())


def capture(
    step: Callable[..., Any],
    *sample: Any,
    modules: list[torch.nn.Module] | None = None,
    on_miss: str = "refuse",
    alternatives: Sequence[str] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    name: str = "step",
    observer: Observer | None = None,
    **keywords: Any,
) -> CapturedStep:
    """Records a whole training step (forward, loss, backward; not the optimizer) of any model.

    `step(*sample, **keywords)` runs four times, and each of its operations a few times more.
    Inputs and what it returns may be tensors in tuples, lists, dicts and dataclasses. Parameters,
    gradients, buffers and random state are left as they were.

    `modules`: their train flags, parameters and buffers are compared at each call, beside those of
    all modules that the step calls; default: those that the function shows (its closure, the object
    it is a method of). `on_miss`: what a call with
    other shapes, types, flags or numbers does: "refuse" with an InputError, or "recapture" and plan
    again.

    `alternatives`: the kinds (names of alternatives()) that the planner may run in place of
    operations as they were captured; None is all that leave the same bits, [] none. One whose
    exactness is "rounding" is run only if it is named here.

    `optimizer`: its step becomes part of this one. Each parameter is updated by it when its
    gradient is complete and nothing in the step needs the parameter any more, and the gradient is
    freed: .grad is None before and after. The same bits as optimizer.step() behind the step. SGD,
    Adam, AdamW, Adagrad, RMSprop. Clipping by a norm of all gradients is not possible. When a step
    fails half-way, the exception says which parameters were updated.

    InputError for what cannot be replayed, naming the operation: sizes or branches that depend on
    data, numbers read out of tensors, parameters that are written.
    """
    watched = modules_of(step) if modules is None else modules
    return CapturedStep(
        step,
        sample,
        keywords,
        with_optimizers(watched, step),
        on_miss,
        alternatives,
        optimizer,
        name,
        observer,
    )
